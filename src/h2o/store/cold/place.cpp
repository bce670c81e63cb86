#include "h2o/store/cold/place.h"

#include "h2o/config/refusal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>

namespace {

struct memory_bytes : h2o_cold_bytes {
    explicit memory_bytes(const std::vector<uint8_t> & bytes) : h2o_cold_bytes(bytes.size()), bytes(bytes) {}

    const uint8_t * get(size_t offset, size_t /*n*/,
            std::vector<uint8_t> & /*buffer*/) const override { return bytes.data() + offset; }

    const std::vector<uint8_t> bytes;
};

struct memory_place : h2o_cold_place {
    std::shared_ptr<const h2o_cold_bytes> write(const std::vector<uint8_t> & bytes) override {
        try {
            return std::make_shared<memory_bytes>(bytes);
        } catch (const std::bad_alloc &) {
            throw h2o_refusal(h2o_reason::MEMORY,
                    "[h2o] not enough memory for what is evicted. Name a folder as the cold store");
        }
    }
};

// Freed ranges are reused, or cut off at the file's end.
class file_place : public h2o_cold_place, public std::enable_shared_from_this<file_place> {
public:
    explicit file_place(const std::string & folder) : folder(folder) {
        std::string name = folder + "/h2o-XXXXXX";
        fd = mkostemp(name.data(), O_CLOEXEC);
        if (fd < 0) {
            fail("cannot make a file in", errno);
        }
        unlink(name.c_str());
    }

    ~file_place() override { close(fd); }

    std::shared_ptr<const h2o_cold_bytes> write(const std::vector<uint8_t> & bytes) override;

    void read(off_t offset, size_t n, uint8_t * dst) const {
        whole("cannot read from a file in", n, [&](size_t done) { return pread(fd, dst + done, n - done, offset + done);
                });
    }

    void release(off_t offset, size_t n) {
        const std::lock_guard<std::mutex> lock(mutex);

        off_t hole_end = offset + n;

        // neighbours become one
        auto next = holes.lower_bound(offset);
        if (next != holes.end() && next->first == hole_end) {
            hole_end = next->second;
            next     = holes.erase(next);
        }
        if (next != holes.begin() && std::prev(next)->second == offset) {
            offset = std::prev(next)->first;
            holes.erase(std::prev(next));
        }
        if (hole_end < end) {
            holes[offset] = hole_end;
        } else {
            end = offset;
            (void) !ftruncate(fd, end); // else it is written over
        }
    }

private:
    // in the first hole that is large enough
    off_t allocate(size_t n) {
        const std::lock_guard<std::mutex> lock(mutex);

        for (auto it = holes.begin(); it != holes.end(); ++it) {
            const auto [offset, hole_end] = *it;
            if (hole_end - offset >= (off_t) n) {
                holes.erase(it);
                if (offset + (off_t) n < hole_end) {
                    holes[offset + n] = hole_end;
                }
                return offset;
            }
        }
        end += n;
        return end - n;
    }

    // Calls transfer(done), which reads or writes some of the rest and returns the number of bytes, until the end.
    template <typename F>
    void whole(const char * what, size_t n, const F & transfer) const {
        for (size_t done = 0; done < n; ) {
            const ssize_t k = transfer(done);
            if (k > 0) {
                done += k;
            } else if (k == 0 || errno != EINTR) {
                fail(what, k < 0 ? errno : EIO);
            }
        }
    }

    [[noreturn]] void fail(const char * what, int error) const {
        throw std::runtime_error(std::string("[h2o] ") + what + " " + folder + ", the folder of the cold store: " +
                strerror(error));
    }

    const std::string folder;

    int fd;

    std::mutex mutex;
    off_t      end = 0;

    std::map<off_t, off_t> holes; // begins and ends of free ranges before the end
};

struct file_bytes : h2o_cold_bytes {
    file_bytes(std::shared_ptr<file_place> file, off_t offset, size_t n) : h2o_cold_bytes(n), file(std::move(file)),
            offset(offset) {}

    ~file_bytes() override { file->release(offset, size); }

    const uint8_t * get(size_t at, size_t n, std::vector<uint8_t> & buffer) const override {
        buffer.resize(n);
        file->read(offset + at, n, buffer.data());
        return buffer.data();
    }

    const std::shared_ptr<file_place> file;

    const off_t offset;
};

std::shared_ptr<const h2o_cold_bytes> file_place::write(const std::vector<uint8_t> & bytes) {
    // has its room from here on, and gives it back if it cannot be filled
    const auto res = std::make_shared<const file_bytes>(shared_from_this(), allocate(bytes.size()), bytes.size());
    whole("cannot write to a file in", bytes.size(), [&](size_t done) {
        return pwrite(fd, bytes.data() + done, bytes.size() - done, res->offset + done);
    });
    return res;
}

} // namespace

std::shared_ptr<h2o_cold_place> h2o_make_cold_place(const std::string & where) {
    if (where == "memory") {
        return std::make_shared<memory_place>();
    }
    return std::make_shared<file_place>(where);
}
