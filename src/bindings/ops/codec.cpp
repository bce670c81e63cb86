#include "bindings/bindings.h"
#include "h2o/store/codec/codec.h"

#include <pybind11/numpy.h>

#include <string>

using byte_array = py::array_t<uint8_t, py::array::c_style>;

// Rows as a cold store encodes them. For tests: arguments are not checked.
struct encoded_rows {
    encoded_rows(const byte_array & rows, const std::string & type, uint32_t unit_rows) : n_rows(rows.shape(0)) {
        computing no_gil;
        const auto code = std::make_shared<const h2o_codec_code>(
            rows.data(), n_rows, find_type(type), rows.shape(1), unit_rows);
        block = h2o_codec_encode(rows.data(), n_rows, code, frames);
    }

    // rows [start, stop), of frames that may be damaged, but are as many bytes
    byte_array decode(uint32_t start, uint32_t stop, const std::string & frames) const {
        byte_array res({ (py::ssize_t) (stop - start), (py::ssize_t) block.code->row_bytes });
        uint8_t * out = res.mutable_data();
        computing no_gil;
        block.decode(start, stop - start, out,
            [&](uint32_t begin, uint32_t /*end*/) { return (const uint8_t *) frames.data() + begin; });
        return res;
    }

    const uint32_t       n_rows;
    h2o_codec_block      block;
    std::vector<uint8_t> frames;
};

void init_codec(py::module_ & m) {
    py::class_<encoded_rows>(m, "EncodedRows")
        .def(py::init<const byte_array &, const std::string &, uint32_t>(), py::arg("rows").noconvert(), py::kw_only(),
            py::arg("type"), py::arg("unit_rows"))
        .def_property_readonly("frames", [](const encoded_rows & self) {
            return py::bytes((const char *) self.frames.data(), self.frames.size());
        })
        .def("decode", &encoded_rows::decode, py::arg("start"), py::arg("stop"), py::arg("frames"));
}
