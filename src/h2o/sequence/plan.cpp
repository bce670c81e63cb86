#include "h2o/sequence/plan.h"

#include <algorithm>

std::vector<h2o_step> h2o_plan(const h2o_config & config, const h2o_call & call) {
    const uint32_t S = config.chunk_size;

    std::vector<h2o_step> res;

    // the tokens [offset, end) of the call, cut where chunks begin; of scored generated tokens as many as can be undone
    const auto add_steps = [&](h2o_step::phase_t phase, uint32_t offset, uint32_t end) {
        const bool has_memory = phase == h2o_step::SINGLE_PASS || phase == h2o_step::INTER ||
            (phase == h2o_step::DECODE && config.decode == LLAMA_H2O_DECODE_MEMORY);

        const uint32_t n_max = phase == h2o_step::DECODE && has_memory ?
                std::min(call.n_ubatch, h2o_config::MAX_GENERATED) : call.n_ubatch;

        while (offset < end) {
            const uint32_t pos = call.pos + offset;
            const uint32_t n_open = pos % S % config.tile; // of a tile that has begun

            uint32_t n = std::min({ end - offset, S - pos%S, n_max });
            if (n == n_max && n_open + n > config.tile) { // a tile's queries choose together: it is not cut
                n -= phase == h2o_step::DECODE ? 0 : (n_open + n) % config.tile;
            }
            res.push_back({ phase, pos, n, offset, has_memory ? config.n_memory(config.chunk_start(pos)) : 0, false,
                    call.keeps_attention && phase == h2o_step::TAIL, call.keeps_choices });
            offset += n;
        }
    };

    if (call.is_decode) {
        add_steps(h2o_step::DECODE, 0, call.n_tokens);
        return res;
    }

    // without evicted tokens a tail attends to nothing else
    const uint32_t n_sparse = call.n_tokens - (config.evict && !config.has_cold_store() ?
            0 : std::min(call.n_tail, call.n_tokens));

    if (config.schedule == LLAMA_H2O_SCHEDULE_SINGLE_PASS) {
        add_steps(h2o_step::SINGLE_PASS, 0, n_sparse);
    } else if (n_sparse > 0) {
        const bool has_phase2 = call.pos + n_sparse > S;

        res.push_back({ h2o_step::INTRA, call.pos, n_sparse, 0, 0, has_phase2 });
        if (has_phase2) {
            add_steps(h2o_step::INTER, 0, n_sparse);
        }
    }
    add_steps(h2o_step::TAIL, n_sparse, call.n_tokens);

    return res;
}

std::vector<h2o_step> h2o_largest_steps(const h2o_config & config, uint32_t kv_size, uint32_t n_batch,
        uint32_t n_ubatch, bool fused_attention) {
    const bool     is_two_phase = config.schedule == LLAMA_H2O_SCHEDULE_TWO_PHASE;
    const uint32_t n_step       = std::min(n_ubatch, kv_size);

    std::vector<h2o_step> res;
    if (is_two_phase) {
        // an open chunk, whole chunks, and another open one
        const uint32_t n = std::min(n_batch, kv_size);
        res.push_back({ h2o_step::INTRA, std::min(config.chunk_size/2, kv_size - n), n, 0, 0, true });
    }
    if (config.has_dense_layers() && config.chunk_size <= kv_size) {
        const uint32_t end = config.chunk_start(kv_size);
        res.push_back({ h2o_step::SINGLE_PASS, end - n_step, n_step, 0,
                config.n_memory(config.chunk_start(end - n_step)), false });
    }
    if (fused_attention && !config.evict) {
        res.push_back({ h2o_step::TAIL, kv_size - n_step, n_step, 0, 0, false });
    }
    return res;
}
