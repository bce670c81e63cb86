#include "bindings/context/rope.h"

#include <stdexcept>

void apply(const rope_options & rope, llama_context_params & params) {
    static const std::map<std::string, float llama_context_params::*> numbers = {
        { "rope_freq_base",   &llama_context_params::rope_freq_base   },
        { "rope_freq_scale",  &llama_context_params::rope_freq_scale  },
        { "yarn_ext_factor",  &llama_context_params::yarn_ext_factor  },
        { "yarn_attn_factor", &llama_context_params::yarn_attn_factor },
        { "yarn_beta_fast",   &llama_context_params::yarn_beta_fast   },
        { "yarn_beta_slow",   &llama_context_params::yarn_beta_slow   },
    };

    for (const auto & [name, value] : rope) {
        const auto number = numbers.find(name);
        if (number != numbers.end()) {
            params.*number->second = (float) value;
        } else if (name == "rope_scaling_type") {
            params.rope_scaling_type = (llama_rope_scaling_type) value;
        } else if (name == "yarn_orig_ctx") {
            params.yarn_orig_ctx = (uint32_t) value;
        } else {
            throw std::invalid_argument("[Context] rope: there is no option '" + name + "'");
        }
    }
}
