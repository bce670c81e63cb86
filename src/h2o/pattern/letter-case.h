#pragma once

#include <cstdint>

// Categories that upstream's Unicode tables do not have.

// the h2o_property of a letter of general category Lu, Ll or Lt; 0 for others
uint32_t h2o_letter_case(uint32_t cpt);

// general category Nd
bool h2o_is_decimal_digit(uint32_t cpt);
