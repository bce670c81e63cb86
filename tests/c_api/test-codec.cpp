// The codec, for sanitizers: blocks of all kinds come back exactly, damaged frames and rows are refused or give something, and a pool
// does both at once. Usage: test-codec [blocks [seed]]

#include "h2o/store/codec/entropy.h"
#include "h2o/store/codec/frame.h"
#include "h2o/store/codec/pool.h"
#include "h2o/store/codec/row-code.h"
#include "h2o/store/codec/codec.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

typedef std::vector<uint8_t> bytes_t;

static std::mt19937_64 rng;

static uint64_t below(uint64_t n) {
    return rng() % n;
}

static void check(bool ok, const char * what) {
    if (!ok) {
        fprintf(stderr, "test-codec: %s\n", what);
        exit(1);
    }
}

static bytes_t random_block(const h2o_codec_shape & shape) {
    bytes_t res(shape.bytes());
    const uint64_t kind = below(4);
    const uint64_t high = 1 + below(kind == 0 ? 4 : 256);
    for (size_t i = 0; i < res.size(); ++i) {
        const size_t channel = i % shape.row_bytes;
        res[i] = below(high);
        if (kind == 2 && i >= shape.row_bytes) {
            res[i] = res[i - shape.row_bytes] + below(3); // slow
        }
        if (kind == 3) {
            res[i] = channel*37 ^ (below(2)*128 + below(1 + channel % 16)); // channels of different size
        }
    }
    for (uint32_t r = 1; !res.empty() && below(2) && r < shape.n_rows; ++r) {
        std::memcpy(res.data() + r*(size_t) shape.row_bytes, res.data() + below(r)*shape.row_bytes, shape.row_bytes);
    }
    return res;
}

static void set_checksum(bytes_t & frame) {
    const size_t n = H2O_CODEC_HEADER_BYTES;
    const uint64_t size = frame.size();
    for (int i = 0; i < 8; ++i) {
        frame[n - 16 + i] = size >> 8*i;
    }
    const uint64_t hash = h2o_codec_hash(&frame[n], frame.size() - n, h2o_codec_hash(frame.data(), n - 8, 0));
    for (int i = 0; i < 8; ++i) {
        frame[n - 8 + i] = hash >> 8*i;
    }
}

static void damage_bytes(bytes_t & data) {
    for (uint64_t i = 1 + below(3); i > 0; --i) {
        uint8_t & byte = data[below(below(2) ? std::min<size_t>(data.size(), 90) : data.size())];
        byte = below(2) ? byte ^ 1 << below(8) : below(256);
    }
}

static bytes_t damaged(bytes_t frame) {
    damage_bytes(frame);
    if (below(5) == 0) {
        frame.resize(below(frame.size() + 20));
    }
    if (below(8) != 0 && frame.size() >= H2O_CODEC_HEADER_BYTES) {
        set_checksum(frame);
    }
    return frame;
}

// in allocations of exactly their size
static bytes_t decode(const bytes_t & frame) {
    const h2o_codec_frame read = h2o_codec_read_frame(frame.data(), frame.size());
    if (read.shape.bytes() > 1 << 22) {
        throw h2o_codec_error("too large");
    }
    bytes_t res(read.shape.bytes());
    h2o_codec_decode(read, res.data());
    return res;
}

// one encoded row, in allocations of exactly their size
static bytes_t decode_row(const h2o_codec_row_code & code, bytes_t row, uint32_t row_bytes) {
    const uint32_t end = row.size();
    row.resize(end + h2o_codec_row_code::READ_AHEAD);
    bytes_t res(row_bytes);
    code.decode(row.data(), &end, 0, 1, res.data());
    return res;
}

static bytes_t damaged_row(bytes_t row) {
    damage_bytes(row);
    if (below(5) == 0) {
        row.resize(below(row.size() + 20));
    }
    if (below(8) != 0 && row.size() >= 4) { // so that it is decoded
        const uint64_t hash = h2o_codec_hash(&row[4], row.size() - 4, row.size());
        std::memcpy(row.data(), &hash, 4);
    }
    return row;
}

// A code of a block's rows: each of them by itself, damaged ones, and all at once. Returns how many of the damaged ones were decoded.
static int check_rows(const bytes_t & block, const h2o_codec_shape & shape) {
    const h2o_codec_row_code code(block.data(), shape);
    bytes_t encoded;
    std::vector<uint32_t> ends;
    code.encode(block.data(), shape.n_rows, encoded, ends);

    int n_decoded = 0;
    for (uint32_t r = 0; r < shape.n_rows; ++r) {
        const bytes_t row(encoded.begin() + (r ? ends[r - 1] : 0), encoded.begin() + ends[r]);
        const auto    raw = block.begin() + r*(size_t) shape.row_bytes;
        check(decode_row(code, row, shape.row_bytes) == bytes_t(raw, raw + shape.row_bytes), "a row came back changed");
        try {
            decode_row(code, damaged_row(row), shape.row_bytes);
            n_decoded++;
        } catch (const h2o_codec_error &) {
        }
    }
    bytes_t res(block.size());
    encoded.resize(encoded.size() + h2o_codec_row_code::READ_AHEAD);
    code.decode(encoded.data(), ends.data(), 0, shape.n_rows, res.data());
    check(res == block, "rows came back changed");
    return n_decoded;
}

int main(int argc, char ** argv) {
    const int n_blocks = argc > 1 ? atoi(argv[1]) : 2000;
    rng.seed(argc > 2 ? atoi(argv[2]) : 0);

    int n_decoded = 0, n_refused = 0, n_rows_decoded = 0;
    std::vector<std::future<bytes_t>> beside;
    h2o_codec_pool pool(2, 8);
    for (int i = 0; i < n_blocks; ++i) {
        h2o_codec_shape shape;
        shape.type      = (h2o_codec_type) below(H2O_CODEC_TYPE_COUNT);
        shape.n_rows    = below(below(2) ? 4 : 120);
        shape.row_bytes = below(below(2) ? 4 : 40)*h2o_codec_block_bytes(shape.type);
        h2o_codec_options options;
        options.entropy    = (h2o_codec_entropy)   (below(2) ? H2O_CODEC_ENTROPY_AUTO   : below(H2O_CODEC_ENTROPY_COUNT));
        options.predictor  = (h2o_codec_predictor) (below(2) ? H2O_CODEC_PREDICTOR_AUTO : below(H2O_CODEC_PREDICTOR_COUNT));
        options.equal_rows = below(2);

        const bytes_t block = random_block(shape);
        const bytes_t frame = h2o_codec_encode(block.data(), shape, options);
        check(frame.size() <= block.size() + H2O_CODEC_HEADER_BYTES, "a frame is too long");
        check(decode(frame) == block, "a block came back changed");
        n_rows_decoded += check_rows(block, shape);

        for (int k = 0; k < 10; ++k) {
            const bytes_t other = damaged(frame);
            try {
                decode(other);
                n_decoded++;
            } catch (const h2o_codec_error &) {
                n_refused++;
            }
            if (auto result = pool.submit(H2O_CODEC_WORK_DECODE, [other] { return decode(other); })) {
                beside.push_back(std::move(*result));
            }
        }
    }
    pool.stop();
    int n_beside = 0;
    for (auto & result : beside) {
        try {
            result.get();
        } catch (const h2o_codec_error &) {
        }
        n_beside++;
    }
    const h2o_codec_pool_stats stats = pool.stats(H2O_CODEC_WORK_DECODE);
    check(stats.n_done == beside.size() && stats.n_done + stats.n_skipped == 10ull*n_blocks, "the pool has lost tasks");
    printf("test-codec: %d blocks; of damaged frames %d refused, %d decoded; %d beside; %d damaged rows decoded\n", n_blocks, n_refused, n_decoded,
            n_beside, n_rows_decoded);
    return 0;
}
