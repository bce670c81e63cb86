#include "bindings/bindings.h"
#include "bindings/types.h"

#include "h2o/store/codec/codec.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

using byte_array = py::array_t<uint8_t, py::array::c_style>;

// Rows as a cold store encodes them.
struct encoded_rows {
    uint32_t n_rows;
    h2o_codec_block block;
    std::vector<uint8_t> frames;
};

static encoded_rows encode(const byte_array & rows, const std::string & type_name, uint32_t unit_rows) {
    const ggml_type type = find_type(type_name);
    if (unit_rows == 0 || rows.ndim() != 2 || rows.size() > INT32_MAX ||
            rows.shape(1)%h2o_codec_block_bytes(type) != 0) {
        throw std::invalid_argument("[codec] expected rows of whole blocks, and units of a row or more");
    }
    computing no_gil;
    encoded_rows res { (uint32_t) rows.shape(0), {}, {} };
    const auto code = std::make_shared<const h2o_codec_code>(
            rows.data(), res.n_rows, type, rows.shape(1), unit_rows);
    res.block = h2o_codec_encode(rows.data(), res.n_rows, code, true, res.frames);
    return res;
}

// Rows [start, stop), of other bytes in place of the frames if there are any.
static byte_array decode(const encoded_rows & rows, uint32_t start, uint32_t stop, const std::optional<std::string> & other) {
    if (start > stop || stop > rows.n_rows || (other && other->size() != rows.frames.size())) {
        throw std::invalid_argument("[codec] expected rows that are there, and as many bytes as the frames have");
    }
    const uint8_t * frames = other ? (const uint8_t *) other->data() : rows.frames.data();
    byte_array res({ (py::ssize_t) (stop - start), (py::ssize_t) rows.block.code->row_bytes });
    uint8_t * out = res.mutable_data();
    computing no_gil;
    rows.block.decode(start, stop - start, out, [frames](uint32_t begin, uint32_t /*end*/) { return frames + begin; });
    return res;
}

void init_codec(py::module_ & m) {
    py::class_<encoded_rows>(m, "EncodedRows")
        .def(py::init(&encode), py::arg("rows").noconvert(), py::kw_only(), py::arg("type"), py::arg("unit_rows"))
        .def_property_readonly("frames", [](const encoded_rows & rows) { return py::bytes((const char *) rows.frames.data(), rows.frames.size()); })
        .def_property_readonly("stored_rows", [](const encoded_rows & rows) { return rows.block.n_stored; })
        .def("decode", &decode, py::arg("start"), py::arg("stop"), py::kw_only(), py::arg("frames") = py::none());
}
