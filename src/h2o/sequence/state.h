#pragma once

#include "h2o/config/config.h"
#include "h2o/sequence/checkpoint.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

// What a tile has chosen by the index of keys.
struct h2o_tile_choice {
    std::shared_ptr<const std::vector<int32_t>> all; // [n_head_kv, n_tiles, n] positions, ascending, -1 padded
    uint32_t i, n_tiles; // it is the ith of the step's tiles that are kept: the last one, or all
};

// Scores and memory set of one layer.
struct h2o_layer {
    uint32_t index; // among the layers that have memory sets
    int32_t  il;    // in the model
    uint32_t n_head;
    uint32_t n_head_kv;

    uint32_t n_built    = 0; // memory sets built so far
    uint32_t memory_end = 0; // where the chunk of the current one ends

    std::vector<int32_t> memory;        // [n_head_kv, n] positions of the current memory set, ascending
    std::vector<float>   memory_scores; // [n_head_kv, n] with eviction; else they are among `scores`

    // [.., n_head_kv] of the positions from `first` on: all of them, with eviction the open chunk's
    std::vector<float> scores;
    uint32_t           first = 0;

    std::vector<float> attention; // [.., n_head_kv] of the tails that kept it: sums of weights of all positions

    std::map<uint32_t, h2o_tile_choice> extra_keys; // by tile; of one at least, unless tokens were removed

    // from this tile on
    void forget_extra_keys(uint32_t tile) { extra_keys.erase(extra_keys.lower_bound(tile), extra_keys.end()); }

    h2o_layer(uint32_t index, int32_t il, uint32_t n_head, uint32_t n_head_kv)
        : index(index), il(il), n_head(n_head), n_head_kv(n_head_kv) {}

    size_t n_memory() const { return memory.size()/n_head_kv; }

    // no position from `end` on has a score, those before have one
    void set_end(uint32_t end) { scores.resize((size_t) (end - first)*n_head_kv); }
    void grow   (uint32_t end) { set_end(std::max(end, this->end())); }

    uint32_t end() const { return first + scores.size()/n_head_kv; }

    float & score(uint32_t head, uint32_t pos) { return scores[(size_t) (pos - first)*n_head_kv + head]; }
    float   score(uint32_t head, uint32_t pos) const { return scores[(size_t) (pos - first)*n_head_kv + head]; }

    // score of the i-th position of a head's memory set
    float & memory_score(uint32_t head, size_t i) {
        const size_t k = head*n_memory() + i;
        return memory_scores.empty() ? score(head, memory[k]) : memory_scores[k];
    }
    float memory_score(uint32_t head, size_t i) const { return const_cast<h2o_layer *>(this)->memory_score(head, i); }
};

// Everything that is known about one text.
struct h2o_sequence_state {
    const h2o_config * config = nullptr;

    uint32_t n_tokens = 0;
    uint32_t n_scored = 0; // the tokens before it have changed scores
    uint32_t generated_start = 0; // the last tokens, from here on, were generated

    bool is_scored  = false; // layers have scores
    bool is_by_hand = false; // a memory set was replaced

    // Tokens from here on were computed with other text before them: they have been moved, or have read such.
    uint32_t exact_end = UINT32_MAX;

    // Rows behind the end that no token sees, [first, second): the sequence takes them over where it reaches them.
    std::map<uint32_t, uint32_t> unseen;

    std::vector<h2o_layer> layers;

    // By position: boundaries, made when the next chunk begins; within a chunk starts of a prompt's calls, and generated
    // tokens that are scored.
    std::map<uint32_t, h2o_checkpoint> checkpoints;

    uint32_t n_memory_sets() const {
        uint32_t res = 0;
        for (const auto & layer : layers) {
            res = std::max(res, layer.n_built);
        }
        return res;
    }

    // first position of the open chunk; a complete one is open until its memory set is built
    uint32_t open_start() const {
        return std::max(n_tokens == 0 ? 0 : config->chunk_start(n_tokens - 1), n_memory_sets()*config->chunk_size);
    }

    // NULL if the layer has no memory sets
    const h2o_layer * layer(int32_t il) const {
        for (const auto & layer : layers) {
            if (layer.il == il) {
                return &layer;
            }
        }
        return nullptr;
    }

    // score of every position so far [n_head_kv, n_tokens]; NaN if it is evicted. Only if there are scores
    std::vector<float> scores(const h2o_layer & layer) const;

    // positions of the current memory set [n_head_kv, M], ascending, -1 padded
    std::vector<int32_t> memory(const h2o_layer & layer) const;

    // the same of the chunk's, an earlier one; empty if it was not kept
    std::vector<int32_t> past_memory(const h2o_layer & layer, uint32_t chunk) const;

    // The extra keys of a tile's queries, ascending positions. None if they are not kept.
    std::optional<std::vector<int32_t>> extra_keys(const h2o_layer & layer, uint32_t head, uint32_t tile) const;

    // A checkpoint without the open chunk's tokens from `end` on, but with their scores. first: see h2o_checkpoint
    h2o_checkpoint        record(uint32_t end, uint32_t first) const;
    h2o_checkpoint::layer record(const h2o_layer & layer, uint32_t end, uint32_t first) const;

    // generated tokens change scores
    bool scores_generated() const { return is_scored && config->decode == LLAMA_H2O_DECODE_MEMORY; }
};
