#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

struct h2o_lookup_params {
    uint32_t chunk_size   = 0; // S
    uint32_t tile         = 0; // T
    uint32_t budget       = 0; // B
    uint32_t sink_tokens  = 0; // A
    uint32_t local_window = 0; // L

    // throws std::invalid_argument, naming the parameter
    void validate() const;
};

struct h2o_lookup_row {
    int32_t pos;
    int32_t query; // that asked for it, a position
};

// Lookups: what followed earlier occurrences of a query's token, pair and triple. One index per sequence, on the host,
// of its text alone: the same rows for all layers and heads.
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

    // throws std::invalid_argument
    explicit h2o_lookup(const h2o_lookup_params & params);

    uint32_t n_tokens() const { return tokens.size(); }

    // rows that a query may add
    uint32_t n_new() const { return std::min(MAX_ROWS, params.budget/4 + (params.budget % 4 > 0)); }

    // the first row that a query sees, of a log that goes up to its tile or further
    size_t first_seen(const std::vector<h2o_lookup_row> & log, uint32_t query) const;

    const std::vector<int32_t> & text() const { return tokens; }

    // throws std::length_error if positions would not fit into int32
    void append(const int32_t * ids, size_t n);

    // Forgets all tokens from position n on: as if they had never been appended.
    void truncate(uint32_t n);

    // Chooses for the queries [q0, q1): adds their lookups to the log. Only the rows that they see matter.
    //
    // Queries may come in any order, but in the order of the text each token is indexed only once.
    // Throws std::invalid_argument if [q0, q1) is empty or beyond n_tokens().
    void choose(uint32_t q0, uint32_t q1, std::vector<h2o_lookup_row> & log);

    // Memory of this index: 20 to 50 bytes per token.
    size_t bytes() const;

private:
    static constexpr uint32_t N_GRAM = 3;

    // The positions of each n-gram of one length, newest first. A position < length - 1 ends no n-gram. The tokens of
    // an n-gram's newest position are its key. Positions are added and removed at the end of the text only.
    struct gram_index {
        struct slot {
            int32_t  head;  // newest position
            uint32_t n = 0; // number of positions; 0: the slot is empty
        };

        uint32_t length;
        uint32_t n_used = 0;

        std::vector<slot>    slots;
        std::vector<int32_t> prev; // [positions indexed] the n-gram's previous position, -1 if there is none
    };

    uint32_t home(const gram_index & gram, uint32_t pos) const;
    uint32_t find(const gram_index & gram, uint32_t pos) const; // its slot, or the empty one where it belongs

    // the position after the indexed ones, or the last of these
    void add_position   (gram_index & gram) const;
    void remove_position(gram_index & gram) const;

    void remove_slot(gram_index & gram, uint32_t gap) const;
    void rehash     (gram_index & gram, size_t n_slots) const;

    void unindex (uint32_t n); // leaves at most the positions [0, n)
    void index_to(uint32_t n); // the positions [0, n) and no others

    void choose_for(uint32_t query, std::vector<h2o_lookup_row> & log) const;

    h2o_lookup_params params;

    std::vector<int32_t> tokens;

    std::array<gram_index, N_GRAM> grams;
};
