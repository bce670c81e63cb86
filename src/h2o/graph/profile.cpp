#include "h2o/graph/profile.h"

#include "ggml.h"

#include <cstring>

static const char * part_names[] = { "h2o_rest", "h2o_gather", "h2o_attention", "h2o_add_scores" };

void h2o_profile_ends_part(ggml_tensor * t, h2o_part part) {
    ggml_set_name(t, part_names[part]);
}

bool h2o_profile::eval(const ggml_tensor * t, bool ask) {
    for (int part = 0; part < H2O_PART_COUNT; ++part) {
        if (strcmp(t->name, part_names[part]) == 0) {
            if (!ask) {
                const int64_t t_us = ggml_time_us();
                t_part_us[part] += t_us - t_last_us;
                t_last_us = t_us;
            }
            return true;
        }
    }

    return !ask; // continue
}
