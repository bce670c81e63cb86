#include "h2o/store/codec/codec.h"

#include "h2o/store/codec/choose.h"
#include "h2o/store/codec/entropy.h"
#include "h2o/store/codec/frame.h"
#include "h2o/store/codec/predict.h"
#include "h2o/store/codec/rows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

namespace {

void check(const h2o_codec_shape & shape, const h2o_codec_options & options) {
    if (shape.type >= H2O_CODEC_TYPE_COUNT) {
        throw std::invalid_argument("[codec] there is no type " + std::to_string(shape.type));
    }
    const uint32_t block = h2o_codec_block_bytes(shape.type);
    if (shape.row_bytes % block != 0) {
        throw std::invalid_argument("[codec] rows of this type have a multiple of " + std::to_string(block) + " bytes, got " +
            std::to_string(shape.row_bytes));
    }
    if (options.entropy >= H2O_CODEC_ENTROPY_COUNT && options.entropy != H2O_CODEC_ENTROPY_AUTO) {
        throw std::invalid_argument("[codec] there is no entropy code " + std::to_string(options.entropy));
    }
    if (options.predictor >= H2O_CODEC_PREDICTOR_COUNT && options.predictor != H2O_CODEC_PREDICTOR_AUTO) {
        throw std::invalid_argument("[codec] there is no predictor " + std::to_string(options.predictor));
    }
}

void append_stream(h2o_codec_entropy entropy, const uint8_t * data, size_t n, bool may_repeat, std::vector<uint8_t> & frame) {
    const size_t at = frame.size();
    frame.resize(at + 9);
    frame[at] = h2o_codec_compress(entropy, data, n, may_repeat, frame);
    h2o_codec_write_u32(&frame[at + 1], n);
    h2o_codec_write_u32(&frame[at + 5], frame.size() - at - 9);
}

// bytes: the plane, [n_rows][width], which is changed
void append_plane(const h2o_codec_options & options, uint8_t * bytes, uint32_t n_rows, uint32_t width, std::vector<uint8_t> & frame) {
    const h2o_codec_choice choice = h2o_codec_choose(options.predictor, bytes, n_rows, width);

    frame.push_back(choice.predictor);
    frame.push_back(choice.thresholds.n + 1);
    const size_t n = (size_t) n_rows*width;
    if (choice.predictor != H2O_CODEC_PREDICTOR_CONTEXT) {
        h2o_codec_predict(choice.predictor, bytes, n_rows, width);
        append_stream(choice.is_raw ? H2O_CODEC_ENTROPY_RAW : options.entropy, bytes, n, choice.may_repeat, frame);
        return;
    }
    frame.insert(frame.end(), choice.thresholds.at.begin(), choice.thresholds.at.begin() + choice.thresholds.n);
    std::vector<uint8_t> streams(n);
    std::array<size_t, H2O_CODEC_MAX_CONTEXTS> sizes;
    h2o_codec_to_contexts(bytes, n_rows, width, choice.thresholds, streams.data(), sizes);
    const uint8_t * stream = streams.data();
    for (uint32_t g = 0; g <= choice.thresholds.n; ++g) {
        append_stream(options.entropy, stream, sizes[g], false, frame);
        stream += sizes[g];
    }
}

// not filled, which vectors are
using buffer_t = std::unique_ptr<uint8_t[]>;

buffer_t make_buffer(size_t n) {
    return buffer_t(new uint8_t[n]);
}

// The plane itself, where that is what the frame holds; else NULL.
const uint8_t * as_stored(const h2o_codec_frame_plane & plane) {
    const h2o_codec_stream & stream = plane.streams[0];
    const bool is_raw = plane.predictor == H2O_CODEC_PREDICTOR_RAW && stream.entropy == H2O_CODEC_ENTROPY_RAW;
    return is_raw && stream.n_bytes == stream.n_raw ? stream.data : nullptr;
}

void read_plane(const h2o_codec_frame_plane & plane, uint32_t n_rows, uint32_t width, uint8_t * out) {
    if (plane.predictor != H2O_CODEC_PREDICTOR_CONTEXT) {
        const h2o_codec_stream & stream = plane.streams[0];
        h2o_codec_decompress(stream.entropy, stream.data, stream.n_bytes, out, stream.n_raw);
        h2o_codec_unpredict(plane.predictor, out, n_rows, width);
        return;
    }
    std::array<size_t, H2O_CODEC_MAX_CONTEXTS> sizes{};
    const buffer_t streams = make_buffer(((size_t) n_rows + 2)*width);
    uint8_t * at = streams.get() + width;
    for (size_t g = 0; g < plane.streams.size(); ++g) {
        const h2o_codec_stream & stream = plane.streams[g];
        h2o_codec_decompress(stream.entropy, stream.data, stream.n_bytes, at, stream.n_raw);
        sizes[g] = stream.n_raw;
        at += stream.n_raw;
    }
    h2o_codec_from_contexts(streams.get() + width, sizes, plane.thresholds, out, n_rows, width);
}

std::vector<uint8_t> raw_frame(const uint8_t * data, const h2o_codec_shape & shape) {
    std::vector<uint8_t> frame(H2O_CODEC_HEADER_BYTES + shape.bytes());
    std::copy_n(data, shape.bytes(), frame.begin() + H2O_CODEC_HEADER_BYTES);
    h2o_codec_write_header(frame, shape, shape.n_rows, 0);
    return frame;
}

} // namespace

std::vector<uint8_t> h2o_codec_encode(const uint8_t * data, const h2o_codec_shape & shape, const h2o_codec_options & options) {
    check(shape, options);
    // the sizes of streams have 32 bits
    if (shape.bytes() == 0 || shape.bytes() > UINT32_MAX) {
        return raw_frame(data, shape);
    }
    const uint32_t block_bytes = h2o_codec_block_bytes(shape.type);

    std::vector<uint8_t> frame(H2O_CODEC_HEADER_BYTES), kept;
    frame.reserve(H2O_CODEC_HEADER_BYTES + shape.bytes());
    const uint8_t * rows   = data;
    uint32_t        n_kept = shape.n_rows;
    if (options.equal_rows) {
        const h2o_codec_equal_rows equal = h2o_codec_find_equal_rows(data, shape.n_rows, shape.row_bytes);
        const size_t n_bytes = h2o_codec_equal_rows_bytes(shape.n_rows, equal.n_kept);
        if ((size_t) (shape.n_rows - equal.n_kept)*shape.row_bytes > n_bytes) {
            n_kept = equal.n_kept;
            frame.resize(frame.size() + n_bytes);
            h2o_codec_write_equal_rows(equal, &frame[H2O_CODEC_HEADER_BYTES]);
            kept.reserve((size_t) n_kept*shape.row_bytes);
            for (uint32_t r = 0; r < shape.n_rows; ++r) {
                if (equal.first[r] == r) {
                    kept.insert(kept.end(), data + (size_t) r*shape.row_bytes, data + (size_t) (r + 1)*shape.row_bytes);
                }
            }
            rows = kept.data();
        }
    }

    const auto & planes = h2o_codec_planes_of(shape.type);
    std::vector<uint8_t> bytes((size_t) n_kept*shape.row_bytes);
    h2o_codec_split(shape.type, rows, bytes.size()/block_bytes, bytes.data());
    uint8_t * at = bytes.data();
    for (const h2o_codec_plane & plane : planes) {
        const uint32_t width = plane.width(shape.row_bytes, block_bytes);
        const size_t   n     = (size_t) n_kept*width;
        if (plane.is_integer) {
            h2o_codec_fold(at, n);
        }
        append_plane(options, at, n_kept, width, frame);
        at += n;
    }

    if (frame.size() >= H2O_CODEC_HEADER_BYTES + shape.bytes()) {
        return raw_frame(data, shape);
    }
    h2o_codec_write_header(frame, shape, n_kept, planes.size());
    return frame;
}

h2o_codec_info h2o_codec_inspect(const h2o_codec_frame & frame) {
    h2o_codec_info res;
    res.shape  = frame.shape;
    res.n_kept = frame.n_kept;
    const auto & planes = h2o_codec_planes_of(frame.shape.type);
    for (size_t p = 0; p < frame.planes.size(); ++p) {
        const uint32_t width = planes[p].width(frame.shape.row_bytes, h2o_codec_block_bytes(frame.shape.type));
        h2o_codec_plane_info info = { frame.planes[p].predictor, (uint64_t) frame.shape.n_rows*width, frame.planes[p].n_bytes, {} };
        for (const h2o_codec_stream & stream : frame.planes[p].streams) {
            info.entropy.push_back(stream.entropy);
        }
        res.planes.push_back(info);
    }
    return res;
}

void h2o_codec_decode(const h2o_codec_frame & frame, uint8_t * out) {
    if (frame.raw) {
        std::copy_n(frame.raw, frame.shape.bytes(), out);
        return;
    }
    const uint32_t row_bytes   = frame.shape.row_bytes;
    const uint32_t block_bytes = h2o_codec_block_bytes(frame.shape.type);
    const auto &   planes      = h2o_codec_planes_of(frame.shape.type);

    std::array<buffer_t,        H2O_CODEC_MAX_PLANES> buffers;
    std::array<const uint8_t *, H2O_CODEC_MAX_PLANES> bytes;
    for (size_t p = 0; p < planes.size(); ++p) {
        bytes[p] = as_stored(frame.planes[p]);
        if (bytes[p] && !planes[p].is_integer) {
            continue;
        }
        const uint32_t width = planes[p].width(row_bytes, block_bytes);
        const size_t   n     = (size_t) frame.n_kept*width;
        buffers[p] = make_buffer(n);
        bytes[p]   = buffers[p].get();
        read_plane(frame.planes[p], frame.n_kept, width, buffers[p].get());
        if (planes[p].is_integer) {
            h2o_codec_fold(buffers[p].get(), n);
        }
    }
    // rows that are kept come first to the beginning of `out`
    h2o_codec_merge(frame.shape.type, bytes.data(), (uint64_t) frame.n_kept*row_bytes/block_bytes, out);

    if (frame.equal_rows) {
        const std::vector<uint32_t> number = h2o_codec_read_equal_rows(frame.equal_rows, frame.shape.n_rows, frame.n_kept);
        // from the last one on: a row's number is never higher than the row
        for (uint32_t r = frame.shape.n_rows; r-- > 0; ) {
            if (number[r] != r) {
                std::memcpy(out + (size_t) r*row_bytes, out + (size_t) number[r]*row_bytes, row_bytes);
            }
        }
    }
}
