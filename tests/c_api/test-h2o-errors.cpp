// What fails in the C interface is a return value, not an exception: test-h2o-errors MODEL. Exit status 1 names what failed.

#include "llama-h2o.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

static constexpr uint32_t S = 32;

static void require(bool ok, const char * what) {
    if (!ok) {
        fprintf(stderr, "test-h2o-errors: %s\n", what);
        exit(1);
    }
}

using context_ptr = std::unique_ptr<llama_context, decltype(&llama_free)>;

// with eviction into a cold store
static context_ptr make_context(llama_model * model, uint32_t n_seq_max, const char * dense_layers = nullptr) {
    llama_h2o_params h2o = llama_h2o_default_params();
    for (const auto & [name, value] : { std::pair("chunk", "32"), { "local", "8" }, { "heavy", "8" }, { "lookup", "8" }, { "tile", "8" }, { "decode", "memory" },
            { "evict", "on" }, { "cold-store", "memory" } }) {
        require(llama_h2o_params_set(&h2o, name, value), name);
    }
    require(!dense_layers || llama_h2o_params_set(&h2o, "dense-layers", dense_layers), "dense-layers");
    llama_context_params params = llama_context_default_params();
    params.n_ctx     = 1024*n_seq_max;
    params.n_seq_max = n_seq_max;
    params.n_batch   = 8*S;
    params.n_ubatch  = S;
    params.n_threads = params.n_threads_batch = 1;
    params.h2o       = &h2o;
    context_ptr ctx { llama_init_from_model(model, params), llama_free };
    require(ctx != nullptr, "no context is made");
    return ctx;
}

static int32_t eval(llama_context * ctx, int32_t n) {
    std::vector<llama_token> tokens(n);
    for (int32_t i = 0; i < n; ++i) {
        tokens[i] = 'a' + i%7;
    }
    return llama_decode(ctx, llama_batch_get_one(tokens.data(), n));
}

static llama_pos n_tokens(const llama_context * ctx, llama_seq_id seq_id = 0) {
    return llama_memory_seq_pos_max(llama_get_memory(ctx), seq_id) + 1;
}

static void test_what_h2o_cannot_do(llama_model * model) {
    const auto ctx = make_context(model, 2);
    require(eval(ctx.get(), 40) == 0, "a prompt is not computed");

    llama_memory_t memory = llama_get_memory(ctx.get());
    llama_memory_seq_add(memory, 0, 0, -1, 1);
    llama_memory_seq_div(memory, 0, 0, -1, 2);
    llama_memory_seq_cp (memory, 0, 1, 0, 20);
    llama_memory_seq_cp (memory, 0, 9, -1, -1);
    require(n_tokens(ctx.get()) == 40 && n_tokens(ctx.get(), 1) == 0, "something has been moved or copied");
    llama_memory_seq_cp(memory, 0, 1, -1, -1);
    llama_memory_seq_cp(memory, 0, 1, -1, -1); // not empty any more
    require(n_tokens(ctx.get(), 1) == 40 && eval(ctx.get(), 1) == 0, "a sequence is not copied");
}

// A state that says it is of 2^27 tokens asks for no more memory than it has bytes.
static void test_forged_size(llama_model * model) {
    const auto ctx = make_context(model, 1);
    require(eval(ctx.get(), 5*S + 7) == 0, "a prompt is not computed");

    std::vector<uint8_t> state(llama_state_seq_get_size(ctx.get(), 0));
    require(llama_state_seq_get_data(ctx.get(), state.data(), state.size(), 0) == state.size(), "no state is saved");

    // the number of tokens, of those with scores, the start of the open chunk, and that there are scores, and no memory sets by hand;
    // then, for each layer, its closed chunks
    const uint32_t sizes[] = { 5*S + 7, 5*S + 7, 5*S, 1, 0, 5 };
    const uint32_t shift   = (1u << 27)/S;
    const auto found = std::search(state.begin(), state.end(), (const uint8_t *) sizes, (const uint8_t *) (sizes + 6));
    require(found != state.end(), "the state has another format: this test is to be changed");
    const uint32_t forged[] = { sizes[0] + shift*S, sizes[1] + shift*S, sizes[2] + shift*S, sizes[3], sizes[4] };
    memcpy(&*found, forged, sizeof(forged));

    const auto * kv = llama_get_h2o_kv(ctx.get());
    uint8_t * layer = &*found + sizeof(forged);
    for (uint32_t i = 0; i < llama_h2o_kv_n_layer(kv); ++i) {
        const int32_t  il = llama_h2o_kv_layer_id(kv, i);
        const uint32_t n_head_kv = llama_h2o_kv_n_head_kv(kv, il), M = llama_h2o_kv_info(kv).memory_size;

        uint32_t n_built;
        memcpy(&n_built, layer, sizeof(n_built));
        require(n_built == 5, "the state has another format: this test is to be changed");
        n_built += shift;
        memcpy(layer, &n_built, sizeof(n_built));
        layer += 4 + n_head_kv*(8*M + 4*7) + 4;
    }

    rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    require(llama_state_seq_set_data(ctx.get(), state.data(), state.size(), 0) == 0, "a forged state is taken");
    getrusage(RUSAGE_SELF, &after);
    require(after.ru_maxrss - before.ru_maxrss < 64*1024, "a forged state takes memory that it does not fill");
}

// A state that ends within its last tensor, of a dense layer, leaves nothing behind.
static void test_state_that_ends_too_early(llama_model * model) {
    const auto ctx = make_context(model, 1, /*dense_layers =*/ "1");
    require(eval(ctx.get(), 3*S + 7) == 0, "a prompt is not computed");

    std::vector<uint8_t> state(llama_state_seq_get_size(ctx.get(), 0));
    require(llama_state_seq_get_data(ctx.get(), state.data(), state.size(), 0) == state.size(), "no state is saved");
    require(llama_state_seq_set_data(ctx.get(), state.data(), state.size() - 1, 0) == 0 && n_tokens(ctx.get()) == 0, "a state that ends too early is taken");
    require(llama_h2o_kv_stats(llama_get_h2o_kv(ctx.get())).bytes_cold == 0, "chunks of a state that was refused are in the cold store");
}

int main(int argc, char ** argv) {
    require(argc == 2, "usage: test-h2o-errors MODEL");
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);

    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    require(model, "the model cannot be loaded");
    try {
        test_what_h2o_cannot_do(model);
        test_forged_size(model);
        test_state_that_ends_too_early(model);
    } catch (const std::exception & e) {
        fprintf(stderr, "an exception has left a C function: %s\n", e.what());
        return 1;
    }
    llama_model_free(model);
    puts("test-h2o-errors: errors are return values");
}
