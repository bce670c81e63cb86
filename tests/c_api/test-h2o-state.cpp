// Damaged states: test-h2o-state MODEL [N [SEED]]. Each of N is refused, or is a sequence that can be gone on with. Made for a build
// with sanitizers (tools/check_sanitizers.py); exit status 1 says what failed.

#include "llama-h2o.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

static void require(bool ok, const char * what) {
    if (!ok) {
        fprintf(stderr, "test-h2o-state: %s\n", what);
        exit(1);
    }
}

using options = std::vector<std::pair<const char *, const char *>>;

static const options CONFIGS[] = {
    {}, // no H2O
    { { "local", "4" }, { "heavy", "6" }, { "sinks", "1" }, { "lookup", "12" }, { "tile", "4" } },
    { { "local", "4" }, { "heavy", "6" }, { "scorer", "sum" }, { "lookup", "8" }, { "retrieval", "index" }, { "dense-layers", "1" } },
    { { "local", "3" }, { "heavy", "9" }, { "scorer", "sum" }, { "lookup", "8" }, { "tile", "8" }, { "decode", "memory" } },
    { { "local", "4" }, { "heavy", "6" }, { "schedule", "two_phase" } },
    { { "local", "4" }, { "heavy", "6" }, { "decode", "memory" }, { "evict", "on" } },
    { { "local", "4" }, { "heavy", "6" }, { "scorer", "sum" }, { "dense-layers", "0" }, { "decode", "memory" }, { "evict", "on" } },
    { { "local", "4" }, { "heavy", "6" }, { "lookup", "8" }, { "tile", "8" }, { "decode", "memory" }, { "evict", "on" }, { "cold-store", "memory" } },
    { { "local", "4" }, { "heavy", "6" }, { "lookup", "8" }, { "tile", "8" }, { "decode", "memory" }, { "evict", "on" }, { "cold-store", "memory" }, { "lossless", "store" } },
    { { "local", "4" }, { "heavy", "24" }, { "sinks", "4" }, { "scorer", "block_ema" }, { "block", "4" }, { "shared-heads", "on" }, { "keep", "0.4" }, { "decode", "memory" }, { "evict", "on" } },
};

struct sequence {
    std::unique_ptr<llama_context, decltype(&llama_free)> ctx { nullptr, llama_free };
    std::vector<uint8_t> good;

    sequence(llama_model * model, const options & config) {
        llama_h2o_params h2o = llama_h2o_default_params();
        h2o.chunk_size = 16;
        for (const auto & [name, value] : config) {
            require(llama_h2o_params_set(&h2o, name, value), "a parameter is not taken");
        }
        llama_context_params params = llama_context_default_params();
        params.n_ctx     = 256;
        params.n_ubatch  = 16;
        params.n_threads = params.n_threads_batch = 1;
        params.h2o       = config.empty() ? nullptr : &h2o;
        ctx.reset(llama_init_from_model(model, params));
        require(ctx != nullptr, "no context is made");

        if (auto * kv = llama_get_h2o_kv(ctx.get())) {
            llama_h2o_kv_set_record(kv, true);
        }
        eval(70);
        eval(1);
        good = state();
        require(set(good), "a good state is refused");
        require(state() == good, "a state changes by being restored");
    }

    llama_memory_t memory() const { return llama_get_memory(ctx.get()); }

    void eval(int32_t n) {
        std::vector<llama_token> tokens(n);
        for (int32_t i = 0; i < n; ++i) {
            tokens[i] = 'a' + i%7;
        }
        require(llama_decode(ctx.get(), llama_batch_get_one(tokens.data(), n)) == 0, "tokens are not computed");
    }

    std::vector<uint8_t> state() const {
        std::vector<uint8_t> res(llama_state_seq_get_size(ctx.get(), 0));
        require(llama_state_seq_get_data(ctx.get(), res.data(), res.size(), 0) == res.size(), "no state is saved");
        return res;
    }

    bool set(const std::vector<uint8_t> & bytes) {
        llama_memory_clear(memory(), false);
        if (llama_state_seq_set_data(ctx.get(), bytes.data(), bytes.size(), 0) != bytes.size()) {
            return false;
        }
        // without H2O a state may be of any positions
        return llama_memory_seq_pos_min(memory(), 0) >= 0 && llama_memory_seq_pos_max(memory(), 0) == 70;
    }

    // all that can be asked
    void use() {
        if (const auto * kv = llama_get_h2o_kv(ctx.get())) {
            const llama_h2o_info info = llama_h2o_kv_info(kv);
            for (uint32_t i = 0; i < llama_h2o_kv_n_layer(kv); ++i) {
                const int32_t  il     = llama_h2o_kv_layer_id(kv, i);
                const uint32_t n_head = llama_h2o_kv_n_head_kv(kv, il);

                std::vector<float>   scores(n_head*info.n_tokens);
                std::vector<int32_t> memory(n_head*info.memory_size);
                require(llama_h2o_kv_scores(kv, il, scores.data()) && llama_h2o_kv_memory_indices(kv, il, memory.data()), "scores or memory sets are not there");
                for (uint32_t chunk = 0; chunk < info.n_memory_sets; ++chunk) {
                    llama_h2o_kv_history(kv, chunk, il, memory.data());
                }
                for (uint32_t tile = 0; tile*info.tile < info.n_tokens; ++tile) {
                    std::vector<int32_t> keys(std::max(0, llama_h2o_kv_extra_keys(kv, il, n_head - 1, tile, nullptr)));
                    llama_h2o_kv_extra_keys(kv, il, n_head - 1, tile, keys.data());
                }
            }
        }
        eval(1);
        eval(20); // over the end of a chunk
        eval(1);
        for (const int32_t pos : { 85, 64, 48, 16 }) {
            if (llama_memory_seq_rm(memory(), 0, pos, -1)) {
                eval(18);
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

int main(int argc, char ** argv) {
    require(argc >= 2 && argc <= 4, "usage: test-h2o-state MODEL [N [SEED]]");
    const int      n    = argc > 2 ? atoi(argv[2]) : 1000;
    const uint32_t seed = argc > 3 ? atoi(argv[3]) : 0;

    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);

    std::unique_ptr<llama_model, decltype(&llama_model_free)> model { llama_model_load_from_file(argv[1], llama_model_default_params()), llama_model_free };
    require(model != nullptr, "the model cannot be loaded");

    int n_taken = 0;
    for (const auto & config : CONFIGS) {
        sequence seq(model.get(), config);
        for (int i = 0; i < n/(int) std::size(CONFIGS); ++i) {
            std::mt19937 rng(seed + i);
            if (seq.set(damaged(seq.good, rng))) {
                seq.use();
                n_taken++;
            }
        }
        require(seq.set(seq.good) && seq.state() == seq.good, "a good state is refused after bad ones");
        seq.use();
    }
    printf("test-h2o-state: %d damaged states, %d of them can be gone on with, the others are refused\n", n, n_taken);
}
