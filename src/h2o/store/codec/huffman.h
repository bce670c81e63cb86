#pragma once

#include <stddef.h>
#include <stdint.h>

// zstd's Huffman code, with tables that many short streams share, and its XXH64. Both are inside of zstd.c and not in zstd.h.

// Only this of huffman.c is visible: another zstd in the same process must not be taken for ours, nor ours for it.
// GCC compiles nothing but what these call.
#ifdef __clang__
#define H2O_HUFFMAN_API __attribute__((visibility("default")))
#else
#define H2O_HUFFMAN_API __attribute__((visibility("default"), externally_visible))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define H2O_HUFFMAN_MAX_BITS 11 // of a byte's word: the decoder's table has 8 KB, which a store's few rows must fetch

#define H2O_HUFFMAN_MAX_WEIGHTS 256         // bytes that say a code
#define H2O_HUFFMAN_MAX_STREAM  (128*1024)  // bytes that are encoded at once

struct h2o_huffman_encoder {
    uint64_t table[257];
};

struct h2o_huffman_decoder {
    uint32_t table[1 + (1 << H2O_HUFFMAN_MAX_BITS)];
};

// The code for these counts, of which two or more are not 0, and the bytes that say it: how many, or 0 if there is no such code.
H2O_HUFFMAN_API size_t h2o_huffman_make(const uint32_t counts[256], struct h2o_huffman_encoder * encoder, uint8_t weights[H2O_HUFFMAN_MAX_WEIGHTS]);

// bytes that it makes of as many as counts say
H2O_HUFFMAN_API size_t h2o_huffman_size(const struct h2o_huffman_encoder * encoder, const uint32_t counts[256]);

// From the bytes that say it, which must be n; 0 if they are damaged.
H2O_HUFFMAN_API int h2o_huffman_read(const uint8_t * weights, size_t n, struct h2o_huffman_decoder * decoder);

// Only bytes that were counted. Bytes written, or 0 if they are not fewer than n.
H2O_HUFFMAN_API size_t h2o_huffman_encode(const struct h2o_huffman_encoder * encoder, const uint8_t * data, size_t n, uint8_t * out);

// 0 if the stream is damaged.
H2O_HUFFMAN_API int h2o_huffman_decode(const struct h2o_huffman_decoder * decoder, const uint8_t * stream, size_t n, uint8_t * out, size_t n_out);

H2O_HUFFMAN_API uint64_t h2o_xxh64(const void * data, size_t n, uint64_t seed);

#ifdef __cplusplus
}
#endif
