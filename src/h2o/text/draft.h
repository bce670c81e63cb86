#pragma once

#include <cstdint>
#include <vector>

// Prompt lookup decoding: guesses the next tokens from the text alone, as the tokens after the longest earlier match of
// its end, the newest of equally long ones. That pays where a text quotes or edits earlier text.
//
// The longer the match, the further it can be trusted: the draft is half as long, n_max tokens at most (so matches of
// more than 2*n_max tokens are equally long), and empty if that is less than n_min. It may reach beyond the end of the
// text, which then repeats itself. n_min is at least 1.
std::vector<int32_t> h2o_draft(const std::vector<int32_t> & text, uint32_t n_min, uint32_t n_max);
