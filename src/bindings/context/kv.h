#pragma once

#include "llama-h2o.h"

#include <memory>

// A KV cache with scores and memory sets: of a context, or stand-alone. Keeps its context or model alive.
class h2o_kv {
public:
    explicit h2o_kv(std::shared_ptr<llama_h2o_kv> ptr) : ptr(std::move(ptr)) {}

    llama_h2o_kv * get() const { return ptr.get(); }

private:
    std::shared_ptr<llama_h2o_kv> ptr;
};
