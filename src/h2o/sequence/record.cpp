#include "h2o/sequence/record.h"

#include "llama-io.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

static constexpr uint32_t MAGIC   = 0x006f3268; // "h2o"
static constexpr uint32_t VERSION = 9;

// What both sides must agree on.
static std::vector<uint32_t> header(const h2o_config & config, size_t n_layer) {
    uint32_t alpha_bits;
    uint64_t ratio_bits;
    memcpy(&alpha_bits, &config.ema_alpha,  sizeof(alpha_bits));
    memcpy(&ratio_bits, &config.keep_ratio, sizeof(ratio_bits));

    std::vector<uint32_t> res = {
        MAGIC, VERSION, config.chunk_size, config.local_window, config.heavy_budget, config.sink_tokens,
        (uint32_t) config.schedule, config.lookup_budget, config.has_tiles() ? config.tile : 0, config.has_key_index(), config.evict, config.has_cold_store(), (uint32_t) n_layer,
        config.block_tokens, config.shared_heads, alpha_bits, (uint32_t) ratio_bits, (uint32_t) (ratio_bits >> 32),
    };
    for (const uint64_t word : config.dense_layers) {
        res.push_back(word);
        res.push_back(word >> 32);
    }
    for (const char * c = config.scorer->name(); *c; ++c) {
        res.push_back(*c);
    }
    return res;
}

template <typename T>
static void write_array(llama_io_write_i & io, const std::vector<T> & values) {
    if (!values.empty()) {
        io.write(values.data(), values.size()*sizeof(T));
    }
}

template <typename T>
static std::vector<T> read_array(llama_io_read_i & io, size_t n) {
    std::vector<T> res(n);
    if (n > 0) {
        io.read(res.data(), n*sizeof(T));
    }
    return res;
}

void h2o_record_write(llama_io_write_i & io, const h2o_config & config, const h2o_record & record) {
    write_array(io, header(config, record.layers.size()));
    write_array(io, std::vector<uint32_t> { record.n_tokens, record.n_scored, record.first });
    for (const auto & layer : record.layers) {
        io.write(&layer.n_built, sizeof(layer.n_built));
        write_array(io, layer.memory);
        write_array(io, layer.memory_scores);
        write_array(io, layer.scores);

        const uint32_t has_pending = !layer.pending.empty();
        io.write(&has_pending, sizeof(has_pending));
        write_array(io, layer.pending);
        write_array(io, layer.k);
        write_array(io, layer.v);
    }
}

static void check(bool ok) {
    if (!ok) {
        throw std::runtime_error("[h2o] this state is damaged");
    }
}

// the memory set of one head: -1, then positions of n_built chunks, which holds nothing after them
static bool is_memory(const h2o_config & config, const int32_t * memory, uint32_t n_built) {
    const uint32_t n = n_built*config.chunk_size;

    const int32_t * end   = memory + config.memory_size();
    const int32_t * first = end - config.n_memory(n);

    return std::all_of(memory, first, [](int32_t pos) { return pos == -1; }) &&
        std::all_of(first, end, [&](int32_t pos) { return pos >= 0 && pos < (int32_t) n; }) &&
        std::adjacent_find(first, end, [](int32_t a, int32_t b) { return a >= b; }) == end;
}

h2o_record h2o_record_read(llama_io_read_i & io, const h2o_sequence & sequence, bool with_kv) {
    const auto & config = sequence.config;

    const auto expected = header(config, sequence.layers.size());
    const auto found    = read_array<uint32_t>(io, expected.size());
    if (found[0] == MAGIC && found[1] != VERSION) {
        throw std::runtime_error("[h2o] this state is of version " + std::to_string(found[1]) + ", expected " + std::to_string(VERSION));
    }
    if (found != expected) {
        throw std::runtime_error("[h2o] this state was made with other H2O parameters, another model or no H2O");
    }

    const auto sizes = read_array<uint32_t>(io, 3);

    h2o_record res;
    res.n_tokens = sizes[0];
    res.n_scored = sizes[1];
    res.first    = sizes[2];
    check(res.n_tokens <= sequence.layout.n_positions() && res.n_scored <= res.n_tokens && res.first <= res.n_tokens);

    const uint32_t n_closed = res.n_tokens == 0 ? 0 : (res.n_tokens - 1)/config.chunk_size;

    for (const auto & layer : sequence.layers) {
        h2o_record::layer r;
        io.read(&r.n_built, sizeof(r.n_built));
        // all chunks but the open one, which may be complete, have a memory set: it is there to build the next one
        check(r.n_built == n_closed || (r.n_built == n_closed + 1 && res.n_tokens % config.chunk_size == 0));
        check(res.layers.empty() || r.n_built == res.layers[0].n_built);

        const uint32_t chunk_start = r.n_built*config.chunk_size;
        check(chunk_start <= res.n_tokens);
        check(!sequence.layout.is_compact || res.first == chunk_start);

        const size_t n_memory = layer.n_head_kv*config.memory_size();

        r.memory        = read_array<int32_t>(io, n_memory);
        r.memory_scores = read_array<float>  (io, n_memory);
        r.scores        = read_array<float>  (io, (size_t) layer.n_head_kv*(res.n_tokens - res.first));

        uint32_t has_pending;
        io.read(&has_pending, sizeof(has_pending));
        check(has_pending <= 1);
        if (has_pending) {
            r.pending = read_array<float>(io, layer.n_head_kv*(config.memory_size() + res.n_tokens - chunk_start));
        }

        for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
            check(is_memory(config, r.memory.data() + h*config.memory_size(), r.n_built));
        }
        if (with_kv) {
            const size_t n_rows = config.n_memory(chunk_start) + res.n_tokens - chunk_start;
            r.k = read_array<uint8_t>(io, n_rows*sequence.k_rows(layer.il).t->nb[1]);
            r.v = read_array<uint8_t>(io, n_rows*sequence.v_rows(layer.il).t->nb[1]);
        }
        res.layers.push_back(std::move(r));
    }
    return res;
}

void h2o_chunk_records_write(llama_io_write_i & io, const h2o_sequence & sequence) {
    const uint32_t n = sequence.chunk_records().size();
    io.write(&n, sizeof(n));

    for (const auto & [chunk, record] : sequence.chunk_records()) {
        h2o_record_write(io, sequence.config, record);
    }
}

std::map<uint32_t, h2o_record> h2o_chunk_records_read(llama_io_read_i & io, const h2o_sequence & sequence, uint32_t n_tokens) {
    const uint32_t S = sequence.config.chunk_size;

    uint32_t n;
    io.read(&n, sizeof(n));
    check(n <= n_tokens/S);

    std::map<uint32_t, h2o_record> res;
    for (uint32_t i = 0; i < n; ++i) {
        h2o_record r = h2o_record_read(io, sequence, /*with_kv =*/ false);

        // made when the chunk after it began
        check(r.n_tokens > 0 && r.n_tokens <= n_tokens && r.first == r.n_tokens);
        check(r.layers[0].n_built*S == r.n_tokens);

        const uint32_t chunk = r.layers[0].n_built - 1;
        check(res.empty() || chunk > res.rbegin()->first);
        res.emplace(chunk, std::move(r));
    }
    return res;
}

void h2o_text_write(llama_io_write_i & io, const h2o_tiles & tiles) {
    write_array(io, tiles.text());
}

std::vector<int32_t> h2o_text_read(llama_io_read_i & io, uint32_t n_tokens) {
    return read_array<int32_t>(io, n_tokens);
}

void h2o_lookups_write(llama_io_write_i & io, const h2o_tiles & tiles, uint32_t n_tokens) {
    const auto & log = tiles.log();
    const auto   end = std::partition_point(log.begin(), log.end(), [&](const auto & row) { return row.query < (int32_t) n_tokens; });

    const uint32_t start = std::min(tiles.start(), n_tokens);
    const uint64_t n     = end - log.begin();

    io.write(&start, sizeof(start));
    io.write(&n, sizeof(n));
    write_array(io, h2o_lookup_log(log.begin(), end));
}

h2o_lookup_log h2o_lookups_read(llama_io_read_i & io, const h2o_sequence & sequence, uint32_t n_tokens, uint32_t & start) {
    const auto & tiles = *sequence.tiles;

    uint64_t n;
    io.read(&start, sizeof(start));
    io.read(&n, sizeof(n));
    check(start <= n_tokens && n <= (uint64_t) n_tokens*tiles.n_new());

    const auto log = read_array<h2o_lookup_row>(io, n);
    uint32_t n_asked = 0; // by the query so far
    for (size_t i = 0; i < n; ++i) {
        const auto [pos, query] = log[i];
        const bool is_first = i == 0 || query != log[i - 1].query;

        check(query >= 0 && query < (int32_t) n_tokens && pos >= 0 && pos < (int32_t) sequence.config.chunk_start(query));
        check(i == 0 || (is_first ? query > log[i - 1].query : pos > log[i - 1].pos));

        n_asked = is_first ? 1 : n_asked + 1;
        check(n_asked <= tiles.n_new());
    }
    return log;
}
