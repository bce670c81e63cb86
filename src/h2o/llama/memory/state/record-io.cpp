#include "h2o/llama/memory/state/record-io.h"

#include "h2o/llama/memory/bytes.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

static constexpr uint32_t MAGIC   = 0x006f3268; // "h2o"
static constexpr uint32_t VERSION = 19;

// What both sides must agree on.
static std::vector<uint32_t> header(const h2o_config & config, size_t n_layer) {
    const std::string key = config.state_key();

    std::vector<uint32_t> res = { MAGIC, VERSION, (uint32_t) n_layer, (uint32_t) key.size() };
    res.insert(res.end(), key.begin(), key.end());
    return res;
}

template <typename T>
static void write_array(llama_io_write_i & io, const std::vector<T> & values) {
    if (!values.empty()) {
        io.write(values.data(), values.size()*sizeof(T));
    }
}

// In blocks: a damaged size must not ask for memory that the state does not fill.
template <typename T>
static std::vector<T> read_array(llama_io_read_i & io, size_t n) {
    constexpr size_t BLOCK = (1 << 20)/sizeof(T);

    std::vector<T> res;
    while (res.size() < n) {
        const size_t begin = res.size();
        res.resize(std::min(n, begin + BLOCK));
        io.read(res.data() + begin, (res.size() - begin)*sizeof(T));
    }
    return res;
}

void h2o_checkpoint_write(llama_io_write_i & io, const llama_h2o_kv & kv, const h2o_checkpoint & record) {
    write_array(io, header(kv.memory.config, record.layers.size()));
    write_array(io, std::vector<uint32_t> { record.n_tokens, record.n_scored, record.first, record.is_scored,
            record.is_by_hand | (uint32_t) record.is_moved << 1 });

    for (const auto & layer : record.layers) {
        io.write(&layer.n_built, sizeof(layer.n_built));
        write_array(io, layer.memory);
        write_array(io, layer.memory_scores);
        write_array(io, layer.scores);
    }

    static const std::vector<uint8_t> none;
    const auto & side = record.side ? *record.side : none;
    const uint64_t hash = io.is_counting() ? 0 : h2o_hash(side.data(), side.size()); // upstream checks nothing
    write_array(io, std::vector<uint64_t> { side.size(), hash });
    write_array(io, side);
}

static void check(bool ok) {
    if (!ok) {
        throw std::runtime_error("[h2o] this state is damaged");
    }
}

// the memory set of one head: positions of the closed chunks, ascending
static bool is_memory(const int32_t * first, const int32_t * end, uint32_t n_closed) {
    return std::all_of(first, end, [&](int32_t pos) { return pos >= 0 && pos < (int32_t) n_closed; }) &&
        std::adjacent_find(first, end, [](int32_t a, int32_t b) { return a >= b; }) == end;
}

h2o_checkpoint h2o_checkpoint_read(llama_io_read_i & io, const llama_h2o_kv & kv) {
    const auto & config = kv.memory.config;
    const auto & store  = kv.memory.store;

    const auto expected = header(config, kv.state().layers.size());
    const auto found    = read_array<uint32_t>(io, expected.size());
    if (found[0] == MAGIC && found[1] != VERSION) {
        throw std::runtime_error("[h2o] this state is of version " + std::to_string(found[1]) + ", expected " +
                std::to_string(VERSION));
    }
    if (found != expected) {
        throw std::runtime_error("[h2o] this state was made with other H2O parameters, another model or no H2O");
    }

    const auto sizes = read_array<uint32_t>(io, 5);
    check(sizes[3] <= 1 && sizes[4] <= 3);

    h2o_checkpoint record;
    record.n_tokens   = sizes[0];
    record.n_scored   = sizes[1];
    record.first      = sizes[2];
    record.is_scored  = sizes[3];
    record.is_by_hand = sizes[4] & 1;
    record.is_moved   = sizes[4] & 2;
    check(record.is_scored || !config.ranks());
    check(record.n_tokens <= store.layout.n_positions() && record.n_scored <= record.n_tokens &&
            record.first <= record.n_tokens);

    const uint32_t n_closed = record.n_tokens == 0 ? 0 : (record.n_tokens - 1)/config.chunk_size;

    for (const auto & layer : store.layers()) {
        if (layer.is_dense()) {
            continue;
        }
        const size_t n_head_kv = layer.k.n_head;

        h2o_checkpoint::layer r;
        io.read(&r.n_built, sizeof(r.n_built));
        // all chunks but the open one, which may be complete, have a memory set: it is there to build the next one
        check(r.n_built == n_closed || (r.n_built == n_closed + 1 && record.n_tokens % config.chunk_size == 0));
        check(record.layers.empty() || r.n_built == record.layers[0].n_built);

        const uint32_t start = r.n_built*config.chunk_size;
        check(start <= record.n_tokens);
        check(!store.layout.is_compact || record.first == start);

        const size_t n = config.n_memory(start);

        r.memory = read_array<int32_t>(io, n_head_kv*n);
        if (record.is_scored) {
            r.memory_scores = read_array<float>(io, n_head_kv*n);
            r.scores        = read_array<float>(io, n_head_kv*(record.n_tokens - record.first));
        }

        for (size_t h = 0; h < n_head_kv; ++h) {
            check(is_memory(r.memory.data() + h*n, r.memory.data() + (h + 1)*n, start));
        }
        record.layers.push_back(std::move(r));
    }

    const auto side = read_array<uint64_t>(io, 2); // size, hash
    if (side[0] > 0) {
        check(!kv.memory.caches.side.empty());
        record.side = std::make_shared<const std::vector<uint8_t>>(read_array<uint8_t>(io, side[0]));
        check(h2o_hash(record.side->data(), side[0]) == side[1]);
    }
    return record;
}

// Each is noted as a row of the last token before it: texts that begin with the same tokens have the same.
void h2o_checkpoints_write(llama_io_write_i & io, const llama_h2o_kv & kv) {
    std::vector<const h2o_checkpoint *> kept;
    for (const auto & [pos, checkpoint] : kv.state().checkpoints) {
        if (!kv.past().is_generated(pos)) {
            kept.push_back(&checkpoint);
        }
    }
    const uint32_t n = kept.size();
    io.write(&n, sizeof(n));

    for (const auto * checkpoint : kept) {
        const size_t start = io.n_bytes();
        h2o_checkpoint_write(io, kv, *checkpoint);
        if (auto * notes = h2o_byte_writer::of(io)) {
            notes->add(start, checkpoint->n_tokens - 1, 1, io.n_bytes() - start);
        }
    }

    std::map<uint32_t, std::shared_ptr<const h2o_row_copies>> copies; // by the start of the chunk
    for (const auto * checkpoint : kept) {
        if (checkpoint->rows) {
            copies[checkpoint->layers[0].n_built*kv.memory.config.chunk_size] = checkpoint->rows;
        }
    }
    write_array(io, std::vector<uint32_t> { (uint32_t) copies.size() });
    for (const auto & [start, rows] : copies) {
        write_array(io, std::vector<uint32_t> { start, rows->end });
        for (const auto & r : rows->ranges()) {
            h2o_write_rows(io, r.pos, r.n, r.n_bytes(), [&] { io.write_tensor(r.copy, 0, r.n_bytes()); });
        }
    }
}

// copies of the rows of closed chunks
static void read_rows(llama_io_read_i & io, const llama_h2o_kv & kv, uint32_t n_closed,
        std::map<uint32_t, h2o_checkpoint> & checkpoints) {
    const auto &   store = kv.memory.store;
    const uint32_t S     = kv.memory.config.chunk_size;
    const uint32_t n     = read_array<uint32_t>(io, 1)[0];
    check(n <= (store.layout.is_compact ? h2o_sequence::MAX_ROWS : 0));

    for (uint32_t i = 0, next = 0; i < n; ++i) {
        const auto place = read_array<uint32_t>(io, 2);
        const uint32_t start = place[0], end = place[1];
        check(start >= next && start % S == 0 && start < n_closed && end >= start && end - start <= S);
        next = start + S;

        auto rows = std::make_shared<h2o_row_copies>(store.kept_rows(kv.id, start, end, /*with_moved =*/ true));
        rows->read([&](void * dst, size_t n) { io.read(dst, n); });
        for (auto & [pos, checkpoint] : checkpoints) {
            if (checkpoint.layers[0].n_built*S == start && pos <= end) {
                checkpoint.rows = rows;
            }
        }
    }
}

std::map<uint32_t, h2o_checkpoint> h2o_checkpoints_read(llama_io_read_i & io, const llama_h2o_kv & kv,
        const h2o_checkpoint & end) {
    const auto &   config = kv.memory.config;
    const uint32_t S      = config.chunk_size;

    uint32_t n, n_marks = 0;
    io.read(&n, sizeof(n));

    std::map<uint32_t, h2o_checkpoint> res;
    for (uint32_t i = 0; i < n; ++i) {
        h2o_checkpoint r = h2o_checkpoint_read(io, kv);

        const uint32_t pos   = r.n_tokens;
        const uint32_t start = r.layers[0].n_built*S;

        check(r.is_scored == end.is_scored && r.first == start && pos <= end.n_tokens);
        check(pos > (res.empty() ? 0 : res.rbegin()->first));
        if (pos % S == 0) {
            check(start == pos); // made when the chunk after it began
        } else {
            check(++n_marks <= h2o_sequence::MAX_MARKS);
        }
        res.emplace(pos, std::move(r));
    }
    read_rows(io, kv, end.layers[0].n_built*S, res);
    return res;
}
