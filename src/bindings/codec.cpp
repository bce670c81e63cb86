#include "bindings/bindings.h"

#include "h2o/store/codec/block.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>

using byte_array = py::array_t<uint8_t, py::array::c_style>;
using u32_array  = py::array_t<uint32_t, py::array::c_style>;

// In the order of their numbers.
static const std::array<const char *, H2O_CODEC_TYPE_COUNT> TYPES = { "u8", "f16", "bf16", "f32", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1" };
static const std::array<const char *, H2O_CODEC_PREDICTOR_COUNT> PREDICTORS = { "raw", "delta", "xor", "pair", "pair_delta" };

template <typename T, size_t N>
static T find(const std::array<const char *, N> & names, const char * what, const std::string & name) {
    const auto it = std::find(names.begin(), names.end(), name);
    if (it == names.end()) {
        throw std::invalid_argument(std::string("[codec] there is no ") + what + " '" + name + "'");
    }
    return (T) (it - names.begin());
}

static void check_row_bytes(h2o_codec_type type, uint64_t row_bytes) {
    const uint32_t n = h2o_codec_block_bytes(type);
    if (row_bytes%n != 0 || row_bytes > UINT32_MAX) {
        throw std::invalid_argument("[codec] rows of this type must have a multiple of " + std::to_string(n) + " bytes, got " + std::to_string(row_bytes));
    }
}

static py::bytes to_bytes(const std::vector<uint8_t> & data) {
    return py::bytes((const char *) data.data(), data.size());
}

// The code, its unit_rows, how many rows are stored, the numbers of rows, the ends of units, the units.
using encoded = std::tuple<py::bytes, uint32_t, uint32_t, u32_array, u32_array, py::bytes>;

static encoded encode(const byte_array & rows, const std::string & type_name, const std::string & predictor, uint32_t unit_rows) {
    const auto type = find<h2o_codec_type>(TYPES, "type", type_name);
    if (rows.ndim() != 2 || (uint64_t) rows.size() > UINT32_MAX/2 || rows.shape(0) > UINT32_MAX) {
        throw std::invalid_argument("[codec] rows must be [n, bytes], and have less than 2 GiB");
    }
    check_row_bytes(type, rows.shape(1));

    h2o_codec_options options;
    options.unit_rows = unit_rows;
    if (predictor != "auto") {
        options.predictor = find<h2o_codec_predictor>(PREDICTORS, "predictor", predictor);
    }
    std::vector<uint8_t> units;
    h2o_codec_block block;
    {
        computing no_gil;
        const h2o_codec_shape shape = { type, (uint32_t) rows.shape(0), (uint32_t) rows.shape(1) };
        units.reserve(shape.bytes());
        block = h2o_codec_encode(rows.data(), shape, options, nullptr, true, units);
    }
    return { to_bytes(block.code->write()), block.code->unit_rows, block.n_stored, u32_array(block.numbers.size(), block.numbers.data()),
        u32_array(block.ends.size(), block.ends.data()), to_bytes(units) };
}

// Rows [start, stop) of n_rows; the units begin at units_at.
static byte_array decode(const encoded & data, const std::string & type_name, uint32_t n_rows, uint32_t row_bytes, size_t units_at,
        uint32_t start, uint32_t stop) {
    const auto & [code, unit_rows, n_stored, numbers, ends, units] = data;
    const std::string_view code_bytes = code;
    const std::string_view bytes      = std::string_view(units).substr(std::min<size_t>(units_at, py::len(units)));
    const auto type = find<h2o_codec_type>(TYPES, "type", type_name);
    check_row_bytes(type, row_bytes);

    h2o_codec_block block;
    block.code     = std::make_shared<h2o_codec_code>(type, row_bytes, unit_rows, (const uint8_t *) code_bytes.data(), code_bytes.size());
    block.n_rows   = n_rows;
    block.n_stored = n_stored;
    block.numbers.assign(numbers.data(), numbers.data() + numbers.size());
    block.ends   .assign(ends.data(),    ends.data()    + ends.size());
    block.check(bytes.size());
    if (start > stop || stop > n_rows) {
        throw std::invalid_argument("[codec] rows that are not there");
    }
    byte_array res({ (py::ssize_t) (stop - start), (py::ssize_t) row_bytes });
    uint8_t * out = res.mutable_data();
    {
        computing no_gil;
        block.decode(start, stop - start, out, [&bytes = bytes](uint32_t begin, uint32_t /*end*/) { return (const uint8_t *) bytes.data() + begin; });
    }
    return res;
}

void init_codec(py::module_ & m) {
    m.def("codec_types",      [] { return std::vector<std::string>(TYPES.begin(), TYPES.end()); });
    m.def("codec_predictors", [] { return std::vector<std::string>(PREDICTORS.begin(), PREDICTORS.end()); });
    m.def("codec_block_bytes", [](const std::string & type) { return h2o_codec_block_bytes(find<h2o_codec_type>(TYPES, "type", type)); }, py::arg("type"));

    m.def("codec_encode", &encode, py::arg("rows").noconvert(), py::kw_only(), py::arg("type"), py::arg("predictor"), py::arg("unit_rows"));
    m.def("codec_decode", &decode, py::arg("encoded"), py::kw_only(), py::arg("type"), py::arg("n_rows"), py::arg("row_bytes"), py::arg("units_at"),
        py::arg("start"), py::arg("stop"));
}
