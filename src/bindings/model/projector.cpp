#include "bindings/model/projector.h"

#include "bindings/llama-call.h"
#include "bindings/model/gguf-check.h"

#include "mtmd-helper.h"
#include "mtmd.h"

#include <pybind11/stl.h>

#include <cstring>

projector::projector(
        std::shared_ptr<model> mdl, const std::string & path, int32_t n_threads, bool use_gpu, bool verbose)
    : mdl(std::move(mdl)), verbose(verbose) {
    gguf_check_projector(path, "[Llama] mmproj: ");

    llama_call call(verbose, llama_call::THROW);

    mtmd_context_params params = mtmd_context_params_default();
    params.use_gpu       = use_gpu;
    params.n_threads     = n_threads;
    params.print_timings = false;
    params.warmup        = false;
    params.cb_eval       = llama_call::on_compute;

    const auto load = [&] { return mtmd_init_from_file(path.c_str(), this->mdl->ptr.get(), params); };
    ptr.reset(llama_call::run("[Llama] mmproj: ", load), computing::free<mtmd_free, mtmd_context>);
    if (!ptr) {
        throw h2o_error("[Llama] mmproj: llama.cpp cannot load " + path + ": " + call.reason());
    }
}

std::vector<projector::piece> projector::encode(const std::string & image) const {
    computing::check();

    const size_t n_embd = llama_model_n_embd_inp(mdl->ptr.get());

    std::vector<piece> res;

    llama_call call(verbose, llama_call::THROW);
    llama_call::run("this image cannot be read: ", [&] {
        const auto * bytes = (const unsigned char *) image.data();
        const mtmd::bitmap bitmap(mtmd_helper_bitmap_init_from_buf(
            ptr.get(), bytes, image.size(), /*placeholder =*/ false, mtmd_helper_init_opt_default()).bitmap);
        if (!bitmap.ptr) {
            throw std::runtime_error("its data are damaged, or of a kind that is not known");
        }
        const mtmd_bitmap *   bitmaps[] = { bitmap.ptr.get() };
        const char *          marker    = mtmd_get_marker(ptr.get());
        const mtmd_input_text text      = { marker, strlen(marker), /*add_special =*/ false, /*parse_special =*/ true };

        const mtmd::input_chunks chunks(mtmd_input_chunks_init());
        if (mtmd_tokenize(ptr.get(), chunks.ptr.get(), &text, bitmaps, 1) != 0) {
            throw std::runtime_error(call.reason());
        }
        for (size_t i = 0; i < chunks.size(); ++i) {
            size_t n = 0;
            if (const llama_token * tokens = mtmd_input_chunk_get_tokens_text(chunks[i], &n)) {
                res.push_back(ids_array(n, tokens));
                continue;
            }
            n = mtmd_input_chunk_get_n_tokens(chunks[i]);

            llama_call encoding(verbose, llama_call::THROW);

            int32_t status;
            {
                computing no_gil;
                status = mtmd_encode_chunk(ptr.get(), chunks[i]);
            }
            if (status != 0) {
                throw std::runtime_error(encoding.reason());
            }
            res.push_back(rows_array({ n, n_embd }, mtmd_get_output_embd(ptr.get())));
        }
    });
    return res;
}

void init_projector(py::module_ & m) {
    py::class_<projector, std::shared_ptr<projector>>(m, "Projector")
        .def(py::init([](
                std::shared_ptr<model> mdl, const py::bytes & path, int32_t n_threads, bool use_gpu, bool verbose) {
            const std::string path_str = path;
            without_gil no_gil;
            return std::make_shared<projector>(std::move(mdl), path_str, n_threads, use_gpu, verbose);
        }), py::arg("model"), py::arg("path"), py::arg("n_threads"), py::arg("use_gpu"), py::arg("verbose"))
        .def("encode", [](const projector & self, const py::bytes & image) {
            return self.encode(image);
        }, py::arg("image"))
        // else it is for sound
        .def_property_readonly("has_vision", [](const projector & self) { return mtmd_support_vision(self.ptr.get()); })
        // a row of an image attends to the rows before it, as tokens do
        .def_property_readonly("is_causal",
            [](const projector & self) { return !mtmd_decode_use_non_causal(self.ptr.get(), nullptr); })
        // else an image's rows have positions of more than one dimension
        .def_property_readonly("has_1d_positions",
            [](const projector & self) { return !mtmd_decode_use_mrope(self.ptr.get()); });

    mtmd_helper_log_set(llama_call::on_log, nullptr);
}
