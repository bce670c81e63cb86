#include "h2o/graph/rope.h"

#include "h2o/config/refusal.h"

#include "ggml.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>

// places of ggml's parameters
enum { ROPE_MODE = 2, ROPE_FREQ_SCALE = 6, ROPE_EXT_FACTOR = 7, ROPE_ATTN_FACTOR = 8 };

namespace {

// Looks for RoPE between a layer's keys and the product with weights that they are.
struct search {
    const ggml_tensor * hadamard;

    bool is_last = true; // the keys are RoPE's result, possibly reshaped

    std::set<const ggml_tensor *> seen = {};

    // NULL: none
    const ggml_tensor * find(const ggml_tensor * t) {
        if (!t || !seen.insert(t).second) {
            return nullptr;
        }
        switch (t->op) {
            case GGML_OP_ROPE:
                return t;
            case GGML_OP_MUL_MAT:
                return hadamard && t->src[0] == hadamard ? find(t->src[1]) : nullptr;
            case GGML_OP_SUB: // of the mean of keys
            case GGML_OP_RESHAPE:
            case GGML_OP_VIEW:
            case GGML_OP_PERMUTE:
            case GGML_OP_CONT:
                return find(t->src[0]);
            default:
                is_last = false;
                for (const ggml_tensor * src : t->src) {
                    if (const ggml_tensor * res = find(src)) {
                        return res;
                    }
                }
                return nullptr;
        }
    }
};

} // namespace

static float get_float(const ggml_tensor * t, int i) {
    float res;
    memcpy(&res, &t->op_params[i], sizeof(res));
    return res;
}

std::optional<h2o_rope> h2o_find_rope(const ggml_tensor * k, const ggml_tensor * hadamard, int32_t il) {
    search from_keys = { hadamard };

    const ggml_tensor * rope = from_keys.find(k);
    if (!rope) {
        return {};
    }
    const int  mode     = rope->op_params[ROPE_MODE];
    const bool is_plain = mode == GGML_ROPE_TYPE_NORMAL || mode == GGML_ROPE_TYPE_NEOX;
    if (!from_keys.is_last || !is_plain) {
        throw h2o_refusal(h2o_reason::POSITIONS,
                "[h2o] positions cache needs keys that plain RoPE has rotated as a whole and last, but in layer " +
                std::to_string(il) +
                " of this model " + (is_plain ?
                        "it rotates a part, or something follows it" : "RoPE has several positions for a token") +
                ". Use positions text");
    }

    h2o_rope res = { {}, rope->src[2] };
    std::copy_n(rope->op_params, res.params.size(), res.params.begin());

    // YaRN multiplies keys once. With ext_factor ggml also multiplies attn_factor.
    const float ext_factor  = get_float(rope, ROPE_EXT_FACTOR);
    const float attn_factor = ext_factor != 0.0f ? 1.0f/(1.0f + 0.1f*std::log(1.0f/get_float(rope, ROPE_FREQ_SCALE))) :
            1.0f;
    memcpy(&res.params[ROPE_ATTN_FACTOR], &attn_factor, sizeof(attn_factor));
    return res;
}
