#include "h2o/store/codec/block.h"

#include "h2o/store/codec/prefetch.h"

#include <algorithm>
#include <unordered_map>

// Of each row its number among those that are not equal to an earlier one, which are appended to `stored`.
static std::vector<uint32_t> numbers_of(const uint8_t * rows, uint32_t n_rows, size_t row_bytes, std::vector<uint32_t> & stored) {
    std::vector<uint32_t> res(n_rows);

    std::unordered_map<uint64_t, uint32_t> seen;
    seen.reserve(n_rows);
    for (uint32_t r = 0; r < n_rows; ++r) {
        const uint8_t * row    = rows + r*row_bytes;
        const uint32_t  number = seen.emplace(h2o_xxh64(row, row_bytes, 0), stored.size()).first->second;
        // other rows may have the same hash: only the first of them is found again
        const bool is_equal = number < stored.size() && std::equal(row, row + row_bytes, rows + stored[number]*row_bytes);
        res[r] = is_equal ? number : stored.size();
        if (!is_equal) {
            stored.push_back(r);
        }
    }
    return res;
}

h2o_codec_block h2o_codec_encode(const uint8_t * rows, const h2o_codec_shape & shape, const h2o_codec_options & options,
        std::shared_ptr<const h2o_codec_code> code, bool may_repeat, std::vector<uint8_t> & out) {
    const uint32_t n_rows    = shape.n_rows;
    const size_t   row_bytes = shape.row_bytes;

    h2o_codec_block res;
    res.n_rows   = n_rows;
    res.n_stored = n_rows;

    std::vector<uint8_t> kept;
    if (may_repeat) {
        std::vector<uint32_t> stored;
        res.numbers = numbers_of(rows, n_rows, row_bytes, stored);
        if ((n_rows - stored.size())*row_bytes > n_rows*sizeof(res.numbers[0])) {
            res.n_stored = stored.size();
            for (const uint32_t r : stored) {
                kept.insert(kept.end(), rows + r*row_bytes, rows + (r + 1)*row_bytes);
            }
            rows = kept.data();
        } else {
            res.numbers.clear();
        }
    }
    res.code = code ? std::move(code) : std::make_shared<const h2o_codec_code>(rows, h2o_codec_shape { shape.type, res.n_stored, shape.row_bytes }, options);
    for (uint32_t r = 0; r < res.n_stored; ) {
        const uint32_t n = std::min(res.code->unit_rows, res.n_stored - r);
        res.code->encode(rows + r*row_bytes, n, out);
        res.ends.push_back(out.size());
        r += n;
    }
    return res;
}

void h2o_codec_block::decode(uint32_t first, uint32_t n, uint8_t * out, const reader & read) const {
    const size_t row_bytes = code->row_bytes;
    const size_t unit_rows = code->unit_rows;
    const auto rows_of = [&](size_t unit) { return std::min(unit_rows, n_stored - unit*unit_rows); };

    // whole units that lie where their rows do
    if (n > 0 && numbers.empty() && first%unit_rows == 0 && (n%unit_rows == 0 || first + n == n_rows)) {
        const uint32_t begin_unit = unit_of(first);
        const uint32_t end_unit   = unit_of(first + n - 1) + 1;
        const uint8_t * bytes = read(begin_of(begin_unit), begin_of(end_unit));
        for (uint32_t unit = begin_unit; unit < end_unit; ++unit) {
            const size_t n_bytes = ends[unit] - begin_of(unit);
            code->decode(bytes, n_bytes, rows_of(unit), out);
            bytes += n_bytes;
            out   += rows_of(unit)*row_bytes;
        }
        return;
    }
    static thread_local std::vector<uint8_t> rows; // of a unit
    uint32_t decoded = UINT32_MAX;
    for (uint32_t r = first; r < first + n; ++r, out += row_bytes) {
        const uint32_t unit = unit_of(r);
        if (unit != decoded) {
            rows.resize(rows_of(unit)*row_bytes);
            code->decode(read(begin_of(unit), ends[unit]), ends[unit] - begin_of(unit), rows_of(unit), rows.data());
            decoded = unit;
        }
        const size_t number = numbers.empty() ? r : numbers[r];
        std::copy_n(rows.data() + number%unit_rows*row_bytes, row_bytes, out);
    }
}

std::pair<uint32_t, uint32_t> h2o_codec_block::bytes_of(uint32_t first, uint32_t n) const {
    const uint32_t unit = unit_of(first);
    return { begin_of(unit), ends[numbers.empty() ? unit_of(first + n - 1) : unit] };
}

void h2o_codec_block::prefetch(uint32_t first) const {
    if (code) {
        h2o_codec_prefetch(code.get(), sizeof(*code));
        h2o_codec_prefetch(numbers.empty() ? &ends[std::max(first/code->unit_rows, 1u) - 1] : &numbers[first], 2*sizeof(uint32_t));
    }
}

void h2o_codec_block::check(size_t n_bytes) const {
    uint32_t n_found = numbers.empty() ? n_rows : 0;
    bool     is_good = numbers.empty() || numbers.size() == n_rows;
    for (const uint32_t number : numbers) {
        is_good = is_good && number <= n_found;
        n_found += number == n_found;
    }
    const uint32_t unit_rows = code->unit_rows;
    if (!is_good || n_found != n_stored || ends.size() != n_stored/unit_rows + (n_stored%unit_rows > 0) ||
            !std::is_sorted(ends.begin(), ends.end()) || (ends.empty() ? 0 : ends.back()) != n_bytes) {
        throw h2o_codec_error("[codec] damaged: rows or units that are not there");
    }
}
