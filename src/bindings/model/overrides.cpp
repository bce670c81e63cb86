#include "bindings/model/overrides.h"

#include <cstdio>

// Python has checked that it fits.
static void copy_text(char (&target)[128], const std::string & text) {
    snprintf(target, sizeof(target), "%s", text.c_str());
}

std::vector<llama_model_kv_override> to_llama(const kv_overrides & overrides) {
    std::vector<llama_model_kv_override> result;
    for (const auto & [key, value] : overrides) {
        llama_model_kv_override & override = result.emplace_back();
        copy_text(override.key, key);
        if (const auto * flag = std::get_if<bool>(&value)) {
            override.tag      = LLAMA_KV_OVERRIDE_TYPE_BOOL;
            override.val_bool = *flag;
        } else if (const auto * number = std::get_if<int64_t>(&value)) {
            override.tag     = LLAMA_KV_OVERRIDE_TYPE_INT;
            override.val_i64 = *number;
        } else if (const auto * real = std::get_if<double>(&value)) {
            override.tag     = LLAMA_KV_OVERRIDE_TYPE_FLOAT;
            override.val_f64 = *real;
        } else {
            override.tag = LLAMA_KV_OVERRIDE_TYPE_STR;
            copy_text(override.val_str, std::get<std::string>(value));
        }
    }
    result.emplace_back(); // ends the list
    return result;
}

std::string to_text(const kv_overrides::mapped_type & value) {
    if (const auto * text = std::get_if<std::string>(&value)) {
        return *text;
    }
    if (const auto * flag = std::get_if<bool>(&value)) {
        return *flag ? "true" : "false";
    }
    const auto * number = std::get_if<int64_t>(&value);
    return number ? std::to_string(*number) : std::to_string(std::get<double>(value));
}

// "validate_override: Using metadata override (  int) 'qwen3.context_length' = "
std::string used_override(const std::string & line) {
    static const std::string used = "Using metadata override (";

    const size_t start = line.find(used);
    const size_t begin = start == std::string::npos ? start : line.find('\'', start + used.size());
    const size_t end   = line.rfind("' = ");
    const bool is_found = begin != std::string::npos && end != std::string::npos && end > begin;
    return is_found ? line.substr(begin + 1, end - begin - 1) : "";
}
