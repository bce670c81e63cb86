#pragma once

#include "bindings/llama-call.h"
#include "bindings/without-gil.h"

#include <pybind11/pybind11.h>

namespace py = pybind11;

// by its name in ggml; throws std::invalid_argument
ggml_type find_type(const std::string & name);

void init_library  (py::module_ & m);
void init_model    (py::module_ & m);
void init_projector(py::module_ & m);
void init_context  (py::module_ & m);
void init_kv       (py::module_ & m);
void init_kv_cache (py::module_ & m);
void init_options  (py::module_ & m);
void init_pattern  (py::module_ & m);
void init_grammar  (py::module_ & m);
void init_chat     (py::module_ & m);
void init_sampler  (py::module_ & m);
void init_ops      (py::module_ & m);
void init_quantize (py::module_ & m);
void init_codec    (py::module_ & m);
void init_server   (py::module_ & m);
