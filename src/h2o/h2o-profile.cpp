#include "h2o-profile.h"

#include "llama-kv-cache-h2o.h"

#include "ggml.h"

#include <cstdio>
#include <cstring>

static const char * part_names[] = { "h2o_rest", "h2o_gather", "h2o_attention", "h2o_add_scores" };

void h2o_profile_ends_part(ggml_tensor * t, h2o_part part) {
    ggml_set_name(t, part_names[part]);
}

bool llama_h2o_profile_callback(ggml_tensor * t, bool ask, void * data) {
    auto * kv = reinterpret_cast<llama_kv_cache_h2o *>(*static_cast<llama_h2o_kv **>(data));

    for (int part = 0; part < H2O_PART_COUNT; ++part) {
        if (strcmp(t->name, part_names[part]) == 0) {
            if (!ask) {
                kv->profile_part((h2o_part) part);
            }
            return true;
        }
    }

    return !ask; // go on
}
