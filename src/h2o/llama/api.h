#pragma once

#include "h2o/store/stream.h"
#include "llama-h2o.h"

// llama_h2o_kv is the C name of h2o_stream
inline h2o_stream * unwrap(llama_h2o_kv * kv) {
    return reinterpret_cast<h2o_stream *>(kv);
}

inline const h2o_stream * unwrap(const llama_h2o_kv * kv) {
    return reinterpret_cast<const h2o_stream *>(kv);
}

inline llama_h2o_kv * wrap(h2o_stream * stream) {
    return reinterpret_cast<llama_h2o_kv *>(stream);
}
