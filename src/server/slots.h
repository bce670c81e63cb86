#pragma once

#include "common.h"
#include "json.h"
#include "llama-h2o.h"
#include "llama.h"

#include <list>
#include <string>

// H2O as a property of llama-server's slots: a slot is a sequence of the context. Where H2O is off nothing here changes anything.

// Makes slots independent of each other. False, with the reason logged, for what H2O cannot do.
bool server_h2o_prepare(common_params & params);

// Sequences of this context, just made, can go back to the ends of their chunks.
void server_h2o_init(llama_context * ctx, const common_params & params);

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

// Whether to go back to token `pos` of a prompt will be wanted: where a user's message begins; near the end of a prompt that is
// not made of messages, so that it can be sent again.
bool server_h2o_wants_checkpoint(bool is_user_start, bool has_messages, int32_t pos, int32_t n_prompt);

// What the next call does with tokens of a slot: they are generated, or a prompt's, of which n_tail attend to everything.
void server_h2o_set_call(llama_context * ctx, llama_seq_id id, bool is_prompt, uint32_t n_tail);

// Of the tokens up to `end` of a prompt of n_prompt, the last n of which are in a call: how many of these attend to everything.
// Those are the last user's message and what follows it (last_user_pos < 0: there are no messages), as far as they are not too many.
uint32_t server_h2o_n_tail(int32_t last_user_pos, int32_t n_prompt, int32_t end, int32_t n);

// What a slot's sequence holds; zeros without H2O.
struct server_h2o_counts {
    uint64_t n_chunks   = 0; // begun
    uint64_t kv_kept    = 0; // bytes of K and V in the cache
    uint64_t kv_cold    = 0; // bytes in the cold store
    uint64_t kv_dropped = 0; // bytes that are gone

    void add(const server_h2o_counts & other);
};

server_h2o_counts server_h2o_count(const llama_context * ctx, llama_seq_id id);

// A number of a request, `missing` where it is not given. Throws std::invalid_argument if it is no integer from 0 on.
int32_t server_h2o_number(const std::string & name, const std::string & value, int32_t missing);

// What GET /slots/{id}/h2o says. layer < 0: no memory sets and scores; n_lookups < 0: no lookups, else the newest of them. Throws
// std::invalid_argument if H2O is off, if the layer has no memory sets, or if so many lookups are not given.
common_json server_h2o_to_json(const llama_context * ctx, llama_seq_id id, int32_t layer, int32_t n_lookups);
