#include "server/requests.h"

#include "mtmd.h"

#include <algorithm>

static const char * PIECES = "h2o_pieces";

common_json server_h2o_pieces_to_json(const std::vector<h2o_chat_piece> & pieces) {
    common_json result = common_json::array();
    for (const auto & piece : pieces) {
        result.push_back(common_json { { "text", piece.text }, { "parse_special", piece.parse_special } });
    }
    return result;
}

std::vector<h2o_chat_piece> server_h2o_pieces_of(const common_json & request) {
    std::vector<h2o_chat_piece> pieces;
    if (request.contains(PIECES)) {
        for (const auto & piece : request.at(PIECES)) {
            pieces.push_back({ piece.at("text").get<std::string>(), piece.at("parse_special").get<bool>() });
        }
    }
    return pieces;
}

int32_t server_h2o_tokenize_media(const mtmd_context * ctx, mtmd_input_chunks * output,
        const std::vector<h2o_chat_piece> & pieces, const std::string & marker,
        const std::vector<const mtmd_bitmap *> & files) {
    std::vector<mtmd_input_text> texts;
    std::vector<mtmd_input_part> parts;
    size_t n_markers = 0;

    texts.reserve(pieces.size() + files.size()); // each marker makes one more
    for (const auto & piece : pieces) {
        for (size_t begin = 0;;) {
            const size_t end = std::min(piece.text.find(marker, begin), piece.text.size());
            if (end > begin) {
                texts.push_back({ piece.text.data() + begin, end - begin, false, piece.parse_special });
                parts.push_back({ &texts.back(), nullptr });
            }
            if (end == piece.text.size()) {
                break;
            }
            if (++n_markers > files.size()) {
                return 1;
            }
            parts.push_back({ nullptr, files[n_markers - 1] });
            begin = end + marker.size();
        }
    }
    if (n_markers != files.size()) {
        return 1;
    }
    std::vector<const mtmd_input_part *> pointers;
    for (const auto & part : parts) {
        pointers.push_back(&part);
    }
    return mtmd_tokenize_from_parts(ctx, output, pointers.data(), pointers.size(), true);
}

std::vector<std::string> server_h2o_stops(const common_json & value) {
    std::vector<std::string> stops;
    const auto add = [&](const common_json & stop) {
        if (!stop.is_string() || stop.get<std::string>().empty()) {
            throw std::invalid_argument(
                "'stop' must be a string or a list of strings, none of them empty, but got " + value.dump_safe());
        }
        stops.push_back(stop.get<std::string>());
    };
    if (value.is_array()) {
        for (const auto & stop : value) {
            add(stop);
        }
    } else {
        add(value);
    }
    return stops;
}

int server_h2o_n_probs(const common_json & request) {
    const auto field = [&](const char * name) { return request.contains(name) ? request.at(name) : common_json(); };
    const common_json logprobs = field("logprobs");
    const common_json top      = field("top_logprobs");

    if (!logprobs.is_null() && !logprobs.is_boolean()) {
        throw std::invalid_argument("'logprobs' must be true or false, but got " + logprobs.dump_safe());
    }
    if (logprobs.is_null() || !logprobs.get<bool>()) {
        if (!top.is_null()) {
            throw std::invalid_argument("'top_logprobs' needs \"logprobs\": true");
        }
        return 0;
    }
    const bool is_whole = top.is_number() && top.get<double>() == std::floor(top.get<double>());
    if (!top.is_null() && !(is_whole && top.get<double>() >= 0 && top.get<double>() <= 20)) {
        throw std::invalid_argument("'top_logprobs' must be an integer from 0 to 20, but got " + top.dump_safe());
    }
    return top.is_null() ? 1 : std::max(1, top.get<int>());
}
