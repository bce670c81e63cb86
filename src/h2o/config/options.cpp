// The table of options. C, the bindings, Python's checks, command lines and the printed configuration are made from it:
// a new option is a field of llama_h2o_params and a line here.

#include "h2o/config/options.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <vector>

static const char * const scorers[]    = { "distant", "sum", "block_ema", nullptr };
static const char * const schedules[]  = { "single_pass", "two_phase", nullptr };
static const char * const decodes[]    = { "full", "memory", nullptr };
static const char * const positions[]  = { "text", "cache", nullptr };
static const char * const products[]   = { "auto", "upstream", "own", nullptr };
static const char * const switches[]   = { "off", "on", nullptr };

#define FIELD(name) #name, offsetof(llama_h2o_params, name)

static llama_h2o_option number(const char * name, size_t offset, const char * flag, double min, double max,
        const char * def, const char * help) {
    return { name, flag, LLAMA_H2O_OPTION_NUMBER, offset, def, nullptr, min, max, help };
}

static llama_h2o_option part(const char * name, size_t offset, const char * flag, const char * def, const char * help) {
    return { name, flag, LLAMA_H2O_OPTION_PART, offset, def, nullptr, 0.0, 1.0, help };
}

// the default is the first one
static llama_h2o_option choice(const char * name, size_t offset, const char * flag, const char * const * choices,
        const char * help) {
    const auto kind = choices == switches ? LLAMA_H2O_OPTION_SWITCH : LLAMA_H2O_OPTION_CHOICE;
    return { name, flag, kind, offset, choices[0], choices, 0.0, 0.0, help };
}

static llama_h2o_option text(const char * name, size_t offset, const char * flag, llama_h2o_option_kind kind,
        const char * help) {
    return { name, flag, kind, offset, "", nullptr, 0.0, 0.0, help };
}

static const llama_h2o_option options[] = {
    number(FIELD(chunk_size),    "chunk",  1, INT32_MAX, "1024", "tokens of a chunk"),
    number(FIELD(local_window),  "local",  0, INT32_MAX, "0", "last tokens of a chunk that the next one attends to"),
    number(FIELD(heavy_budget),  "heavy",  0, INT32_MAX, "0", "heavy hitters that a chunk attends to"),
    number(FIELD(sink_tokens),   "sinks",  0, INT32_MAX, "0", "first tokens of the text that every chunk attends to"),
    number(FIELD(lookup_budget), "lookup", 0, INT32_MAX, "0", "distant tokens that every token looks up, by an index of keys"),
    number(FIELD(tile),          "tile",   1, INT32_MAX, "32", "consecutive tokens that share their lookups"),
    choice(FIELD(scorer),        "scorer", scorers, "how heavy hitters are ranked"),
    number(FIELD(block_tokens),  "block",  1, INT32_MAX, "16", "block_ema: tokens of a block, kept or dropped together"),
    part  (FIELD(ema_alpha),     "ema",    "0.5", "block_ema: part of a score that stays when a chunk is closed"),
    choice(FIELD(shared_heads),  "shared-heads", switches, "all KV heads of a layer keep the same tokens"),
    part  (FIELD(keep_ratio),    "keep",   "0", "part of the text that a memory set may hold; 0: no limit"),
    choice(FIELD(schedule),      "schedule", schedules, "one pass, or all chunks alone and then again with memory sets"),
    choice(FIELD(decode),        "decode", decodes, "generated tokens attend to everything, or like tokens of a prompt"),
    text  (FIELD(dense_layers),  "dense-layers", LLAMA_H2O_OPTION_LAYERS,
            "layers that attend to everything, such as 0-2,11"),
    choice(FIELD(evict),         "evict", switches,
            "drop tokens outside of the memory sets: the cache does not grow with the text"),
    choice(FIELD(positions),     "positions", positions, "evict: positions beyond the trained length, of the text or no further away than that"),
    text  (FIELD(cold_store),    "cold-store", LLAMA_H2O_OPTION_TEXT,
            "evict: where dropped tokens go, to be looked up: memory, or a folder"),
    choice("lossless",        offsetof(llama_h2o_params, lossless.on),        "lossless", switches,
           "cold store: compress it without loss"),
    number("codec_threads",   offsetof(llama_h2o_params, lossless.n_threads), "codec-threads", 1, 512, "2",
            "lossless: threads that compress"),
    choice(FIELD(products),      "products", products,
            "who multiplies by weights on the CPU, with H2O or without: auto is own with H2O, and upstream without"),
};
static_assert(std::size(options) <= LLAMA_H2O_MAX_OPTIONS, "patch 0006 offers no more of them");

template <typename T>
static T & field(const llama_h2o_params & params, const llama_h2o_option & option) {
    return *(T *) ((char *) &params + option.offset);
}

// numbers and ranges of layers with commas between them; nothing is none
static bool set_layers(uint64_t * dst, const char * value) {
    uint64_t res[LLAMA_H2O_MAX_LAYERS/64] = {};

    const auto read = [&](uint32_t & number) {
        if (*value < '0' || *value > '9') {
            return false;
        }
        char * end;
        number = std::min(strtoull(value, &end, 10), (unsigned long long) LLAMA_H2O_MAX_LAYERS);
        value  = end;
        return number < LLAMA_H2O_MAX_LAYERS;
    };

    while (*value) {
        uint32_t first;
        if (!read(first)) {
            return false;
        }
        uint32_t last = first;
        if (*value == '-' && (value++, !read(last) || last < first)) {
            return false;
        }
        for (uint32_t il = first; il <= last; ++il) {
            res[il/64] |= uint64_t(1) << il%64;
        }
        if (*value && (*value++ != ',' || !*value)) {
            return false;
        }
    }
    memcpy(dst, res, sizeof(res));
    return true;
}

static bool set_value(llama_h2o_params & params, const llama_h2o_option & option, const char * value) {
    char * end;
    errno = 0;
    switch (option.kind) {
        case LLAMA_H2O_OPTION_NUMBER: {
            const long long x = strtoll(value, &end, 10);
            if (end == value || *end || errno || x < option.min || x > option.max) {
                return false;
            }
            field<uint32_t>(params, option) = x;
            return true;
        }
        case LLAMA_H2O_OPTION_PART: {
            const double x = strtod(value, &end);
            if (end == value || *end || !(x >= option.min && x <= option.max)) {
                return false;
            }
            field<double>(params, option) = x;
            return true;
        }
        case LLAMA_H2O_OPTION_CHOICE:
        case LLAMA_H2O_OPTION_SWITCH:
            for (uint32_t i = 0; option.choices[i]; ++i) {
                if (strcmp(value, option.choices[i]) == 0) {
                    if (option.kind == LLAMA_H2O_OPTION_SWITCH) {
                        field<bool>(params, option) = i;
                    } else {
                        field<uint32_t>(params, option) = i;
                    }
                    return true;
                }
            }
            return false;
        case LLAMA_H2O_OPTION_TEXT:
            if (strlen(value) >= LLAMA_H2O_MAX_PATH) {
                return false;
            }
            strcpy(&field<char>(params, option), value);
            return true;
        case LLAMA_H2O_OPTION_LAYERS:
            return set_layers(&field<uint64_t>(params, option), value);
    }
    return false;
}

// "a, b or c"
static std::string list_choices(const llama_h2o_option & option) {
    std::string res;
    for (int i = 0; option.choices[i]; ++i) {
        res += (i == 0 ? "" : option.choices[i + 1] ? ", " : " or ") + std::string(option.choices[i]);
    }
    return res;
}

static std::string allowed_values(const llama_h2o_option & option) {
    switch (option.kind) {
        case LLAMA_H2O_OPTION_NUMBER: return "an integer from " + std::to_string((int64_t) option.min) + " to " +
                std::to_string((int64_t) option.max);
        case LLAMA_H2O_OPTION_PART:   return "a number from 0 to 1";
        case LLAMA_H2O_OPTION_TEXT:   return "of less than " + std::to_string(LLAMA_H2O_MAX_PATH) + " bytes";
        case LLAMA_H2O_OPTION_LAYERS: return "layers below " + std::to_string(LLAMA_H2O_MAX_LAYERS) +
                ", such as 0-2,11";
        default:                      return list_choices(option);
    }
}

void h2o_set_option(llama_h2o_params & params, const std::string & name, const std::string & value) {
    for (const auto & option : options) {
        if (name != option.name && name != option.flag) {
            continue;
        }
        if (!set_value(params, option, value.c_str())) {
            throw std::invalid_argument("[h2o] " + name + " must be " + allowed_values(option) + ", got '" +
                    (value.size() > 80 ? value.substr(0, 77) + "..." : value) + "'");
        }
        return;
    }
    throw std::invalid_argument("[h2o] there is no option '" + name + "'");
}

std::string h2o_option_text(const llama_h2o_params & params, const llama_h2o_option & option) {
    switch (option.kind) {
        case LLAMA_H2O_OPTION_NUMBER: return std::to_string(field<uint32_t>(params, option));
        case LLAMA_H2O_OPTION_PART: {
            char res[32];
            snprintf(res, sizeof(res), "%.15g", field<double>(params, option));
            return res;
        }
        case LLAMA_H2O_OPTION_CHOICE: {
            uint32_t i = 0;
            while (option.choices[i] && i < field<uint32_t>(params, option)) {
                i++;
            }
            return option.choices[i] ? option.choices[i] : "";
        }
        case LLAMA_H2O_OPTION_SWITCH: return option.choices[field<bool>(params, option)];
        case LLAMA_H2O_OPTION_TEXT: {
            const char * res = &field<char>(params, option);
            return { res, std::find(res, res + LLAMA_H2O_MAX_PATH, 0) };
        }
        case LLAMA_H2O_OPTION_LAYERS: {
            std::string res;
            for (uint32_t il = 0; il < LLAMA_H2O_MAX_LAYERS; ++il) {
                if ((&field<uint64_t>(params, option))[il/64] >> il%64 & 1) {
                    res += (res.empty() ? "" : ",") + std::to_string(il);
                }
            }
            return res;
        }
    }
    return "";
}

void h2o_check_options(const llama_h2o_params & params) {
    for (const auto & option : options) {
        llama_h2o_params copy = params;
        if (!set_value(copy, option, h2o_option_text(params, option).c_str())) {
            throw std::invalid_argument("[h2o] " + std::string(option.name) + " must be " + allowed_values(option));
        }
    }
}

const llama_h2o_option * llama_h2o_get_option(size_t i) {
    return i < std::size(options) ? &options[i] : nullptr;
}

const char * llama_h2o_option_usage(size_t i) {
    static const std::vector<std::string> res = [] {
        std::vector<std::string> res;
        for (const auto & option : options) {
            const std::string choices = option.choices ? ": " + list_choices(option) : "";
            res.push_back("H2O: " + std::string(option.help) + choices + " (default: " + (*option.def ?
                    option.def : "none") + ")");
        }
        return res;
    }();
    return i < res.size() ? res[i].c_str() : nullptr;
}

llama_h2o_params llama_h2o_default_params() {
    llama_h2o_params res = {};
    for (const auto & option : options) {
        set_value(res, option, option.def);
    }
    return res;
}

bool llama_h2o_params_set(llama_h2o_params * params, const char * name, const char * value) {
    try {
        h2o_set_option(*params, name, value);
        return true;
    } catch (const std::exception &) {
        return false;
    }
}

bool llama_h2o_params_enabled(const llama_h2o_params * params) {
    return params->local_window > 0 || params->heavy_budget > 0 || params->sink_tokens > 0;
}

bool llama_h2o_params_own_products(const llama_h2o_params * params) {
    return params->products == LLAMA_H2O_PRODUCTS_AUTO ? llama_h2o_params_enabled(params) :
            params->products == LLAMA_H2O_PRODUCTS_OWN;
}

int32_t llama_h2o_params_desc(const llama_h2o_params * params, char * buf, size_t size) {
    const bool enabled = llama_h2o_params_enabled(params);
    std::string res = enabled ? "" : "off";
    for (const auto & option : options) {
        const bool counts = enabled || option.offset == offsetof(llama_h2o_params, products);
        if (const std::string value = h2o_option_text(*params, option); counts && value != option.def) {
            res += (res.empty() ? "" : " ") + std::string(option.flag) + " " + value;
        }
    }
    return snprintf(buf, size, "%s", res.c_str());
}
