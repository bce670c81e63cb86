// What upstream's programs may ask of an H2O context, and it refuses: test-h2o-context MODEL. Exit status 1 names what failed.

#include "llama-h2o.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
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
    require(llama_h2o_params_set(&h2o, "scorer", "key_diff"), "a scorer is not taken"); // the open chunk can be taken back

    llama_context_params params = llama_context_default_params();
    params.n_ctx    = 256;
    params.n_ubatch = 32;
    params.h2o      = &h2o;

    params.attention_type = LLAMA_ATTENTION_TYPE_NON_CAUSAL;
    require(!llama_init_from_model(model, params), "a context without causal attention is made");
    params.attention_type = LLAMA_ATTENTION_TYPE_UNSPECIFIED;
    params.n_seq_max      = 2;
    require(!llama_init_from_model(model, params), "a context with two sequences is made");
    params.n_seq_max = 1;

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

    // attention stays causal
    llama_set_causal_attn(ctx, false);
    llama_memory_clear(llama_get_memory(ctx), true);
    require(llama_decode(ctx, batch_at(tokens, pos)) == 0, "a prompt is not computed again");
    require(llama_get_logits(ctx)[0] == logits[0], "attention is not causal any more");

    // a gap in the positions is no lack of room (1), which callers try again with less
    for (auto & p : pos) {
        p += 51;
    }
    const int32_t gap = llama_decode(ctx, batch_at(tokens, pos));
    require(gap < 0, "positions may have a gap, or are taken for a lack of room");
    require(llama_memory_seq_pos_max(llama_get_memory(ctx), 0) == 49, "a refused call has left something");

    // as upstream's server does before it goes on from a common prefix
    llama_memory_t memory = llama_get_memory(ctx);
    require(llama_memory_seq_pos_min(memory, 0) == 31, "the lowest position that can be removed is another");
    require(!llama_memory_seq_rm(memory, 0, 20, -1) && !llama_memory_seq_rm(memory, 0, 5, 10), "what is closed can be removed");
    require(llama_memory_seq_rm(memory, 0, 40, -1) && llama_memory_seq_pos_max(memory, 0) == 39, "the end cannot be removed");
    require(llama_memory_seq_rm(memory, 0, 0, -1) && llama_memory_seq_pos_max(memory, 0) == -1, "not all can be removed");

    llama_free(ctx);
    llama_model_free(model);
    puts("test-h2o-context: what cannot be done is refused");
}
