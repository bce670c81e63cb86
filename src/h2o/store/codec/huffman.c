#include "zstd.c"

#include "h2o/store/codec/huffman.h"

// One stream is shorter; four, of which zstd's format has none below this size, are decoded side by side.
enum { FOUR_STREAMS = 1024 };

_Static_assert(sizeof(HUF_CElt) <= sizeof(uint64_t) && sizeof(HUF_DTable) == sizeof(uint32_t), "tables");
_Static_assert(H2O_HUFFMAN_MAX_BITS <= HUF_TABLELOG_MAX && H2O_HUFFMAN_MAX_STREAM <= HUF_BLOCKSIZE_MAX, "limits");

static int h2o_flags(void) {
#if DYNAMIC_BMI2
    return __builtin_cpu_supports("bmi2") ? HUF_flags_bmi2 : 0; // zstd's own question takes longer than a short stream
#else
    return 0;
#endif
}

static unsigned h2o_last_counted(const uint32_t counts[256]) {
    unsigned last = 255;
    while (last > 0 && counts[last] == 0) {
        last--;
    }
    return last;
}

size_t h2o_huffman_make(const uint32_t counts[256], struct h2o_huffman_encoder * encoder, uint8_t weights[H2O_HUFFMAN_MAX_WEIGHTS]) {
    U64 work[HUF_WORKSPACE_SIZE_U64];
    HUF_CElt * table = (HUF_CElt *) encoder->table;

    const unsigned last = h2o_last_counted(counts);
    const size_t n_bits = HUF_buildCTable_wksp(table, counts, last, H2O_HUFFMAN_MAX_BITS, work, sizeof(work));
    if (HUF_isError(n_bits)) {
        return 0;
    }
    const size_t n = HUF_writeCTable_wksp(weights, H2O_HUFFMAN_MAX_WEIGHTS, table, last, (unsigned) n_bits, work, sizeof(work));
    return HUF_isError(n) ? 0 : n;
}

size_t h2o_huffman_size(const struct h2o_huffman_encoder * encoder, const uint32_t counts[256]) {
    return HUF_estimateCompressedSize((const HUF_CElt *) encoder->table, counts, h2o_last_counted(counts));
}

int h2o_huffman_read(const uint8_t * weights, size_t n, struct h2o_huffman_decoder * decoder) {
    U32 work[HUF_DECOMPRESS_WORKSPACE_SIZE_U32];
    decoder->table[0] = H2O_HUFFMAN_MAX_BITS*0x01000001u; // as HUF_CREATE_STATIC_DTABLEX2
    return HUF_readDTableX2_wksp(decoder->table, weights, n, work, sizeof(work), h2o_flags()) == n;
}

size_t h2o_huffman_encode(const struct h2o_huffman_encoder * encoder, const uint8_t * data, size_t n, uint8_t * out) {
    const HUF_CElt * table = (const HUF_CElt *) encoder->table;
    if (n < 2 || n > H2O_HUFFMAN_MAX_STREAM) {
        return 0;
    }
    const size_t res = n < FOUR_STREAMS ?
        HUF_compress1X_usingCTable(out, n - 1, data, n, table, h2o_flags()) :
        HUF_compress4X_usingCTable(out, n - 1, data, n, table, h2o_flags());
    return HUF_isError(res) ? 0 : res;
}

int h2o_huffman_decode(const struct h2o_huffman_decoder * decoder, const uint8_t * stream, size_t n, uint8_t * out, size_t n_out) {
    if (n == 0 || n_out == 0) {
        return 0;
    }
    const size_t res = n_out < FOUR_STREAMS ?
        HUF_decompress1X_usingDTable(out, n_out, stream, n, decoder->table, h2o_flags()) :
        HUF_decompress4X_usingDTable(out, n_out, stream, n, decoder->table, h2o_flags());
    return res == n_out;
}

uint64_t h2o_xxh64(const void * data, size_t n, uint64_t seed) {
    return XXH64(data, n, seed);
}
