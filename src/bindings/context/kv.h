#pragma once

#include "bindings/bindings.h"
#include "h2o/llama/memory/memory.h"

#include <pybind11/numpy.h>

#include <memory>
#include <stdexcept>

using f32_array = py::array_t<float, py::array::c_style>;

// A KV cache with scores and memory sets: of a context, or filled by hand. Keeps its context or model alive.
struct h2o_kv {
    std::shared_ptr<llama_h2o_kv> ptr;

    llama_h2o_kv * operator->() const { return ptr.get(); }

    // Python has checked the arguments; what the core still refuses must not pass for a result.
    static void check(bool ok) {
        if (!ok) {
            throw std::invalid_argument("[KV] the cache has no place for these arguments");
        }
    }

    const h2o_layer & layer(int32_t il) const {
        const auto * res = ptr->state().layer(il);
        check(res);
        return *res;
    }

    const h2o_kv_layer & kv_layer(int32_t il) const {
        return *ptr->memory.store.layer(layer(il).il);
    }

    h2o_kv_rows rows(int32_t il, h2o_kv_part part) const {
        return ptr->memory.store.rows(kv_layer(il), part, ptr->id);
    }
};
