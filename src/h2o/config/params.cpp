#include "llama-h2o.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

static const char * const schedule_names[]  = { "single_pass", "two_phase" };
static const char * const decode_names[]    = { "full", "memory" };
static const char * const retrieval_names[] = { "ngrams", "index" };
static const char * const evict_names[]     = { "off", "on" };
static const char * const heads_names[]     = { "own", "shared" };
static const char * const lossless_names[]  = { "off", "probe", "full", "store" };

llama_h2o_params llama_h2o_default_params() {
    return {
        /*.local_window =*/ 0,
        /*.heavy_budget =*/ 0,
        /*.sink_tokens  =*/ 0,
        /*.scorer       =*/ llama_h2o_scorer_name(0),
        /*.schedule     =*/ LLAMA_H2O_SCHEDULE_SINGLE_PASS,
        /*.decode       =*/ LLAMA_H2O_DECODE_FULL,
        /*.lookup_budget =*/ 0,
        /*.tile          =*/ 4,
        /*.block_tokens  =*/ 16,
        /*.ema_alpha     =*/ 0.5f,
        /*.shared_heads  =*/ false,
        /*.keep_ratio    =*/ 0.0,
        /*.retrieval     =*/ LLAMA_H2O_RETRIEVAL_NGRAMS,
        /*.evict         =*/ false,
        /*.cold_store    =*/ {},
        /*.lossless      =*/ { LLAMA_H2O_LOSSLESS_OFF, /*.n_threads =*/ 2, /*.max_queue =*/ 8, /*.strict =*/ false },
        /*.dense_layers  =*/ {},
    };
}

const llama_h2o_option * llama_h2o_options() {
    static const llama_h2o_option res[] = {
        { "local",    "N",    "H2O: last positions of a chunk that the next one attends to; the chunk size is --ubatch-size (default: 0; local, heavy and sinks 0: off)" },
        { "heavy",    "N",    "H2O: heavy hitters that a chunk attends to (default: 0)" },
        { "sinks",    "N",    "H2O: first positions that every chunk attends to (default: 0)" },
        { "scorer",   "NAME", "H2O: how heavy hitters are chosen, distant, sum or block_ema (default: distant)" },
        { "block",    "N",    "H2O, scorer block_ema: tokens of a block, all of which are kept or none (default: 16)" },
        { "ema",      "X",    "H2O, scorer block_ema: what is left of a score when a chunk is closed (default: 0.5)" },
        { "heads",    "NAME", "H2O: shared: all KV heads of a layer keep the same tokens (default: own)" },
        { "keep",     "X",    "H2O: part of the text that a memory set holds, if local, heavy and sinks have room for it (default: 0, as many as these)" },
        { "schedule", "NAME", "H2O: how a prompt is computed, single_pass or two_phase (default: single_pass)" },
        { "decode",   "NAME", "H2O: what generated tokens attend to, full (everything) or memory (as a prompt's tokens) (default: full)" },
        { "lookup",   "N",    "H2O: positions that a query attends to besides (default: 0)" },
        { "retrieval", "NAME", "H2O: how they are found, ngrams (by the text) or index (by the keys, for every layer and head) (default: ngrams)" },
        { "tile",     "N",    "H2O, ngrams: queries that look up so many: fewer, and each looks up more (default: 4)" },
        { "evict",    "NAME", "H2O: on: what is not in a memory set is dropped, which needs decode memory and either lookup 0 or a cold store (default: off)" },
        { "cold-store", "WHERE", "H2O: where it goes, to be looked up there: memory, or a folder for a temporary file (default: none)" },
        { "lossless", "NAME", "H2O: store: what is there is compressed, without loss; full: only to see that it can be; probe: only to see how much it would save (default: off)" },
        { "dense",    "LIST", "H2O: layers that attend to everything, such as 0-2,11 (default: none)" },
        { nullptr, nullptr, nullptr },
    };
    static_assert(sizeof(res) == (LLAMA_H2O_N_OPTIONS + 1)*sizeof(llama_h2o_option), "");
    return res;
}

static bool set_number(uint32_t & dst, const char * value) {
    char * end;
    errno = 0;
    const long long number = strtoll(value, &end, 10);
    if (end == value || *end || errno || number < 0 || number > INT32_MAX) {
        return false;
    }
    dst = number;
    return true;
}

// in [0, 1]
template <typename T>
static bool set_part(T & dst, const char * value) {
    char * end;
    const double number = strtod(value, &end);
    if (end == value || *end || !(number >= 0.0 && number <= 1.0)) {
        return false;
    }
    dst = number;
    return true;
}

// the value whose name this is
template <typename T, size_t N>
static bool set_choice(T & dst, const char * const (&names)[N], const char * value) {
    for (size_t i = 0; i < N; ++i) {
        if (strcmp(value, names[i]) == 0) {
            dst = (T) i;
            return true;
        }
    }
    return false;
}

// numbers and ranges of layers with commas between them
static bool set_layers(uint64_t * dst, const char * value) {
    uint64_t layers[LLAMA_H2O_MAX_LAYERS/64] = {};

    const auto read = [&](uint32_t & number) {
        if (*value < '0' || *value > '9') {
            return false;
        }
        char * end;
        number = std::min(strtoull(value, &end, 10), (unsigned long long) LLAMA_H2O_MAX_LAYERS);
        value  = end;
        return number < LLAMA_H2O_MAX_LAYERS;
    };

    while (true) {
        uint32_t first;
        if (!read(first)) {
            return false;
        }
        uint32_t last = first;
        if (*value == '-' && (value++, !read(last))) {
            return false;
        }
        for (uint32_t il = first; il <= last; ++il) {
            layers[il/64] |= uint64_t(1) << il%64;
        }
        if (*value == 0) {
            break;
        }
        if (*value++ != ',') {
            return false;
        }
    }
    memcpy(dst, layers, sizeof(layers));
    return true;
}

bool llama_h2o_params_set(llama_h2o_params * params, const char * name, const char * value) {
    if (strcmp(name, "local") == 0) {
        return set_number(params->local_window, value);
    }
    if (strcmp(name, "heavy") == 0) {
        return set_number(params->heavy_budget, value);
    }
    if (strcmp(name, "sinks") == 0) {
        return set_number(params->sink_tokens, value);
    }
    if (strcmp(name, "lookup") == 0) {
        return set_number(params->lookup_budget, value);
    }
    if (strcmp(name, "tile") == 0) {
        return set_number(params->tile, value);
    }
    if (strcmp(name, "block") == 0) {
        return set_number(params->block_tokens, value);
    }
    if (strcmp(name, "ema") == 0) {
        return set_part(params->ema_alpha, value);
    }
    if (strcmp(name, "heads") == 0) {
        return set_choice(params->shared_heads, heads_names, value);
    }
    if (strcmp(name, "keep") == 0) {
        return set_part(params->keep_ratio, value);
    }
    if (strcmp(name, "dense") == 0) {
        return set_layers(params->dense_layers, value);
    }
    if (strcmp(name, "scorer") == 0) {
        for (int32_t i = 0; const char * scorer = llama_h2o_scorer_name(i); ++i) {
            if (strcmp(value, scorer) == 0) {
                params->scorer = scorer;
                return true;
            }
        }
    }
    if (strcmp(name, "schedule") == 0) {
        return set_choice(params->schedule, schedule_names, value);
    }
    if (strcmp(name, "decode") == 0) {
        return set_choice(params->decode, decode_names, value);
    }
    if (strcmp(name, "retrieval") == 0) {
        return set_choice(params->retrieval, retrieval_names, value);
    }
    if (strcmp(name, "cold-store") == 0) {
        if (strlen(value) >= sizeof(params->cold_store)) {
            return false;
        }
        strcpy(params->cold_store, value);
        return true;
    }
    if (strcmp(name, "lossless") == 0) {
        return set_choice(params->lossless.mode, lossless_names, value);
    }
    if (strcmp(name, "evict") == 0) {
        return set_choice(params->evict, evict_names, value);
    }
    return false;
}

bool llama_h2o_params_enabled(const llama_h2o_params * params) {
    return params->local_window > 0 || params->heavy_budget > 0 || params->sink_tokens > 0;
}

int32_t llama_h2o_params_desc(const llama_h2o_params * params, char * buf, size_t size) {
    if (!llama_h2o_params_enabled(params)) {
        return snprintf(buf, size, "off");
    }
    return snprintf(buf, size, "local %u heavy %u sinks %u lookup %u by %s scorer %s %s decode %s%s", params->local_window, params->heavy_budget,
            params->sink_tokens, params->lookup_budget, retrieval_names[params->retrieval], params->scorer, schedule_names[params->schedule], decode_names[params->decode], params->evict ? " evict" : "");
}
