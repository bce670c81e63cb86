#pragma once

#include <cstdint>
#include <string>
#include <vector>

// An image, sound or video below --media-path. Throws std::invalid_argument unless it is a regular file (a device or a
// pipe may never end) of moderate size that can be read.
std::vector<uint8_t> server_h2o_read_media(const std::string & folder, const std::string & name);
