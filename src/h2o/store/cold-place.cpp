#include "h2o/store/cold-place.h"

#include "h2o/store/codec/prefetch.h"

#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <vector>

#ifndef _WIN32
#include <cerrno>
#include <cstdlib>
#include <unistd.h>
#endif

namespace {

struct memory_block : h2o_cold_block {
    explicit memory_block(const void * data, size_t n) : h2o_cold_block(n), bytes((const uint8_t *) data, (const uint8_t *) data + n) {}

    void read(size_t offset, size_t n, void * dst) const override { memcpy(dst, bytes.data() + offset, n); }

    void prefetch(size_t offset, size_t n) const override { h2o_codec_prefetch(bytes.data() + offset, n); }

    const std::vector<uint8_t> bytes;
};

struct memory_place : h2o_cold_place {
    std::shared_ptr<const h2o_cold_block> write(const void * data, size_t n) override {
        try {
            return std::make_shared<memory_block>(data, n);
        } catch (const std::bad_alloc &) {
            throw std::runtime_error("[h2o] not enough memory for what is evicted. Name a folder as the cold store");
        }
    }
};

#ifndef _WIN32

// What was freed is written to again, or cut off where it is the file's end.
class file {
public:
    explicit file(const std::string & folder) : folder(folder) {
        std::string name = folder + "/h2o-XXXXXX";
        fd = mkstemp(name.data());
        if (fd < 0) {
            fail("cannot make a file in", errno);
        }
        unlink(name.c_str());
    }

    ~file() { close(fd); }

    file(const file &) = delete;

    off_t write(const void * data, size_t n) {
        const off_t offset = allocate(n);
        for (size_t i = 0; i < n;) {
            const ssize_t k = pwrite(fd, (const char *) data + i, n - i, offset + i);
            if (k < 0 && errno == EINTR) {
                continue;
            }
            if (k <= 0) {
                const int error = errno;
                release(offset, n);
                fail("cannot write to a file in", error);
            }
            i += k;
        }
        return offset;
    }

    void read(off_t offset, size_t n, void * dst) const {
        for (size_t i = 0; i < n;) {
            const ssize_t k = pread(fd, (char *) dst + i, n - i, offset + i);
            if (k < 0 && errno == EINTR) {
                continue;
            }
            if (k <= 0) {
                fail("cannot read from a file in", k < 0 ? errno : EIO);
            }
            i += k;
        }
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
        const off_t offset = end;
        end += n;
        return offset;
    }

    [[noreturn]] void fail(const char * what, int error) const {
        throw std::runtime_error(std::string("[h2o] ") + what + " " + folder + ", the folder of the cold store: " + strerror(error));
    }

    const std::string folder;

    int fd;

    std::mutex mutex;
    off_t      end = 0;

    std::map<off_t, off_t> holes; // begins and ends of what is free before the end
};

struct file_block : h2o_cold_block {
    file_block(std::shared_ptr<file> f, const void * data, size_t size) : h2o_cold_block(size), f(std::move(f)), offset(this->f->write(data, size)) {}

    ~file_block() override { f->release(offset, size); }

    void read(size_t at, size_t n, void * dst) const override { f->read(offset + at, n, dst); }

    const std::shared_ptr<file> f;

    const off_t offset;
};

struct file_place : h2o_cold_place {
    explicit file_place(const std::string & folder) : f(std::make_shared<file>(folder)) {}

    std::shared_ptr<const h2o_cold_block> write(const void * data, size_t n) override { return std::make_shared<file_block>(f, data, n); }

    const std::shared_ptr<file> f;
};

#endif

} // namespace

std::shared_ptr<h2o_cold_place> h2o_make_cold_place(const std::string & where) {
    if (where == "memory") {
        return std::make_shared<memory_place>();
    }
#ifdef _WIN32
    throw std::runtime_error("[h2o] on Windows the cold store can only be memory");
#else
    return std::make_shared<file_place>(where);
#endif
}
