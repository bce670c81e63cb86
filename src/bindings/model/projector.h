#pragma once

#include "bindings/model/model.h"

#include <pybind11/numpy.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

struct mtmd_context;

// Turns images into rows of embeddings for the model that it was trained with; has a file of its own. Not thread safe.
class projector {
public:
    using ids_array  = py::array_t<llama_token, py::array::c_style>;
    using rows_array = py::array_t<float, py::array::c_style>;
    using piece      = std::variant<ids_array, rows_array>; // token ids [n], or rows [n, n_embd]

    projector(std::shared_ptr<model> mdl, const std::string & path, int32_t n_threads, bool use_gpu, bool verbose);

    // An image, given as a file's bytes, as the model reads it: rows, and the tokens that stand around them.
    std::vector<piece> encode(const std::string & image) const;

    std::shared_ptr<mtmd_context> ptr;

private:
    std::shared_ptr<model> mdl;

    const bool verbose;
};
