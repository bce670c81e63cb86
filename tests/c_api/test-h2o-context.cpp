// What upstream's programs may ask of an H2O context, and it refuses: test-h2o-context MODEL. Exit status 1 names what failed.

#include "llama-h2o.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

static void require(bool ok, const char * what) {
    if (!ok) {
        fprintf(stderr, "test-h2o-context: %s\n", what);
        exit(1);
    }
}

static llama_batch batch_at(std::vector<llama_token> & tokens, std::vector<llama_pos> & pos) {
    llama_batch batch = llama_batch_get_one(tokens.data(), tokens.size());
    batch.pos = pos.data();
    return batch;
}

struct token_at {
    llama_token  token;
    llama_pos    pos;
    llama_seq_id seq_id;
};

static void add_text(std::vector<token_at> & tokens, llama_seq_id seq_id, llama_pos start, int n) {
    for (int i = 0; i < n; ++i) {
        tokens.push_back({ 'a' + (3*seq_id + start + i)%23, start + i, seq_id });
    }
}

// logits of every token
static int32_t decode(llama_context * ctx, std::vector<token_at> & tokens) {
    llama_batch batch = llama_batch_init(tokens.size(), 0, 1);
    for (const auto & t : tokens) {
        const int i = batch.n_tokens++;
        batch.token   [i]    = t.token;
        batch.pos     [i]    = t.pos;
        batch.n_seq_id[i]    = 1;
        batch.seq_id  [i][0] = t.seq_id;
        batch.logits  [i]    = true;
    }
    const int32_t res = llama_decode(ctx, batch);
    llama_batch_free(batch);
    return res;
}

static bool are_close(llama_context * a, int i, llama_context * b, int j) {
    const float * x = llama_get_logits_ith(a, i);
    const float * y = llama_get_logits_ith(b, j);

    const int n = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(a)));
    for (int k = 0; k < n; ++k) {
        if (std::fabs(x[k] - y[k]) > 1e-2f) {
            return false;
        }
    }
    return true;
}

// what upstream's server does with its slots; each sequence is compared with a context of its own
static void test_sequences(llama_model * model, llama_context_params params) {
    llama_context * alone[3];
    for (auto & ctx : alone) {
        ctx = llama_init_from_model(model, params);
    }
    params.n_seq_max = 3;
    params.n_ctx     = 3*256;
    llama_context * ctx    = llama_init_from_model(model, params);
    llama_memory_t  memory = llama_get_memory(ctx);
    require(ctx && llama_get_h2o_kv_seq(ctx, 2) && !llama_get_h2o_kv_seq(ctx, 3) && !llama_get_h2o_kv_seq(ctx, -1), "sequences are missing, or too many");

    // prompts, and generated tokens of two sequences (one begins a chunk), before a prompt
    std::vector<token_at> start;
    add_text(start, 0, 0, 40);
    add_text(start, 1, 0, 64);
    require(decode(ctx, start) == 0, "two prompts are not computed");
    std::vector<token_at> batch;
    std::vector<token_at> own[3];
    add_text(own[0], 0, 40, 1);
    add_text(own[1], 1, 64, 1);
    add_text(own[2], 2, 0, 70);
    batch = own[0];
    batch.insert(batch.end(), own[2].begin(), own[2].end());
    batch.insert(batch.begin() + 20, own[1].front());
    require(decode(ctx, batch) < 0, "tokens of a sequence may be apart");
    require(llama_memory_seq_pos_max(memory, 0) == 39 && llama_memory_seq_pos_max(memory, 2) == -1, "a refused batch has left something");
    batch = own[0];
    batch.insert(batch.end(), own[1].begin(), own[1].end());
    batch.insert(batch.end(), own[2].begin(), own[2].end());
    require(decode(ctx, batch) == 0, "a batch of three sequences is not computed");
    for (int s = 0; s < 3; ++s) {
        std::vector<token_at> prompt;
        for (const auto & t : start) {
            if (t.seq_id == s) {
                prompt.push_back({ t.token, t.pos, 0 });
            }
        }
        require(prompt.empty() || decode(alone[s], prompt) == 0, "a prompt is not computed alone");
        for (auto & t : own[s]) {
            t.seq_id = 0;
        }
        require(decode(alone[s], own[s]) == 0, "a sequence is not computed alone");
    }
    require(are_close(ctx, 0, alone[0], 0) && are_close(ctx, 1, alone[1], 0), "generated tokens are others than alone");
    require(are_close(ctx, 2, alone[2], 0) && are_close(ctx, 71, alone[2], 69), "a prompt is another than alone");

    // a batch that is cancelled in its second sequence undoes both, and leaves the third
    static int n_calls;
    n_calls = 0;
    llama_h2o_set_progress_callback(llama_get_h2o_kv_seq(ctx, 1), [](int32_t, uint32_t, uint32_t, void *) { return ++n_calls < 2; }, nullptr);
    batch.clear();
    add_text(batch, 0, 41, 1);
    add_text(batch, 1, 65, 80);
    require(decode(ctx, batch) == 2 && n_calls == 2, "a batch is not cancelled");
    llama_h2o_set_progress_callback(llama_get_h2o_kv_seq(ctx, 1), nullptr, nullptr);
    require(llama_memory_seq_pos_max(memory, 0) == 40 && llama_memory_seq_pos_max(memory, 1) == 64 &&
            llama_memory_seq_pos_max(memory, 2) == 69, "a cancelled batch has left something");
    batch.clear();
    add_text(batch, 0, 41, 30);
    add_text(batch, 1, 65, 30);
    require(decode(ctx, batch) == 0, "the batch after a cancelled one is not computed");
    for (int s = 0; s < 2; ++s) {
        std::vector<token_at> more(batch.begin() + 30*s, batch.begin() + 30*(s + 1));
        for (auto & t : more) {
            t.seq_id = 0;
        }
        require(decode(alone[s], more) == 0 && are_close(ctx, 30*s + 29, alone[s], 29), "a cancelled batch changes later ones");
    }

    // what no sequence can do, or only one that is there
    batch.clear();
    add_text(batch, 2, 71, 1);
    require(decode(ctx, batch) < 0, "a gap is computed");
    llama_memory_seq_rm(memory, 2, -1, -1);
    require(llama_memory_seq_pos_max(memory, 2) == -1 && llama_memory_seq_pos_max(memory, 0) == 70, "one sequence is not removed alone");
    require(llama_memory_seq_pos_max(memory, 7) == -1 && llama_memory_seq_rm(memory, 7, -1, -1), "a sequence that is not there is not empty");

    llama_memory_seq_cp(memory, 0, 2, -1, -1);
    llama_memory_seq_keep(memory, 2);
    require(llama_memory_seq_pos_max(memory, 2) == 70 && llama_memory_seq_pos_max(memory, 0) == -1 &&
            llama_memory_seq_pos_max(memory, 1) == -1, "others are kept too, or a copy is not");

    llama_free(ctx);
    for (auto * other : alone) {
        llama_free(other);
    }
}

// a cache that sequences share would be as large for each of them
static void test_size_of_sequences(llama_model * model, llama_context_params params) {
    params.n_ctx     = 4*256;
    params.n_seq_max = 4;
    uint64_t bytes[2];
    for (const bool kv_unified : { false, true }) {
        params.kv_unified = kv_unified;
        llama_context * ctx = llama_init_from_model(model, params);
        bytes[kv_unified] = llama_h2o_memory_bytes(ctx);
        require(llama_n_ctx(ctx) == 4*256 && llama_n_ctx_seq(ctx) == 256, "the sequences of a context have other sizes");
        llama_free(ctx);
    }
    require(bytes[0] == bytes[1], "a unified cache takes more memory");
}

// The largest graphs: steps that ggml's own operators compute, many sequences, calls that begin and end within a chunk, a dense tail.
// A node too many for a graph ends the process.
static void test_largest_graphs(llama_model * model, llama_context_params params, llama_h2o_params h2o) {
    params.n_threads       = 1; // more wait for each other at each of many nodes
    params.n_threads_batch = 1;

    params.n_seq_max = 16;
    params.n_ctx     = 16*256;
    params.h2o       = &h2o;
    for (const char * attends_to : { "full", "memory" }) {
        require(llama_h2o_params_set(&h2o, "decode", attends_to), "a way to decode is not taken");
        for (const auto flash_attn : { LLAMA_FLASH_ATTN_TYPE_DISABLED, LLAMA_FLASH_ATTN_TYPE_ENABLED }) {
            params.flash_attn_type = flash_attn;
            llama_context * ctx = llama_init_from_model(model, params);
            require(ctx, "no context of 16 sequences is made");

            std::vector<token_at> batch;
            for (llama_seq_id s = 0; s < 16; ++s) {
                add_text(batch, s, 0, 40);
            }
            require(decode(ctx, batch) == 0, "16 prompts are not computed");
            batch.clear();
            add_text(batch, 0, 40, 160);
            llama_h2o_set_call(llama_get_h2o_kv_seq(ctx, 0), LLAMA_H2O_CALL_PREFILL, /*dense_tail =*/ 70);
            require(decode(ctx, batch) == 0, "a prompt with a dense tail is not computed");
            batch.clear();
            for (llama_seq_id s = 0; s < 16; ++s) {
                add_text(batch, s, s == 0 ? 200 : 40, 1);
            }
            require(decode(ctx, batch) == 0, "a token of each of 16 sequences is not computed");
            llama_free(ctx);
        }
    }
}

// arguments of a stand-alone cache are checked, and nothing is thrown
static void test_standalone(const llama_model * model, const llama_h2o_params & h2o) {
    llama_h2o_kv_params params = {};
    params.h2o     = h2o;
    params.kv_size = 64;
    params.type_k  = params.type_v = GGML_TYPE_F16;
    llama_h2o_kv * kv = llama_h2o_kv_init(model, params);
    require(kv && llama_h2o_kv_next_chunk(kv, 32), "no stand-alone cache is made");

    const int32_t il = llama_h2o_kv_layer_id(kv, 0);
    std::vector<float> rows(llama_h2o_kv_n_head_kv(kv, il)*33*llama_h2o_kv_head_size_k(kv, il));
    require(llama_h2o_kv_get_k(kv, il, 0, 32, rows.data()), "K cannot be read");
    require(!llama_h2o_kv_get_k(kv, il, 0, 33, rows.data()) && !llama_h2o_kv_get_k(kv, il, 2, 1, rows.data()) &&
        !llama_h2o_kv_get_k(kv, 99, 0, 1, rows.data()), "K is read where there is none");

    // memory sets are built one after the other, and may be ahead of the tokens
    llama_h2o_kv_clear(kv);
    require(!llama_h2o_kv_build_memory_set(kv, il, 64) && llama_h2o_kv_build_memory_set(kv, il, 20) && llama_h2o_kv_build_memory_set(kv, il, 32) &&
        !llama_h2o_kv_build_memory_set(kv, il, 20), "a chunk is left out");
    std::vector<int32_t> memory(llama_h2o_kv_n_head_kv(kv, il)*llama_h2o_kv_info(kv).memory_size);
    llama_h2o_kv_clear(kv);
    require(llama_h2o_kv_next_chunk(kv, 64) && !llama_h2o_kv_set_memory_indices(kv, il, memory.data()), "chunks are left out");
    llama_h2o_kv_free(kv);
}

int main(int argc, char ** argv) {
    require(argc == 2, "usage: test-h2o-context MODEL");
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);

    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    require(model, "the model cannot be loaded");

    llama_h2o_params h2o = llama_h2o_default_params();
    require(!llama_h2o_params_enabled(&h2o), "H2O is on by default");
    require(!llama_h2o_params_set(&h2o, "local", "-1") && !llama_h2o_params_set(&h2o, "local", "1x"), "a bad number is taken");
    require(!llama_h2o_params_set(&h2o, "scorer", "best") && !llama_h2o_params_set(&h2o, "window", "1"), "a bad name is taken");
    require(llama_h2o_params_set(&h2o, "local", "8") && llama_h2o_params_set(&h2o, "heavy", "8"), "a parameter is not taken");
    require(llama_h2o_params_set(&h2o, "chunk", "32") && llama_h2o_params_set(&h2o, "scorer", "sum"), "a parameter is not taken");
    require(!llama_h2o_params_set(&h2o, "dense-layers", "11-2") && !llama_h2o_params_set(&h2o, "dense-layers", "1,"), "a bad list of layers is taken");

    llama_context_params params = llama_context_default_params();
    params.n_ctx    = 256;
    params.n_ubatch = 32;

    llama_h2o_params off = llama_h2o_default_params();
    require(llama_h2o_params_set(&off, "products", "own") && llama_h2o_params_set(&off, "chunk", "32"), "a parameter is not taken");
    char desc[64];
    llama_h2o_params_desc(&off, desc, sizeof(desc));
    require(strcmp(desc, "off products own") == 0, "what counts without H2O is not told");
    params.h2o = &off;
    llama_context * dense = llama_init_from_model(model, params);
    require(dense && !llama_get_h2o_kv(dense), "an empty memory set is not H2O off");
    llama_free(dense);
    off.products = (llama_h2o_products) 7;
    require(!llama_init_from_model(model, params), "a bad parameter is taken");

    params.h2o = &h2o;

    params.attention_type = LLAMA_ATTENTION_TYPE_NON_CAUSAL;
    require(!llama_init_from_model(model, params), "a context without causal attention is made");
    params.attention_type = LLAMA_ATTENTION_TYPE_UNSPECIFIED;

    llama_context * ctx = llama_init_from_model(model, params);
    require(ctx && llama_get_h2o_kv(ctx), "no context is made");

    std::vector<llama_token> tokens;
    std::vector<llama_pos>   pos;
    for (int i = 0; i < 50; ++i) {
        tokens.push_back('a' + i%7);
        pos.push_back(i);
    }
    require(llama_decode(ctx, batch_at(tokens, pos)) == 0, "a prompt is not computed");
    const std::vector<float> logits(llama_get_logits(ctx), llama_get_logits(ctx) + 1);

    // without causal attention nothing is computed
    llama_memory_clear(llama_get_memory(ctx), true);
    llama_set_causal_attn(ctx, false);
    require(llama_decode(ctx, batch_at(tokens, pos)) < 0, "a prompt is computed, though attention is not to be causal");
    llama_set_causal_attn(ctx, true);
    require(llama_decode(ctx, batch_at(tokens, pos)) == 0, "a prompt is not computed again");
    require(llama_get_logits(ctx)[0] == logits[0], "the same prompt has other logits");

    // a gap in the positions is an error, not a lack of room (1), after which callers try again with less
    for (auto & p : pos) {
        p += 51;
    }
    const int32_t gap = llama_decode(ctx, batch_at(tokens, pos));
    require(gap < 0, "positions may have a gap, or are taken for a lack of room");
    require(llama_memory_seq_pos_max(llama_get_memory(ctx), 0) == 49, "a refused call has left something");

    // llama_h2o_set_call holds for the next call that is computed
    llama_memory_clear(llama_get_memory(ctx), true);
    const llama_h2o_kv * kv = llama_get_h2o_kv(ctx);
    std::vector<token_at> some, too_many;
    add_text(some,     0, 0,  10);
    add_text(too_many, 0, 10, 250);
    require(decode(ctx, some) == 0, "a prompt is not computed");
    llama_h2o_set_call(llama_get_h2o_kv(ctx), LLAMA_H2O_CALL_PREFILL, 0);
    require(decode(ctx, too_many) == 1, "a text is longer than the context");
    for (int i = 0; i < 2; ++i) {
        std::vector<token_at> one;
        add_text(one, 0, 10 + i, 1);
        require(decode(ctx, one) == 0 && llama_h2o_kv_stats(kv).n_decode == (uint64_t) i, "a token is not computed as the call's kind says");
    }

    llama_free(ctx);

    for (const char * schedule : { "single_pass", "two_phase" }) {
        require(llama_h2o_params_set(&h2o, "schedule", schedule), "a schedule is not taken");
        for (const bool kv_unified : { false, true }) { // llama-perplexity and upstream's server ask for true; H2O's cache never is
            params.kv_unified = kv_unified;
            test_sequences(model, params);
        }
        test_largest_graphs(model, params, h2o);
    }
    test_size_of_sequences(model, params);
    test_standalone(model, h2o);

    llama_model_free(model);
    puts("test-h2o-context: what cannot be done is refused");
}
