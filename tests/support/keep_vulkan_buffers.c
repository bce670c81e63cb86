// Preloaded where the tests run on Debian 12's lavapipe (Mesa 22.3.6). It still uses a buffer after vkDestroyBuffer, even if the
// device was idle, and ends the process: so no buffer is destroyed.
#include <vulkan/vulkan.h>

VKAPI_ATTR void VKAPI_CALL vkDestroyBuffer(VkDevice device, VkBuffer buffer, const VkAllocationCallbacks * allocator) {
    (void) device;
    (void) buffer;
    (void) allocator;
}
