// Steps of products by the instruction that adds up the products of 4 signed bytes in each lane.

#include "ggml/product/kernels/signed-bytes.h"
#include "ggml/product/kernels/byte-steps.h"

namespace {

template <typename K>
inline void widen_rows(const bytes<1> * w, char * dst) {
    bytes<1> s[ROWS];
    for (int i = 0; i < ROWS; ++i) {
        s[i] = signed_bytes<K>(w[i]);
    }
    interleave(s, dst);
}

} // namespace
