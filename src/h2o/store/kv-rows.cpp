#include "h2o/store/kv-rows.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

// Multiplies every block of n numbers by the Walsh-Hadamard matrix.
static void transform(float * data, size_t n_data, uint32_t n) {
    for (float * block = data; n > 0 && block < data + n_data; block += n) {
        for (size_t step = n/2; step > 0; step /= 2) {
            for (size_t i = 0; i < n; ++i) {
                if ((i & step) == 0) {
                    const float a = block[i];
                    const float b = block[i + step];
                    block[i]        = a + b;
                    block[i + step] = a - b;
                }
            }
        }
        const float scale = 1.0f/std::sqrt((float) n);
        for (size_t i = 0; i < n; ++i) {
            block[i] *= scale;
        }
    }
}

std::vector<float> h2o_hadamard(uint32_t n) {
    std::vector<float> res(n*n, 0.0f);
    for (uint32_t i = 0; i < n; ++i) {
        res[i*n + i] = 1.0f;
    }
    transform(res.data(), res.size(), n);
    return res;
}

void h2o_kv_rows::rotate(float * data, size_t n) const {
    transform(data, n, n_rot);
}

// zeros if there is none
static std::vector<float> mean_of(const h2o_kv_rows & rows) {
    std::vector<float> res((size_t) rows.n_head*rows.n_embd, 0.0f);
    if (rows.mean) {
        ggml_backend_tensor_get(rows.mean, res.data(), 0, ggml_nbytes(rows.mean));
    }
    return res;
}

static void decode_row(ggml_type type, const void * src, float * dst, int64_t n) {
    if (type == GGML_TYPE_F32) {
        std::copy_n((const float *) src, n, dst);
    } else {
        ggml_get_type_traits(type)->to_float(src, dst, n);
    }
}

static void encode_row(ggml_type type, const float * src, void * dst, int64_t n) {
    if (type == GGML_TYPE_F32) {
        std::copy_n(src, n, (float *) dst);
    } else {
        ggml_get_type_traits(type)->from_float_ref(src, dst, n);
    }
}

void h2o_kv_rows::decode(const uint8_t * bytes, size_t n, float * dst) const {
    const size_t n_row = (size_t) n_head*n_embd;
    const auto   means = mean_of(*this);

    for (size_t i = 0; i < n; ++i) {
        float * row = dst + i*n_row;
        decode_row(t->type, bytes + i*t->nb[1], row, n_row);
        rotate(row, n_row);
        std::transform(row, row + n_row, means.begin(), row, std::plus<float>());
    }
}

void h2o_kv_rows::set(uint32_t r0, uint32_t r1, const float * src) const {
    const size_t n     = r1 - r0;
    const size_t n_row = (size_t) n_head*n_embd;
    const auto   means = mean_of(*this);

    std::vector<float>   row(n_row);
    std::vector<uint8_t> raw(t->nb[1]);
    for (size_t i = 0; i < n; ++i) {
        for (size_t h = 0; h < n_head; ++h) {
            std::copy_n(src + (h*n + i)*n_embd, n_embd, row.data() + h*n_embd);
        }
        std::transform(row.begin(), row.end(), means.begin(), row.begin(), std::minus<float>());
        rotate(row.data(), n_row);
        encode_row(t->type, row.data(), raw.data(), n_row);
        ggml_backend_tensor_set(t, raw.data(), (row0 + r0 + i)*t->nb[1], raw.size());
    }
}

void h2o_kv_rows::move(uint32_t first, const std::vector<int32_t> & from) const {
    const size_t   n      = from.size()/n_head;
    const size_t   n_byte = ggml_row_size(t->type, n_embd);
    const uint32_t end    = std::max<uint32_t>(first + n, *std::max_element(from.begin(), from.end()) + 1);

    std::vector<uint8_t> copy;
    uint8_t * data = (uint8_t *) t->data + (row0 + first)*t->nb[1];
    if (!ggml_backend_buffer_is_host(t->buffer)) {
        copy = get_bytes(first, end);
        data = copy.data();
    }

    for (size_t h = 0; h < n_head; ++h) {
        uint8_t * head = data + h*n_byte;
        for (size_t i = 0; i < n; ++i) {
            const size_t row = from[h*n + i] - first;
            if (row > i) {
                memcpy(head + i*t->nb[1], head + row*t->nb[1], n_byte);
            }
        }
    }

    if (!copy.empty()) {
        copy.resize(n*t->nb[1]);
        set_bytes(first, copy);
    }
}

void h2o_kv_rows::release(uint32_t r0, uint32_t r1) const {
    h2o_release_rows(t, row0 + r0, row0 + r1);
}

void h2o_release_rows([[maybe_unused]] ggml_tensor * t, [[maybe_unused]] size_t r0, [[maybe_unused]] size_t r1) {
#ifdef __linux__ // elsewhere pages cannot be given back, or are only marked
    // a device may know where pages are
    if (ggml_backend_buffer_get_type(t->buffer) != ggml_backend_cpu_buffer_type()) {
        return;
    }
    static const uintptr_t page = sysconf(_SC_PAGESIZE);

    const uintptr_t data  = (uintptr_t) t->data;
    const uintptr_t begin = (data + r0*t->nb[1] + page - 1)/page*page;
    const uintptr_t end   = (data + r1*t->nb[1])/page*page;
    if (begin < end) {
        madvise((void *) begin, end - begin, MADV_DONTNEED); // they read as zeros then; where it fails they stay
    }
#endif
}

std::vector<uint8_t> h2o_kv_rows::get_bytes(uint32_t r0, uint32_t r1) const {
    std::vector<uint8_t> res((r1 - r0)*t->nb[1]);
    ggml_backend_tensor_get(t, res.data(), (row0 + r0)*t->nb[1], res.size());
    return res;
}

void h2o_kv_rows::set_bytes(uint32_t r0, const std::vector<uint8_t> & bytes) const {
    ggml_backend_tensor_set(t, bytes.data(), (row0 + r0)*t->nb[1], bytes.size());
}
