// The C interface: calls of upstream's programs, and refusals, which are return values and not exceptions. Then damaged states, for a build
// with sanitizers (tools/check_kernels.py sanitizers): each of N is refused, or is a sequence that can be gone on with.
//
//     test-h2o MODEL [N [SEED]]
//
// With a hybrid model: steps of several sequences that are stopped.
//
// Exit status 1 names what failed.

#include "h2o/llama/memory/memory.h"
#include "h2o/llama/memory/moves.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

static constexpr int32_t S = 32;

static void require(bool ok, const char * what) {
    if (!ok) {
        fprintf(stderr, "test-h2o: %s\n", what);
        exit(1);
    }
}

using options     = std::vector<std::pair<const char *, const char *>>;
using context_ptr = std::unique_ptr<llama_context, decltype(&llama_free)>;

static llama_h2o_params h2o_of(const options & config) {
    llama_h2o_params h2o = llama_h2o_default_params();
    for (const auto & [name, value] : config) {
        require(llama_h2o_params_set(&h2o, name, value), name);
    }
    return h2o;
}

static context_ptr try_context(llama_model * model, llama_context_params params, const llama_h2o_params & h2o) {
    params.h2o = &h2o;
    return { llama_init_from_model(model, params), llama_free };
}

static context_ptr make_context(llama_model * model, llama_context_params params, const llama_h2o_params & h2o) {
    auto ctx = try_context(model, params, h2o);
    require(ctx != nullptr, "no context is made");
    return ctx;
}

// for n_seq_max sequences of n_ctx tokens, on one thread: more wait for each other at each of many nodes
static llama_context_params params_of(uint32_t n_ctx, uint32_t n_seq_max = 1) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx     = n_ctx*n_seq_max;
    params.n_seq_max = n_seq_max;
    params.n_ubatch  = S;
    params.n_threads = params.n_threads_batch = 1;
    return params;
}

// n tokens of a text, from a position on
struct part {
    llama_seq_id seq_id;
    llama_pos    start;
    int          n;
};

static llama_token token_at(llama_seq_id seq_id, llama_pos pos) { return 'a' + (3*seq_id + pos)%23; }

// logits of every token
static int32_t decode(llama_context * ctx, const std::vector<part> & parts) {
    llama_batch batch = llama_batch_init(16*256, 0, 1);
    for (const auto & p : parts) {
        for (int i = 0; i < p.n; ++i) {
            const int k = batch.n_tokens++;
            batch.token   [k]    = token_at(p.seq_id, p.start + i);
            batch.pos     [k]    = p.start + i;
            batch.n_seq_id[k]    = 1;
            batch.seq_id  [k][0] = p.seq_id;
            batch.logits  [k]    = true;
        }
    }
    const int32_t res = llama_decode(ctx, batch);
    llama_batch_free(batch);
    return res;
}

// n more tokens of sequence 0
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

static std::vector<uint8_t> state_of(llama_context * ctx) {
    std::vector<uint8_t> res(llama_state_seq_get_size(ctx, 0));
    require(llama_state_seq_get_data(ctx, res.data(), res.size(), 0) == res.size(), "no state is saved");
    return res;
}

static void test_context(llama_model * model, const llama_h2o_params & h2o) {
    auto params = params_of(256);
    params.attention_type = LLAMA_ATTENTION_TYPE_NON_CAUSAL;
    require(!try_context(model, params, h2o), "a context without causal attention is made");

    const auto ctx = make_context(model, params_of(256), h2o);
    const auto * kv = llama_get_h2o_kv(ctx.get());
    require(kv && decode(ctx.get(), { { 0, 0, 50 } }) == 0, "a prompt is not computed");
    const float logit = llama_get_logits(ctx.get())[0];

    llama_memory_clear(llama_get_memory(ctx.get()), true);
    llama_set_causal_attn(ctx.get(), false);
    require(decode(ctx.get(), { { 0, 0, 50 } }) < 0, "a prompt is computed, though attention is not to be causal");
    llama_set_causal_attn(ctx.get(), true);
    require(decode(ctx.get(), { { 0, 0, 50 } }) == 0 && llama_get_logits(ctx.get())[0] == logit, "the same prompt has other logits");

    // an error, not a lack of room (1), after which callers try again with less
    require(decode(ctx.get(), { { 0, 51, 50 } }) < 0 && n_tokens(ctx.get()) == 50, "positions may have a gap, or are taken for a lack of room");

    // llama_h2o_set_call holds for the next call that is computed
    llama_memory_clear(llama_get_memory(ctx.get()), true);
    require(decode(ctx.get(), { { 0, 0, 10 } }) == 0, "a prompt is not computed");
    llama_h2o_set_call(llama_get_h2o_kv(ctx.get()), LLAMA_H2O_CALL_PREFILL, 0);
    require(decode(ctx.get(), { { 0, 10, 250 } }) == 1, "a text is longer than the context");
    for (int i = 0; i < 2; ++i) {
        require(decode(ctx.get(), { { 0, 10 + i, 1 } }) == 0 && llama_h2o_kv_stats(kv).n_decode == (uint64_t) i, "a token is not computed as the call's kind says");
    }
}

// The largest graphs: steps that ggml's own operators compute, many sequences, calls that begin and end within a chunk, a dense tail.
// A node too many for a graph ends the process.
static void test_largest_graphs(llama_model * model, llama_h2o_params h2o) {
    for (const char * attends_to : { "full", "memory" }) {
        require(llama_h2o_params_set(&h2o, "decode", attends_to), "a way to decode is not taken");
        for (const auto flash_attn : { LLAMA_FLASH_ATTN_TYPE_DISABLED, LLAMA_FLASH_ATTN_TYPE_ENABLED }) {
            auto params = params_of(256, 16);
            params.flash_attn_type = flash_attn;
            const auto ctx = make_context(model, params, h2o);

            std::vector<part> prompts, generated;
            for (llama_seq_id s = 0; s < 16; ++s) {
                prompts  .push_back({ s, 0, 40 });
                generated.push_back({ s, s == 0 ? 200 : 40, 1 });
            }
            require(decode(ctx.get(), prompts) == 0, "16 prompts are not computed");
            llama_h2o_set_call(llama_get_h2o_kv_seq(ctx.get(), 0), LLAMA_H2O_CALL_PREFILL, /*dense_tail =*/ 70);
            require(decode(ctx.get(), { { 0, 40, 160 } }) == 0, "a prompt with a dense tail is not computed");
            require(decode(ctx.get(), generated) == 0, "a token of each of 16 sequences is not computed");
        }
    }
}

static const options CONFIGS[] = {
    {}, // no H2O
    { { "local", "4" }, { "heavy", "6" }, { "sinks", "1" }, { "lookup", "12" }, { "tile", "4" } },
    { { "local", "4" }, { "heavy", "6" }, { "scorer", "sum" }, { "lookup", "8" }, { "dense-layers", "1" } },
    { { "local", "3" }, { "heavy", "9" }, { "scorer", "sum" }, { "lookup", "8" }, { "tile", "8" }, { "decode", "memory" } },
    { { "local", "4" }, { "heavy", "6" }, { "schedule", "two_phase" } },
    { { "local", "4" }, { "heavy", "6" }, { "decode", "memory" }, { "evict", "on" } },
    { { "local", "4" }, { "heavy", "6" }, { "scorer", "sum" }, { "dense-layers", "0" }, { "decode", "memory" }, { "evict", "on" } },
    { { "local", "4" }, { "heavy", "6" }, { "lookup", "8" }, { "tile", "8" }, { "decode", "memory" }, { "evict", "on" }, { "cold-store", "memory" } },
    { { "local", "4" }, { "heavy", "6" }, { "lookup", "8" }, { "tile", "8" }, { "decode", "memory" }, { "evict", "on" }, { "cold-store", "memory" }, { "lossless", "on" } },
    { { "local", "4" }, { "heavy", "24" }, { "sinks", "4" }, { "scorer", "block_ema" }, { "block", "4" }, { "shared-heads", "on" }, { "keep", "0.4" }, { "decode", "memory" }, { "evict", "on" } },
};

struct sequence {
    context_ptr ctx;
    std::vector<uint8_t> good;

    sequence(llama_model * model, const options & config) : ctx(nullptr, llama_free) {
        llama_h2o_params h2o = h2o_of(config);
        h2o.chunk_size = 16;
        auto params = params_of(256);
        params.n_ubatch = 16;
        ctx = make_context(model, params, config.empty() ? llama_h2o_default_params() : h2o);

        if (auto * kv = llama_get_h2o_kv(ctx.get())) {
            llama_h2o_kv_set_record(kv, true);
        }
        go_on(70);
        go_on(1);
        good = state_of(ctx.get());
        require(set(good), "a good state is refused");
        require(state_of(ctx.get()) == good, "a state changes by being restored");
    }

    void go_on(int32_t n) { require(eval(ctx.get(), n) == 0, "tokens are not computed"); }

    bool set(const std::vector<uint8_t> & bytes) {
        const auto memory = llama_get_memory(ctx.get());
        llama_memory_clear(memory, false);
        if (llama_state_seq_set_data(ctx.get(), bytes.data(), bytes.size(), 0) != bytes.size()) {
            return false;
        }
        // without H2O a state may be of any positions
        return llama_memory_seq_pos_min(memory, 0) >= 0 && n_tokens(ctx.get()) == 71;
    }

    // all that can be asked
    void use() {
        if (const auto * kv = llama_get_h2o_kv(ctx.get())) {
            const auto & state = kv->state();
            for (const auto & layer : state.layers) {
                require(!state.scores(layer).empty() && !state.memory(layer).empty(), "scores or memory sets are not there");
                for (uint32_t chunk = 0; chunk < state.n_memory_sets(); ++chunk) {
                    state.past_memory(layer, chunk);
                }
                for (uint32_t tile = 0; tile*kv->memory.config.tile < state.n_tokens; ++tile) {
                    state.extra_keys(layer, layer.n_head_kv - 1, tile);
                }
            }
        }
        go_on(1);
        go_on(20); // over the end of a chunk
        go_on(1);
        for (const int32_t pos : { 85, 64, 48, 16 }) {
            if (llama_memory_seq_rm(llama_get_memory(ctx.get()), 0, pos, -1)) {
                go_on(18);
            }
        }
    }
};

static std::vector<uint8_t> damaged(const std::vector<uint8_t> & good, std::mt19937 & rng) {
    static const int32_t VALUES[] = { 0, 1, -1, 2, 15, 16, 17, 63, 64, 65, 70, 71, 72, 255, 256, INT32_MAX, INT32_MIN, 0x7fc00000 };

    const auto below = [&](size_t n) { return rng() % n; };

    std::vector<uint8_t> res = good;
    for (size_t i = 0, n = 1 + below(3); i < n; ++i) {
        // all but K, V and scores lies at the begin of either half
        const size_t region = below(3);
        const size_t at     = region == 0 ? below(std::min<size_t>(400, res.size() - 4)) : region == 1 ? below(std::min<size_t>(12000, res.size() - 4)) : below(res.size() - 4);
        const size_t word   = at/4*4;

        int32_t value;
        memcpy(&value, &res[word], 4);
        switch (below(5)) {
            case 0: res[at] ^= 1 << below(8);                                            break;
            case 1: value = VALUES[below(std::size(VALUES))]; memcpy(&res[word], &value, 4); break;
            case 2: value += (int32_t) below(7) - 3;          memcpy(&res[word], &value, 4); break;
            case 3: memcpy(&res[word], &res[below(res.size()/4)*4], 4);                  break;
            case 4:
                if (below(4) == 0) {
                    res.resize(std::max<size_t>(at, 8));
                } else {
                    std::swap(res[at], res[at + 1]);
                }
        }
    }
    return res;
}

static void test_damaged_states(llama_model * model, int n, uint32_t seed) {
    int n_taken = 0;
    for (const auto & config : CONFIGS) {
        sequence seq(model, config);
        for (int i = 0; i < n/(int) std::size(CONFIGS); ++i) {
            std::mt19937 rng(seed + i);
            if (seq.set(damaged(seq.good, rng))) {
                seq.use();
                n_taken++;
            }
        }
        require(seq.set(seq.good) && state_of(seq.ctx.get()) == seq.good, "a good state is refused after bad ones");
        seq.use();
    }
    printf("test-h2o: %d damaged states, %d of them can be gone on with, the others are refused\n", n, n_taken);
}

// A step of two sequences is stopped at every node of its graph. The third one does not change.
static void test_stopped_steps(llama_model * model, const llama_h2o_params & h2o) {
    static int n_left; // nodes until it stops

    auto params = params_of(256, 3);
    params.abort_callback = [](void *) { return n_left-- == 0; };
    const auto ctx    = make_context(model, params, h2o);
    const int  n_logits = llama_vocab_n_tokens(llama_model_get_vocab(model));

    std::vector<float> expected;
    for (int32_t node = -1, stopped = -1; stopped != 0; ++node) {
        llama_memory_clear(llama_get_memory(ctx.get()), true);
        n_left = -1;
        require(decode(ctx.get(), { { 0, 0, 40 }, { 1, 0, 40 }, { 2, 0, 40 } }) == 0 && decode(ctx.get(), { { 0, 40, 1 }, { 2, 40, 1 } }) == 0, "three sequences are not computed");
        n_left  = node;
        stopped = decode(ctx.get(), { { 0, 41, 1 }, { 2, 41, 1 } }) - (node < 0); // the first time it is not
        n_left  = -1;
        require(decode(ctx.get(), { { 1, 40, 1 } }) == 0, "a sequence cannot be gone on with");

        const float * logits = llama_get_logits(ctx.get());
        if (node < 0) {
            expected.assign(logits, logits + n_logits);
        }
        require(std::equal(expected.begin(), expected.end(), logits), "a stopped step has changed another sequence");
    }
}

// As upstream's programs remove and move positions: context shift; --cache-reuse, which moves pieces one by one.
static void test_moves(llama_model * model) {
    const auto h2o = h2o_of({ { "local", "8" }, { "heavy", "0" }, { "chunk", "32" } });
    const auto ctx = make_context(model, params_of(256), h2o);
    const auto mem = llama_get_memory(ctx.get());

    // what is left of a text of 100 tokens must be as if its pieces had been put there at once
    const auto check = [&](uint32_t n_kept, const std::vector<h2o_piece> & pieces, llama_pos n, auto && change) {
        std::vector<uint8_t> states[2];
        for (auto & state : states) {
            llama_memory_clear(mem, true);
            require(decode(ctx.get(), { { 0, 0, 100 } }) == 0, "a prompt is not computed");
            if (&state == states) {
                change();
            } else {
                h2o_arrange(ctx.get(), 0, n_kept, pieces);
            }
            if (n_tokens(ctx.get()) < n) { // a token closes the gap
                require(decode(ctx.get(), { { 0, n_tokens(ctx.get()), 1 } }) == 0, "no token is put in");
            }
            require(n_tokens(ctx.get()) == n, "a sequence has another length than its pieces say");
            require(decode(ctx.get(), { { 0, n, 1 } }) == 0, "no token follows moved rows");
            state = state_of(ctx.get());
        }
        require(states[0] == states[1], "rows that were moved one by one are not where they belong");
    };
    require(llama_memory_can_shift(mem), "positions cannot be moved");
    check(20, { { 50, 50, 20 } }, 70, [&] {
        require(llama_memory_seq_rm(mem, 0, 20, 50) && n_tokens(ctx.get()) == 20, "a middle part is not removed");
        llama_memory_seq_add(mem, 0, 50, 100, -30);
    });
    check(10, { { 15, 20, 10 }, { 60, 30, 30 } }, 60, [&] {
        llama_memory_seq_rm (mem, 0, 10, 15);
        llama_memory_seq_add(mem, 0, 15, 35, -5);
        llama_memory_seq_rm (mem, 0, 30, 60);
        llama_memory_seq_add(mem, 0, 60, 90, -30);
        require(llama_memory_seq_rm(mem, 0, 60, -1), "what is unseen is not removed");
    });
    check(0, { { 40, 60, 0 } }, 60, [&] {
        llama_memory_seq_rm (mem, 0, 0, 40);
        llama_memory_seq_add(mem, 0, 0, -1, -40);
    });
    check(20, { { 20, 80, 21 } }, 101, [&] { llama_memory_seq_add(mem, 0, 20, -1, 1); });
    require(llama_memory_seq_rm(mem, 0, 64, -1) && llama_memory_seq_rm(mem, 0, -1, -1) && n_tokens(ctx.get()) == 0,
            "the end of a text that was moved is not removed");
}

int main(int argc, char ** argv) {
    require(argc >= 2 && argc <= 4, "usage: test-h2o MODEL [N [SEED]]");
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);

    std::unique_ptr<llama_model, decltype(&llama_model_free)> owner { llama_model_load_from_file(argv[1], llama_model_default_params()), llama_model_free };
    llama_model * model = owner.get();
    require(model != nullptr, "the model cannot be loaded");
    try {
        if (llama_model_is_hybrid(model)) {
            test_stopped_steps(model, h2o_of({ { "local", "8" }, { "heavy", "8" }, { "chunk", "32" }, { "lookup", "0" } }));
            return 0;
        }
        llama_h2o_params h2o = h2o_of({ { "local", "8" }, { "heavy", "8" }, { "chunk", "32" }, { "scorer", "sum" } });
        test_context(model, h2o);
        for (const char * schedule : { "single_pass", "two_phase" }) {
            require(llama_h2o_params_set(&h2o, "schedule", schedule), "a schedule is not taken");
            test_largest_graphs(model, h2o);
        }
        test_moves(model);
        test_damaged_states(model, argc > 2 ? atoi(argv[2]) : 0, argc > 3 ? atoi(argv[3]) : 0);
    } catch (const std::exception & e) {
        fprintf(stderr, "an exception has left a C function: %s\n", e.what());
        return 1;
    }
    puts("test-h2o: what cannot be done is refused, and errors are return values");
}
