#pragma once

#include "common.h"
#include "json.h"
#include "llama-h2o.h"
#include "llama.h"

#include <cstdint>
#include <list>
#include <string>
#include <vector>

// H2O as a property of llama-server's slots: a slot is a sequence of the context. Where H2O is off nothing here changes anything.

// Makes slots independent of each other. False, with the reason logged, for what H2O cannot do.
bool server_h2o_prepare(common_params & params);

// Lets the sequences of a new context go back to the ends of their chunks. False if H2O is off.
bool server_h2o_init(llama_context * ctx, const common_params & params);

bool server_h2o_enabled(const llama_context * ctx);

// A prompt of n_prompt tokens begins with n_past tokens of the slot. Makes the slot's sequence as many of them as it can, at most
// all of the prompt but one, and returns how many. It goes back in place, or to one of the checkpoints; those after it are removed.
int32_t server_h2o_rewind(llama_context * ctx, llama_seq_id id, std::list<common_prompt_checkpoint> & checkpoints, int32_t n_past, int32_t n_prompt);

// Before a call after which the slot's sequence has n_tokens: if it moves rows (with eviction, when a chunk closes), the checkpoints
// of that chunk get them, up to the last of these checkpoints. Until then the rows are in the cache, and a checkpoint needs none.
// Rows are kept for two chunks, the first that has checkpoints and the last one: the checkpoints of those in between are removed.
void server_h2o_keep_rows(llama_context * ctx, llama_seq_id id, std::list<common_prompt_checkpoint> & checkpoints, int32_t n_tokens);

// Saves a slot: llama.cpp's state of its sequence and its tokens, then with H2O its checkpoints. Returns how many bytes these are.
// 0: it could not be written, and a file that was there is as it was.
size_t server_h2o_save_slot(llama_context * ctx, const char * path, llama_seq_id id, const std::list<common_prompt_checkpoint> & checkpoints,
        const llama_token * tokens, size_t n_tokens);

// The checkpoints of such a file, of a text of n_tokens tokens. What is before them has n_bytes, which becomes what was read in all.
// Throws std::runtime_error if the file is damaged.
std::list<common_prompt_checkpoint> server_h2o_load_checkpoints(const llama_context * ctx, const std::string & path, int32_t n_tokens, size_t & n_bytes);

// Whether a checkpoint at token `pos` of a prompt is worth it: where a user's message begins, and near the end of a prompt that is
// not made of messages, so that it can be sent again. Without H2O upstream decides: true.
bool server_h2o_wants_checkpoint(const llama_context * ctx, bool is_user_start, bool has_messages, int32_t pos, int32_t n_prompt);

// What the next call does with tokens of a slot: they are generated, or a prompt's, of which n_tail attend to everything.
void server_h2o_set_call(llama_context * ctx, llama_seq_id id, bool is_prompt, uint32_t n_tail);

// Of the tokens up to `end` of a prompt of n_prompt, the last n of which are in a call: how many of these attend to everything.
// Those are the last user's message and what follows it (last_user_pos < 0: there are no messages), up to a limit.
uint32_t server_h2o_n_tail(int32_t last_user_pos, int32_t n_prompt, int32_t end, int32_t n);

// Before a call with n tokens of upstream's batch, from `off` on: sets for every slot what the call does with its tokens.
template <typename Token, typename Slot>
void server_h2o_begin(llama_context * ctx, const std::vector<Token> & tokens, int32_t off, int32_t n, std::vector<Slot> & slots) {
    for (int32_t i = off, n_slot = 0; i < off + n; i += n_slot) {
        const auto & t    = tokens[i];
        auto       & slot = slots[t.id_slot];
        for (n_slot = 1; i + n_slot < off + n && tokens[i + n_slot].id_slot == t.id_slot; ++n_slot) {}

        const int32_t end = t.pos + n_slot;

        uint32_t n_tail = 0;
        if (t.is_prompt && slot.task) {
            n_tail = server_h2o_n_tail(slot.task->params.message_spans.last_user_message_pos(), slot.task->n_tokens(), end, n_slot);
        }
        server_h2o_keep_rows(ctx, t.id_slot, slot.prompt.checkpoints, end);
        server_h2o_set_call(ctx, t.id_slot, t.is_prompt, n_tail);
    }
}

// What the sequence of one slot, or those of all slots, hold. All zero, and not shown, without H2O.
struct server_h2o_counts {
    uint64_t n_chunks   = 0; // begun
    uint64_t kv_kept    = 0; // bytes of K and V in the cache
    uint64_t kv_cold    = 0; // bytes in the cold store
    uint64_t kv_dropped = 0; // bytes that are gone

    void add(const server_h2o_counts & other);

    // to a request's timings
    void add_timings(common_json & timings) const;

    // for /metrics: items of a name, a description and a value
    template <typename Item>
    std::vector<Item> gauges() const {
        if (n_chunks == 0) {
            return {};
        }
        return {
            { "h2o_chunks",           "H2O: Number of chunks that the slots' sequences have begun",         (double) n_chunks   },
            { "h2o_kv_kept_bytes",    "H2O: K and V of the slots' sequences in the cache",                  (double) kv_kept    },
            { "h2o_kv_cold_bytes",    "H2O: K and V of the slots' sequences in the cold store",             (double) kv_cold    },
            { "h2o_kv_dropped_bytes", "H2O: K and V of the slots' sequences that were evicted and dropped", (double) kv_dropped },
        };
    }
};

server_h2o_counts server_h2o_count(const llama_context * ctx, llama_seq_id id);

// of every slot, and of all of them
template <typename Slot>
void server_h2o_count(const llama_context * ctx, std::vector<Slot> & slots, server_h2o_counts & all) {
    all = {};
    for (auto & slot : slots) {
        slot.stats.h2o = server_h2o_count(ctx, slot.id);
        all.add(slot.stats.h2o);
    }
}

// What GET /slots/{id}/h2o asks for.
struct server_h2o_request {
    int32_t slot    = -1; // < 0: it is another request
    int32_t layer   = -1; // < 0: no memory sets and scores
    int32_t lookups = -1; // how many, the newest; < 0: none

    bool is_asked() const { return slot >= 0; }

    // throws std::invalid_argument if one of them is no number from 0 on
    template <typename Request>
    void read(const Request & request) {
        slot = number("the slot", request.get_param("h2o_slot"));
        if (is_asked()) {
            layer   = number("layer",   request.get_param("layer"));
            lookups = number("lookups", request.get_param("lookups"));
        }
    }

private:
    // -1 if it is not given
    static int32_t number(const std::string & name, const std::string & value);
};

// The answer. Throws std::invalid_argument if H2O is off, if there is no such slot, if the layer has no memory sets, or if so many
// lookups are not given.
common_json server_h2o_to_json(const llama_context * ctx, const server_h2o_request & request);
