#include "bindings.h"

#include "h2o/store/codec/codec.h"
#include "h2o/store/codec/frame.h"
#include "h2o/store/codec/pool.h"
#include "h2o/store/codec/row-code.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

using byte_array = py::array_t<uint8_t, py::array::c_style>;
using bytes_t    = std::vector<uint8_t>;

template <typename T>
struct names {
    std::vector<std::pair<const char *, T>> all;

    T find(const char * what, const std::string & name) const {
        std::string expected;
        for (const auto & [n, value] : all) {
            if (name == n) {
                return value;
            }
            expected += std::string(expected.empty() ? "'" : ", '") + n + "'";
        }
        throw std::invalid_argument(std::string("[codec] ") + what + " must be one of " + expected + ", got '" + name + "'");
    }

    const char * of(T value) const {
        for (const auto & [n, v] : all) {
            if (v == value) {
                return n;
            }
        }
        return "?";
    }

    std::vector<std::string> list() const {
        std::vector<std::string> res;
        for (const auto & entry : all) {
            res.push_back(entry.first);
        }
        return res;
    }
};

static const names<h2o_codec_type> TYPES = { {
    { "u8",   H2O_CODEC_TYPE_U8   },
    { "f16",  H2O_CODEC_TYPE_F16  },
    { "bf16", H2O_CODEC_TYPE_BF16 },
    { "f32",  H2O_CODEC_TYPE_F32  },
    { "q8_0", H2O_CODEC_TYPE_Q8_0 },
    { "q4_0", H2O_CODEC_TYPE_Q4_0 },
    { "q4_1", H2O_CODEC_TYPE_Q4_1 },
    { "q5_0", H2O_CODEC_TYPE_Q5_0 },
    { "q5_1", H2O_CODEC_TYPE_Q5_1 },
} };

static const names<h2o_codec_entropy> CODECS = { {
    { "auto", H2O_CODEC_ENTROPY_AUTO },
    { "zstd", H2O_CODEC_ENTROPY_ZSTD },
    { "lz4",  H2O_CODEC_ENTROPY_LZ4  },
    { "rle",  H2O_CODEC_ENTROPY_RLE  },
    { "raw",  H2O_CODEC_ENTROPY_RAW  },
} };

static const names<h2o_codec_predictor> PREDICTORS = { {
    { "auto",       H2O_CODEC_PREDICTOR_AUTO       },
    { "raw",        H2O_CODEC_PREDICTOR_RAW        },
    { "delta",      H2O_CODEC_PREDICTOR_DELTA      },
    { "xor",        H2O_CODEC_PREDICTOR_XOR        },
    { "pair",       H2O_CODEC_PREDICTOR_PAIR       },
    { "pair_delta", H2O_CODEC_PREDICTOR_PAIR_DELTA },
    { "context",    H2O_CODEC_PREDICTOR_CONTEXT    },
} };

// Python's object for a block: what is encoded and how. Checked when it is made.
struct block {
    h2o_codec_shape   shape;
    h2o_codec_options options;
};

static h2o_codec_shape shape_of(const byte_array & rows, const std::string & type) {
    h2o_codec_shape res;
    res.type = TYPES.find("type", type);
    if (rows.ndim() != 2 || rows.shape(0) > UINT32_MAX || rows.shape(1) > UINT32_MAX) {
        throw std::invalid_argument("[codec] rows must be [n, bytes], each less than 2^32");
    }
    res.n_rows    = rows.shape(0);
    res.row_bytes = rows.shape(1);

    const uint32_t n = h2o_codec_block_bytes(res.type);
    if (res.row_bytes % n != 0) {
        throw std::invalid_argument("[codec] rows of " + type + " must have a multiple of " + std::to_string(n) + " bytes, got " +
            std::to_string(res.row_bytes));
    }
    return res;
}

static block make_block(const byte_array & rows, const std::string & type, const std::string & codec, const std::string & predictor,
        bool equal_rows) {
    block res;
    res.shape              = shape_of(rows, type);
    res.options.entropy    = CODECS.find("codec", codec);
    res.options.predictor  = PREDICTORS.find("predictor", predictor);
    res.options.equal_rows = equal_rows;
    return res;
}

static std::string_view view_of(const py::bytes & frame) {
    return frame;
}

static py::bytes to_bytes(const bytes_t & data) {
    return py::bytes((const char *) data.data(), data.size());
}

static byte_array empty_rows(const h2o_codec_shape & shape) {
    return byte_array({ (py::ssize_t) shape.n_rows, (py::ssize_t) shape.row_bytes });
}

static h2o_codec_frame read_frame(std::string_view bytes, uint64_t max_bytes) {
    h2o_codec_frame res = h2o_codec_read_frame((const uint8_t *) bytes.data(), bytes.size());
    if (res.shape.bytes() > max_bytes) {
        throw h2o_codec_error("[codec] the frame holds " + std::to_string(res.shape.bytes()) + " bytes, more than max_bytes = " +
            std::to_string(max_bytes));
    }
    return res;
}

static h2o_codec_info inspect(const py::bytes & frame) {
    return h2o_codec_inspect(read_frame(view_of(frame), UINT64_MAX));
}

static py::bytes encode(const byte_array & rows, const std::string & type, const std::string & codec, const std::string & predictor,
        bool equal_rows) {
    const block b = make_block(rows, type, codec, predictor, equal_rows);
    bytes_t frame;
    {
        py::gil_scoped_release release;
        frame = h2o_codec_encode(rows.data(), b.shape, b.options);
    }
    return to_bytes(frame);
}

// rows and their type
static std::pair<byte_array, std::string> decode(const py::bytes & bytes, uint64_t max_bytes) {
    const h2o_codec_frame frame = read_frame(view_of(bytes), max_bytes);
    byte_array res = empty_rows(frame.shape);
    uint8_t * out  = res.mutable_data();
    {
        py::gil_scoped_release release;
        h2o_codec_decode(frame, out);
    }
    return { res, TYPES.of(frame.shape.type) };
}

// What the threads make, until it is asked for. Both kinds of work end in bytes.
struct pending {
    std::shared_future<bytes_t> result;
    std::optional<h2o_codec_shape> shape; // of rows; none: a frame

    bool is_done() const { return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

    const bytes_t & wait() const {
        py::gil_scoped_release release;
        return result.get();
    }
};

static std::optional<pending> pool_encode(h2o_codec_pool & self, const byte_array & rows, const std::string & type,
        const std::string & codec, const std::string & predictor, bool equal_rows) {
    const block b = make_block(rows, type, codec, predictor, equal_rows);
    bytes_t data(rows.data(), rows.data() + rows.size());
    auto result = self.submit(H2O_CODEC_WORK_ENCODE, [b, data = std::move(data)] {
        return h2o_codec_encode(data.data(), b.shape, b.options);
    });
    return result ? std::optional<pending>({ result->share(), std::nullopt }) : std::nullopt;
}

static std::optional<pending> pool_decode(h2o_codec_pool & self, const py::bytes & bytes, uint64_t max_bytes) {
    const auto data = std::make_shared<const std::string>(view_of(bytes)); // it may be gone when its turn comes
    const h2o_codec_frame frame = read_frame(*data, max_bytes);
    auto result = self.submit(H2O_CODEC_WORK_DECODE, [frame, data] {
        bytes_t out(frame.shape.bytes());
        h2o_codec_decode(frame, out.data());
        return out;
    });
    return result ? std::optional<pending>({ result->share(), frame.shape }) : std::nullopt;
}

// a frame, or rows and their type
static py::object pending_result(const pending & self) {
    const bytes_t & data = self.wait();
    if (!self.shape) {
        return to_bytes(data);
    }
    byte_array res = empty_rows(*self.shape);
    std::copy(data.begin(), data.end(), res.mutable_data());
    return py::make_tuple(res, TYPES.of(self.shape->type));
}

static void pool_close(h2o_codec_pool & self) {
    py::gil_scoped_release release;
    self.stop();
}

using ends_array = py::array_t<uint32_t, py::array::c_style>;

// A code with the shape of its rows.
struct row_code {
    const h2o_codec_shape    shape;
    const h2o_codec_row_code code;

    row_code(const byte_array & rows, const h2o_codec_shape & shape) : shape(shape), code(rows.data(), shape) {}

    std::pair<py::bytes, ends_array> encode(const byte_array & rows) const {
        if (rows.ndim() != 2 || rows.shape(0) > UINT32_MAX || rows.shape(1) != shape.row_bytes) {
            throw std::invalid_argument("[codec] the rows must have " + std::to_string(shape.row_bytes) + " bytes, as those that the code was made from");
        }
        bytes_t out;
        std::vector<uint32_t> ends;
        {
            py::gil_scoped_release release;
            code.encode(rows.data(), rows.shape(0), out, ends);
        }
        return { to_bytes(out), ends_array(ends.size(), ends.data()) };
    }

    byte_array decode(const py::bytes & encoded, const ends_array & ends, uint32_t first, uint32_t n) const {
        const std::string_view view = view_of(encoded);
        const uint32_t begin = first == 0 ? 0 : ends.at(first - 1);
        for (uint32_t r = first; r < first + n; ++r) {
            if (ends.at(r) > view.size() || ends.at(r) < (r == 0 ? 0 : ends.at(r - 1))) {
                throw h2o_codec_error("[codec] row " + std::to_string(r) + " does not end in these bytes");
            }
        }
        byte_array res = empty_rows({ shape.type, n, shape.row_bytes });
        if (n > 0) {
            bytes_t data(view.begin() + begin, view.begin() + ends.at(first + n - 1));
            data.resize(data.size() + h2o_codec_row_code::READ_AHEAD);
            code.decode(data.data(), ends.data(), first, n, res.mutable_data());
        }
        return res;
    }
};

void init_codec(py::module_ & m) {
    m.attr("CODEC_HEADER_BYTES") = H2O_CODEC_HEADER_BYTES;
    m.def("codec_types",      [] { return TYPES.list(); });
    m.def("codec_names",      [] { return CODECS.list(); });
    m.def("codec_predictors", [] { return PREDICTORS.list(); });
    m.def("codec_block_bytes", [](const std::string & type) { return h2o_codec_block_bytes(TYPES.find("type", type)); }, py::arg("type"));

    py::class_<h2o_codec_plane_info>(m, "CodecPlane")
        .def_property_readonly("predictor", [](const h2o_codec_plane_info & self) { return PREDICTORS.of(self.predictor); })
        .def_readonly("raw_bytes",    &h2o_codec_plane_info::raw_bytes)
        .def_readonly("stored_bytes", &h2o_codec_plane_info::stored_bytes)
        .def_property_readonly("codecs", [](const h2o_codec_plane_info & self) {
            std::vector<std::string> res;
            for (const h2o_codec_entropy entropy : self.entropy) {
                res.push_back(CODECS.of(entropy));
            }
            return res;
        });

    py::class_<h2o_codec_info>(m, "CodecInfo")
        .def_property_readonly("type",      [](const h2o_codec_info & self) { return TYPES.of(self.shape.type); })
        .def_property_readonly("n_rows",    [](const h2o_codec_info & self) { return self.shape.n_rows; })
        .def_property_readonly("row_bytes", [](const h2o_codec_info & self) { return self.shape.row_bytes; })
        .def_readonly("n_kept", &h2o_codec_info::n_kept)
        .def_readonly("planes", &h2o_codec_info::planes);

    m.def("codec_encode", &encode, py::arg("rows").noconvert(), py::kw_only(),
        py::arg("type"), py::arg("codec"), py::arg("predictor"), py::arg("equal_rows"));
    m.def("codec_inspect", &inspect, py::arg("frame"));
    m.def("codec_decode",  &decode, py::arg("frame"), py::kw_only(), py::arg("max_bytes"));

    py::class_<row_code>(m, "CodecRowCode")
        .def(py::init([](const byte_array & rows, const std::string & type) {
            return std::make_unique<row_code>(rows, shape_of(rows, type));
        }), py::arg("rows").noconvert(), py::kw_only(), py::arg("type"))
        .def("encode", &row_code::encode, py::arg("rows").noconvert())
        .def("decode", &row_code::decode, py::arg("encoded"), py::arg("ends").noconvert(), py::arg("first"), py::arg("n"));

    py::class_<pending>(m, "CodecTask")
        .def_property_readonly("is_done", &pending::is_done)
        .def("result", &pending_result);

    py::class_<h2o_codec_pool_stats>(m, "CodecWorkStats")
        .def_readonly("n_done",    &h2o_codec_pool_stats::n_done)
        .def_readonly("n_failed",  &h2o_codec_pool_stats::n_failed)
        .def_readonly("n_skipped", &h2o_codec_pool_stats::n_skipped)
        .def_property_readonly("p50_us", [](const h2o_codec_pool_stats & self) { return self.times.p50; })
        .def_property_readonly("p95_us", [](const h2o_codec_pool_stats & self) { return self.times.p95; })
        .def_property_readonly("p99_us", [](const h2o_codec_pool_stats & self) { return self.times.p99; });

    py::class_<h2o_codec_pool>(m, "CodecPool")
        .def(py::init<uint32_t, uint32_t>(), py::kw_only(), py::arg("threads"), py::arg("max_queue"))
        .def("encode", &pool_encode, py::arg("rows").noconvert(), py::kw_only(),
            py::arg("type"), py::arg("codec"), py::arg("predictor"), py::arg("equal_rows"))
        .def("decode", &pool_decode, py::arg("frame"), py::kw_only(), py::arg("max_bytes"))
        .def("close", &pool_close)
        .def("encode_stats", [](const h2o_codec_pool & self) { return self.stats(H2O_CODEC_WORK_ENCODE); })
        .def("decode_stats", [](const h2o_codec_pool & self) { return self.stats(H2O_CODEC_WORK_DECODE); })
        .def_property_readonly("queue_length", &h2o_codec_pool::queue_length)
        .def_property_readonly("queue_peak",   &h2o_codec_pool::queue_peak);
}
