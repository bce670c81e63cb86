#pragma once

#include "llama-h2o.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

struct h2o_lookup_row {
    int32_t pos;
    int32_t query; // that asked for it, a position
};

using h2o_lookup_log = std::vector<h2o_lookup_row>; // by query

// The text of a sequence, and what its queries look up: what followed earlier occurrences of a query's token, pair and
// triple. One index per sequence, on the host, of its text alone: the same rows for all layers and heads. S is
// chunk_size, T tile, B lookup_budget, A sink_tokens, L local_window.
//
// Rows are logged in the order of the queries that ask for them. Queries share tiles of T, on an absolute grid in each
// chunk. A query sees the last B rows of the log where its tile begins, and the rows that queries of the tile have
// added since, up to its own. Each adds at most ceil(B/4) rows that it does not see already.
//
// Candidates of a query in the chunk that begins at c0 are positions in [A, e), e = max(c0 - L, 0): neither sinks nor
// local window, which every memory set holds anyway. For n = 1, 2, 3 let P_n be the positions p < e at which the n
// tokens that end there equal the n tokens that end at the query (n-grams may reach back over the beginning of a chunk,
// not of the text), c_n its size, and V_n the MAX_VISITS newest of them. Then
//   score[p + j] += w_j*n/c_n for each n, p in V_n and follower j,
// where these are candidates. So c_n counts all of them, sinks too, although only the newest are visited: what stays
// unvisited of a frequent token is worth little, but a token taken for rarer than it is would win over rare ones. The
// local window is not counted: nothing there can be chosen.
//
// Sums are doubles, added in this order: n ascending, p descending, followers in theirs. Of equal scores the higher
// position wins: an n-gram's newer occurrence is attended to more.
//
// No row depends on a later query. If queries chose together, later ones would decide which rows earlier ones see: what
// has followed a token is kept if it follows again, which betrays the next token.
class h2o_lookup {
public:
    static constexpr uint32_t MAX_VISITS = 32;

    // more candidates a query cannot have
    static constexpr uint32_t MAX_ROWS = 4*3*MAX_VISITS;

    // A part of the log.
    struct view {
        const h2o_lookup_row * begin;
        const h2o_lookup_row * end;
    };

    // params: within their ranges
    explicit h2o_lookup(const llama_h2o_params & params);

    const std::vector<int32_t> & text() const { return tokens; }
    const h2o_lookup_log & log() const { return rows; }

    // queries before this one are forgotten: the log has only the rows of theirs that later queries see
    uint32_t start() const { return first_kept; }

    // rows that a query may add
    uint32_t n_new() const { return std::min(MAX_ROWS, params.lookup_budget/4 + (params.lookup_budget % 4 > 0)); }

    // throws std::length_error if positions would not fit into int32
    void append(const int32_t * ids, size_t n);

    // Forgets the tokens from position n on, and their lookups: as if they had never been appended.
    void truncate(uint32_t n);

    // Chooses for the queries [q0, q1): adds their lookups to the log. None after them has chosen. Only the rows that
    // they see matter.
    //
    // Queries may come in any order, but in the order of the text each token is indexed only once.
    // Throws std::invalid_argument if [q0, q1) is empty or beyond the text.
    void choose(uint32_t q0, uint32_t q1);

    // what queries of one tile see, each row from the query that asked for it on
    view seen(uint32_t q0, uint32_t q1) const;

    // the positions that queries of any tiles see, ascending
    std::vector<int32_t> positions_seen(uint32_t q0, uint32_t q1) const;

    // the positions that queries of n_tiles whole tiles may see at most, of a text of n tokens
    uint32_t n_seen_max(uint32_t n_tiles, uint32_t n) const {
        return std::min<uint64_t>(n, params.lookup_budget + (uint64_t) n_tiles*params.tile*n_new());
    }

    // Forgets queries before this one. They cannot be gone back to.
    void forget(uint32_t query);

    // as if appended
    void assign_text(const std::vector<int32_t> & ids);

    // as if chosen, and forgotten before the start
    void assign_log(h2o_lookup_log log, uint32_t start);

    // Memory of the index: 60 to 150 bytes per token.
    size_t bytes() const;

private:
    static constexpr uint32_t N_GRAM = 3;

    // The length of an n-gram, then its tokens, newest first, then zeros.
    using gram = std::array<int32_t, 1 + N_GRAM>;

    struct gram_hash {
        size_t operator()(const gram & gram) const;
    };

    // where it ends
    struct positions {
        int32_t  newest = -1;
        uint32_t n      = 0;
    };

    gram gram_at(uint32_t pos, uint32_t length) const; // that ends at pos

    void clear_index();
    void index_to(uint32_t n); // the positions [0, n) and no others

    void choose_for(uint32_t query);

    size_t first_seen(uint32_t query) const; // the first row that a query sees
    size_t n_rows_of (uint32_t query) const; // the rows of the queries before this one

    llama_h2o_params params;

    std::vector<int32_t> tokens;

    // The first n_indexed positions are indexed. To remove positions, the others are indexed anew.
    uint32_t n_indexed = 0;

    std::unordered_map<gram, positions, gram_hash> grams;

    std::array<std::vector<int32_t>, N_GRAM> prev; // by length: a position's n-gram ended here before, or -1

    h2o_lookup_log rows;

    uint32_t first_kept = 0;
};
