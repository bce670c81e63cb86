#pragma once

#include <cstdint>

// Picks the n_heavy candidates of highest score; of equal scores the lower position wins, NaN ranks below everything.
//   pos:   [n] strictly ascending positions
//   score: [n]
//   dst:   [min(n, n_heavy)], strictly ascending
// Returns how many were picked.
uint32_t h2o_select_heavy(const int32_t * pos, const float * score, uint32_t n, uint32_t n_heavy, int32_t * dst);
