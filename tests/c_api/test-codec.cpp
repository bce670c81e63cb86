// The codec, for sanitizers: blocks of all kinds come back exactly, by their own code and by that of others; damaged ones are refused or
// give something; and a pool does its work. Usage: test-codec [blocks [seed]]

#include "h2o/store/codec/block.h"
#include "h2o/store/codec/pool.h"

#include <algorithm>
#include <atomic>
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

static bytes_t random_rows(const h2o_codec_shape & shape) {
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

// What is stored of a block.
struct stored {
    bytes_t code;
    h2o_codec_block block;
    bytes_t units;
};

// Rows [first, first + n), with all that is read in allocations of exactly their size.
static bytes_t decode(const stored & s, const h2o_codec_shape & shape, uint32_t first, uint32_t n) {
    const bytes_t code = s.code;
    h2o_codec_block block = s.block;
    block.code = std::make_shared<h2o_codec_code>(shape.type, shape.row_bytes, s.block.code->unit_rows, code.data(), code.size());
    block.check(s.units.size());

    bytes_t res((size_t) n*shape.row_bytes), part;
    block.decode(first, n, res.data(), [&](uint32_t begin, uint32_t end) {
        part = bytes_t(s.units.begin() + begin, s.units.begin() + end);
        return part.data();
    });
    return res;
}

static void damage(bytes_t & data) {
    if (!data.empty()) {
        for (uint64_t i = 1 + below(3); i > 0; --i) {
            uint8_t & byte = data[below(below(2) ? std::min<size_t>(data.size(), 20) : data.size())];
            byte = below(2) ? byte ^ 1 << below(8) : below(256);
        }
    }
    if (below(5) == 0) {
        data.resize(below(data.size() + 20));
    }
}

static void damage(std::vector<uint32_t> & numbers) {
    if (!numbers.empty()) {
        uint32_t & number = numbers[below(numbers.size())];
        number = below(2) ? number + below(7) - 3 : below(UINT32_MAX);
    }
}

static stored damaged(stored s) {
    switch (below(6)) {
        case 0:  damage(s.code);                           break;
        case 1:  damage(s.block.numbers);                  break;
        case 2:  damage(s.block.ends);                     break;
        case 3:  s.block.n_rows   += below(2) || s.block.n_rows == 0 ? 1 : -1;    break;
        case 4:  s.block.n_stored += below(2) ? 1 : -1;    break;
        default: damage(s.units);                          break;
    }
    if (below(8) != 0) { // so that it is decoded
        uint32_t begin = 0;
        for (const uint32_t end : s.block.ends) {
            const size_t at = begin + H2O_CODEC_CHECKSUM_BYTES;
            if (end <= s.units.size() && at <= end) {
                const uint64_t hash = h2o_xxh64(s.units.data() + at, end - at, end - at);
                for (size_t i = 0; i < H2O_CODEC_CHECKSUM_BYTES; ++i) {
                    s.units[begin + i] = hash >> 8*i;
                }
            }
            begin = end;
        }
    }
    return s;
}

static void check_pool() {
    std::atomic<uint32_t> n_done{0};
    uint32_t n_taken = 0;
    {
        h2o_codec_pool pool(3, 8);
        for (int i = 0; i < 5000; ++i) {
            n_taken += pool.submit([&n_done] { n_done++; });
        }
        check(pool.queue_peak() >= 1 && pool.queue_peak() <= 8, "a queue was too long");
    }
    check(n_taken > 0 && n_done == n_taken, "a pool has lost tasks");
}

int main(int argc, char ** argv) {
    const int n_blocks = argc > 1 ? atoi(argv[1]) : 2000;
    rng.seed(argc > 2 ? atoi(argv[2]) : 0);

    int n_decoded = 0, n_refused = 0;
    for (int i = 0; i < n_blocks; ++i) {
        h2o_codec_shape shape;
        shape.type      = (h2o_codec_type) below(H2O_CODEC_TYPE_COUNT);
        shape.n_rows    = below(below(2) ? 4 : 120);
        shape.row_bytes = below(below(2) ? 4 : below(20) ? 40 : 40000)*h2o_codec_block_bytes(shape.type);
        h2o_codec_options options;
        options.predictor  = (h2o_codec_predictor) (below(2) ? H2O_CODEC_PREDICTOR_AUTO : below(H2O_CODEC_PREDICTOR_COUNT));
        options.unit_rows  = below(2) ? 1 : below(9);
        options.for_others = below(2);

        const bytes_t rows = random_rows(shape);
        stored s;
        const auto other_code = options.for_others ? std::make_shared<h2o_codec_code>(random_rows(shape).data(), shape, options) : nullptr;
        s.block = h2o_codec_encode(rows.data(), shape, options, other_code, below(2), s.units);
        s.code  = s.block.code->write();

        check(s.units.size() <= rows.size() + H2O_CODEC_CHECKSUM_BYTES*s.block.ends.size(), "a unit is too long");
        check(decode(s, shape, 0, shape.n_rows) == rows, "a block came back changed");
        const uint32_t first = below(shape.n_rows + 1);
        const uint32_t n     = below(shape.n_rows - first + 1);
        const auto     begin = rows.begin() + (size_t) first*shape.row_bytes;
        check(decode(s, shape, first, n) == bytes_t(begin, begin + (size_t) n*shape.row_bytes), "rows came back changed");

        for (int k = 0; k < 20; ++k) {
            const stored other = damaged(s);
            try {
                decode(other, shape, 0, other.block.n_rows);
                n_decoded++;
            } catch (const h2o_codec_error &) {
                n_refused++;
            }
        }
    }
    check_pool();
    printf("test-codec: %d blocks; of damaged ones %d refused, %d decoded\n", n_blocks, n_refused, n_decoded);
    return 0;
}
