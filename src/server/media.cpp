#include "server/media.h"

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>

// as much as a request with a data URL may have
static constexpr uintmax_t N_BYTES_MAX = 100*1024*1024;

std::vector<uint8_t> server_h2o_read_media(const std::string & folder, const std::string & name) {
    const auto path = std::filesystem::path(folder + name);

    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) {
        throw std::invalid_argument(name + " is not a regular file below the folder of --media-path");
    }
    const auto n_bytes = std::filesystem::file_size(path, error);
    if (!error && n_bytes > N_BYTES_MAX) {
        throw std::invalid_argument(
            name + " has " + std::to_string(n_bytes) + " bytes, expected at most " + std::to_string(N_BYTES_MAX));
    }
    std::vector<uint8_t> res(error ? 0 : n_bytes);
    if (error || !std::ifstream(path, std::ios::binary).read(reinterpret_cast<char *>(res.data()), res.size())) {
        throw std::invalid_argument(name + " cannot be read");
    }
    return res;
}
