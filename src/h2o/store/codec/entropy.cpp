#include "h2o/store/codec/entropy.h"

#include "lz4.h"
#include "xxhash.h"

#define ZSTD_STATIC_LINKING_ONLY
#include "zstd.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

namespace {

struct free_context {
    void operator()(ZSTD_CCtx * context) const { ZSTD_freeCCtx(context); }
    void operator()(ZSTD_DCtx * context) const { ZSTD_freeDCtx(context); }
};

// Large, so each thread keeps its own until it ends.
ZSTD_CCtx * compressor() {
    thread_local std::unique_ptr<ZSTD_CCtx, free_context> context(ZSTD_createCCtx());
    if (!context) {
        throw std::bad_alloc();
    }
    return context.get();
}

ZSTD_DCtx * decompressor() {
    thread_local std::unique_ptr<ZSTD_DCtx, free_context> context(ZSTD_createDCtx());
    if (!context) {
        throw std::bad_alloc();
    }
    return context.get();
}

// 0 where it fails; a result that does not fit into `capacity` is a failure
size_t zstd(const uint8_t * data, size_t n, bool may_repeat, uint8_t * out, size_t capacity) {
    ZSTD_CCtx * context = compressor();
    ZSTD_CCtx_reset(context, ZSTD_reset_session_and_parameters);
    ZSTD_CCtx_setParameter(context, ZSTD_c_format, ZSTD_f_zstd1_magicless);
    // The lowest level looks for matches at hardly any place. It would also leave out the Huffman code.
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, may_repeat ? 1 : ZSTD_minCLevel());
    ZSTD_CCtx_setParameter(context, ZSTD_c_literalCompressionMode, ZSTD_lcm_huffman);

    const size_t res = ZSTD_compress2(context, out, capacity, data, n);
    return ZSTD_isError(res) ? 0 : res;
}

bool is_constant(const uint8_t * data, size_t n) {
    return n > 0 && std::memcmp(data, data + 1, n - 1) == 0;
}

} // namespace

h2o_codec_entropy h2o_codec_compress(
        h2o_codec_entropy entropy, const uint8_t * data, size_t n, bool may_repeat, std::vector<uint8_t> & out) {
    const size_t start   = out.size();
    const bool   is_auto = entropy == H2O_CODEC_ENTROPY_AUTO;
    if ((is_auto || entropy == H2O_CODEC_ENTROPY_RLE) && n > 1 && is_constant(data, n)) {
        out.push_back(data[0]);
        return H2O_CODEC_ENTROPY_RLE;
    }

    // what is not shorter by at least a byte stays as it is
    const size_t capacity = n > 0 ? n - 1 : 0;
    size_t       n_out    = 0;
    out.resize(start + n);
    if (is_auto || entropy == H2O_CODEC_ENTROPY_ZSTD) {
        entropy = H2O_CODEC_ENTROPY_ZSTD;
        n_out   = zstd(data, n, false, out.data() + start, capacity);
        if (may_repeat) {
            std::vector<uint8_t> other(capacity);
            const size_t n_other = zstd(data, n, true, other.data(), capacity);
            if (n_other > 0 && (n_out == 0 || n_other < n_out)) {
                std::copy_n(other.begin(), n_other, out.begin() + start);
                n_out = n_other;
            }
        }
    } else if (entropy == H2O_CODEC_ENTROPY_LZ4 && n <= LZ4_MAX_INPUT_SIZE) {
        n_out = LZ4_compress_default((const char *) data, (char *) out.data() + start, (int) n, (int) capacity);
    }

    if (n_out == 0) {
        std::copy_n(data, n, out.begin() + start);
        return H2O_CODEC_ENTROPY_RAW;
    }
    out.resize(start + n_out);
    return entropy;
}

void h2o_codec_decompress(h2o_codec_entropy entropy, const uint8_t * data, size_t n, uint8_t * out, size_t n_out) {
    bool ok = false;
    switch (entropy) {
        case H2O_CODEC_ENTROPY_RAW:
            ok = n == n_out;
            if (ok) {
                std::copy_n(data, n, out);
            }
            break;
        case H2O_CODEC_ENTROPY_RLE:
            ok = n == 1;
            if (ok) {
                std::fill_n(out, n_out, data[0]);
            }
            break;
        case H2O_CODEC_ENTROPY_LZ4:
            ok = n <= LZ4_MAX_INPUT_SIZE && n_out <= LZ4_MAX_INPUT_SIZE &&
                LZ4_decompress_safe((const char *) data, (char *) out, (int) n, (int) n_out) == (int) n_out;
            break;
        case H2O_CODEC_ENTROPY_ZSTD: {
            ZSTD_DCtx * context = decompressor();
            ZSTD_DCtx_reset(context, ZSTD_reset_session_and_parameters);
            ZSTD_DCtx_setParameter(context, ZSTD_d_format, ZSTD_f_zstd1_magicless);
            ok = ZSTD_decompressDCtx(context, out, n_out, data, n) == n_out;
            break;
        }
        default: break;
    }
    if (!ok) {
        throw h2o_codec_error("[codec] the frame is damaged: a stream does not give the bytes that it should");
    }
}

size_t h2o_codec_probe(const uint8_t * data, size_t n) {
    std::vector<char> out(LZ4_compressBound((int) n));
    return LZ4_compress_default((const char *) data, out.data(), (int) n, (int) out.size());
}

uint64_t h2o_codec_hash(const uint8_t * data, size_t n, uint64_t seed) {
    return XXH64(data, n, seed);
}
