#include "h2o/store/codec/row-code.h"

#include "h2o/store/codec/entropy.h"
#include "h2o/store/codec/frame.h"
#include "h2o/store/codec/planes.h"
#include "h2o/store/codec/prefetch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

// An encoded row: u32 the lower half of the XXH64 of what follows; u16 bytes of the first stream; two streams of the left and the right
// half of the coded channels, which are decoded side by side; the other planes as they are.

namespace {

constexpr size_t HASH_BYTES   = 4;
constexpr size_t HEADER_BYTES = HASH_BYTES + 2;

constexpr size_t   MAX_GROUPS = 2;     // of a plane: their tables are read from memory for each few rows
constexpr uint32_t MAX_SAMPLE = 1024;  // rows
constexpr int      MAX_ROUNDS = 8;
constexpr float    MIN_GAIN   = 0.02f; // of a plane, to be worth the time that decoding takes
constexpr size_t   MAX_CODED  = 2*8*UINT16_MAX/h2o_codec_huffman::MAX_WORD_BITS; // channels: a stream's length has 16 bits
constexpr float    NEVER_CAME = 0.01f; // counted for a byte that did not come

using histogram = h2o_codec_huffman::histogram;

histogram sum_of(const std::vector<histogram> & channels, const std::vector<uint8_t> & group_of, size_t group) {
    histogram res{};
    for (size_t c = 0; c < channels.size(); ++c) {
        for (size_t s = 0; group_of[c] == group && s < res.size(); ++s) {
            res[s] += channels[c][s];
        }
    }
    return res;
}

// Bits of each byte in a code made for these counts.
std::array<float, 256> bits_of(const histogram & counts) {
    const float total = std::accumulate(counts.begin(), counts.end(), 0.0f) + NEVER_CAME*counts.size();
    std::array<float, 256> res;
    for (size_t s = 0; s < res.size(); ++s) {
        res[s] = std::log2(total/(counts[s] + NEVER_CAME));
    }
    return res;
}

// Channels that are alike, by Lloyd's rounds: each goes to the group whose code makes it shortest. They begin in the order of their mean
// magnitudes.
std::vector<uint8_t> group(const std::vector<histogram> & channels) {
    const size_t n_groups = std::min(MAX_GROUPS, channels.size());

    std::vector<uint64_t> magnitude(channels.size());
    for (size_t c = 0; c < channels.size(); ++c) {
        for (size_t s = 0; s < 256; ++s) {
            magnitude[c] += (uint64_t) channels[c][s]*(s & 0x7f);
        }
    }
    std::vector<size_t> order(channels.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return magnitude[a] < magnitude[b]; });

    std::vector<uint8_t> res(channels.size());
    for (size_t i = 0; i < order.size(); ++i) {
        res[order[i]] = i*n_groups/order.size();
    }
    for (int round = 0; round < MAX_ROUNDS; ++round) {
        std::vector<std::array<float, 256>> bits;
        for (size_t g = 0; g < n_groups; ++g) {
            bits.push_back(bits_of(sum_of(channels, res, g)));
        }
        const std::vector<uint8_t> before = res;
        for (size_t c = 0; c < channels.size(); ++c) {
            float least = INFINITY;
            for (size_t g = 0; g < n_groups; ++g) {
                float sum = 0;
                for (size_t s = 0; s < 256; ++s) {
                    sum += channels[c][s]*bits[g][s];
                }
                if (sum < least) {
                    least  = sum;
                    res[c] = g;
                }
            }
        }
        if (res == before) {
            break;
        }
    }
    return res;
}

// with the lowest byte first; compilers make eight loads of a loop over bytes
uint64_t read_u64(const uint8_t * p) {
    uint64_t res;
    std::memcpy(&res, p, sizeof(res));
    return __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? __builtin_bswap64(res) : res;
}

class bit_writer {
public:
    // to where there is room for all of it and 4 bytes
    explicit bit_writer(uint8_t * at) : at(at) {}

    void write(h2o_codec_huffman::word w) {
        bits |= (uint64_t) w.bits << n;
        n    += w.n_bits;
        if (n >= 32) {
            h2o_codec_write_u32(at, (uint32_t) bits);
            at    += 4;
            bits >>= 32;
            n     -= 32;
        }
    }

    // behind the last byte
    uint8_t * end() {
        h2o_codec_write_u32(at, (uint32_t) bits);
        return at + (n + 7)/8;
    }

private:
    uint8_t * at;
    uint64_t  bits = 0;
    uint32_t  n    = 0;
};

class bit_reader {
public:
    // at most so many bytes between two refills; an escape refills by itself
    static constexpr size_t PER_REFILL = 56/h2o_codec_huffman::MAX_BITS;

    // of n bytes and READ_AHEAD after them
    bit_reader(const uint8_t * p, size_t n) : p(p), n(n) {}

    void refill() { bits = read_u64(p + std::min(at >> 3, n)) >> (at & 7); }

    uint8_t next(const h2o_codec_huffman::entries_t & entries) {
        const uint32_t entry = entries[bits & (entries.size() - 1)];
        if (entry & h2o_codec_huffman::ESCAPE) {
            at += entry & (h2o_codec_huffman::ESCAPE - 1);
            refill();
            const uint8_t res = (uint8_t) bits;
            at += 8;
            refill();
            return res;
        }
        bits >>= entry & 63;
        at    += entry & 63;
        return entry >> 8;
    }

private:
    const uint8_t * p;
    const size_t    n;
    uint64_t bits = 0;
    size_t   at   = 0; // bits
};

// Both streams side by side, since each byte waits for the one before it.
void decode_streams(bit_reader left, bit_reader right, const std::vector<uint8_t> & group_of,
        const std::vector<h2o_codec_huffman::entries_t> & entries, uint8_t * out) {
    const size_t n = group_of.size()/2;

    const auto * const table = entries.data(); // which `out` is not taken to change
    const uint8_t * const l = group_of.data();
    const uint8_t * const r = l + n;
    for (size_t i = 0; i < n; i += bit_reader::PER_REFILL) {
        left.refill();
        right.refill();
        for (size_t j = i; j < std::min(n, i + bit_reader::PER_REFILL); ++j) {
            out[j]     = left.next(table[l[j]]);
            out[n + j] = right.next(table[r[j]]);
        }
    }
    if (group_of.size() % 2 == 1) {
        right.refill();
        out[2*n] = right.next(table[r[n]]);
    }
}

uint32_t hash_of(const uint8_t * data, size_t n) {
    return (uint32_t) h2o_codec_hash(data + HASH_BYTES, n - HASH_BYTES, n);
}

} // namespace

h2o_codec_row_code::h2o_codec_row_code(const uint8_t * rows, const h2o_codec_shape & shape) : type(shape.type), row_bytes(shape.row_bytes), mean_row_bytes(HEADER_BYTES + 1) {
    const uint32_t block_bytes = h2o_codec_block_bytes(type);
    const uint32_t n_rows      = std::min(shape.n_rows, MAX_SAMPLE);

    std::vector<histogram> channels(row_bytes);
    std::vector<uint8_t>   split(row_bytes);
    for (uint32_t r = 0; r < n_rows; ++r) {
        h2o_codec_split(type, rows + (size_t) r*row_bytes, row_bytes/block_bytes, split.data());
        for (uint32_t i = 0; i < row_bytes; ++i) {
            channels[i][split[i]]++;
        }
    }
    uint32_t begin = 0;
    for (const h2o_codec_plane & p : h2o_codec_planes_of(type)) {
        planes.push_back({ p.width(row_bytes, block_bytes), false });
        add_plane(planes.back(), { channels.begin() + begin, channels.begin() + begin + planes.back().width }, n_rows);
        begin += planes.back().width;
    }
}

void h2o_codec_row_code::add_plane(plane & p, const std::vector<histogram> & channels, uint32_t n_rows) {
    if (p.width == 0) {
        return;
    }
    const std::vector<uint8_t> found = group(channels);

    std::vector<h2o_codec_huffman> codes;
    uint64_t n_bits = 0;
    for (size_t g = 0; g <= *std::max_element(found.begin(), found.end()); ++g) {
        const histogram counts = sum_of(channels, found, g);
        codes.emplace_back(counts);
        for (size_t s = 0; s < counts.size(); ++s) {
            n_bits += (uint64_t) counts[s]*codes.back().words[s].n_bits;
        }
    }
    p.is_coded = n_bits < (1 - MIN_GAIN)*8*n_rows*p.width && group_of.size() + p.width <= MAX_CODED;
    mean_row_bytes += p.is_coded ? n_bits/8.0/n_rows : p.width;
    if (!p.is_coded) {
        return;
    }
    for (const uint8_t g : found) {
        group_of.push_back(words.size() + g);
    }
    for (const h2o_codec_huffman & code : codes) {
        words.push_back(code.words);
        entries.push_back(code.entries);
    }
}

uint8_t * h2o_codec_row_code::write_stream(const uint8_t * bytes, size_t begin, size_t end, uint8_t * out) const {
    bit_writer bits(out);
    for (size_t i = begin; i < end; ++i) {
        bits.write(words[group_of[i]][bytes[i]]);
    }
    return bits.end();
}

void h2o_codec_row_code::encode(const uint8_t * rows, uint32_t n, std::vector<uint8_t> & out, std::vector<uint32_t> & ends) const {
    const size_t first   = out.size();
    const size_t n_coded = group_of.size();

    std::vector<uint8_t> split(row_bytes), coded(n_coded), raw(row_bytes - n_coded);
    std::vector<uint8_t> encoded(HEADER_BYTES + row_bytes + n_coded*h2o_codec_huffman::MAX_WORD_BITS/8 + 8);
    for (uint32_t r = 0; r < n; ++r) {
        h2o_codec_split(type, rows + (size_t) r*row_bytes, row_bytes/h2o_codec_block_bytes(type), split.data());

        const uint8_t * from = split.data();
        uint8_t * to[2] = { raw.data(), coded.data() };
        for (const plane & p : planes) {
            to[p.is_coded] = std::copy_n(from, p.width, to[p.is_coded]);
            from += p.width;
        }
        uint8_t * const left  = encoded.data() + HEADER_BYTES;
        uint8_t * const right = write_stream(coded.data(), 0, n_coded/2, left);
        uint8_t * const end   = std::copy(raw.begin(), raw.end(), write_stream(coded.data(), n_coded/2, n_coded, right));
        encoded[HASH_BYTES]     = (right - left) & 0xff;
        encoded[HASH_BYTES + 1] = (right - left) >> 8;
        h2o_codec_write_u32(encoded.data(), hash_of(encoded.data(), end - encoded.data()));

        out.insert(out.end(), encoded.data(), end);
        ends.push_back(out.size() - first);
    }
}

void h2o_codec_row_code::prefetch() const {
    h2o_codec_prefetch(entries.data(), entries.size()*sizeof(entries[0]));
    h2o_codec_prefetch(group_of.data(), group_of.size());
}

void h2o_codec_row_code::decode(const uint8_t * data, const uint32_t * ends, uint32_t first, uint32_t n, uint8_t * out) const {
    // kept: making room takes a part of the time of a row
    static thread_local std::vector<uint8_t> coded;
    coded.resize(group_of.size());

    const uint32_t begin = first == 0 ? 0 : ends[first - 1];
    for (uint32_t r = first, at = begin; r < first + n; at = ends[r++], out += row_bytes) {
        decode_row(data + (at - begin), ends[r] - at, coded.data(), out);
    }
}

void h2o_codec_row_code::decode_row(const uint8_t * data, size_t n, uint8_t * coded, uint8_t * out) const {
    const size_t n_raw = row_bytes - group_of.size();
    if (n < HEADER_BYTES + n_raw || (uint32_t) read_u64(data) != hash_of(data, n)) {
        throw h2o_codec_error("[codec] the row is damaged: its checksum is wrong");
    }
    const uint8_t * streams = data + HEADER_BYTES;
    const uint8_t * raw     = data + n - n_raw;
    const size_t    n_left  = std::min<size_t>(read_u64(data) >> 32 & 0xffff, raw - streams);

    decode_streams({ streams, n_left }, { streams + n_left, raw - streams - n_left }, group_of, entries, coded);
    const uint8_t * next = coded;
    std::array<const uint8_t *, H2O_CODEC_MAX_PLANES> bytes;
    for (size_t i = 0; i < planes.size(); ++i) {
        const uint8_t * & from = planes[i].is_coded ? next : raw;
        bytes[i] = from;
        from += planes[i].width;
    }
    h2o_codec_merge(type, bytes.data(), row_bytes/h2o_codec_block_bytes(type), out);
}

size_t h2o_codec_row_code::n_bytes() const {
    return words.size()*(sizeof(words[0]) + sizeof(entries[0])) + group_of.size();
}
