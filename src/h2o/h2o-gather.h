#pragma once

struct ggml_context;
struct ggml_tensor;

// Gathers rows of a layer's cache, every KV head its own, dequantised to F32.
//   k:    [n_embd_head_k, n_kv, n_head_kv]
//   v:    [n_embd_head_v, n_kv, n_head_kv], or transposed [n_kv, n_embd_head_v, n_head_kv]
//   rows: I32 [n_rows, n_head_kv]

ggml_tensor * h2o_gather_k(ggml_context * ctx, ggml_tensor * k, ggml_tensor * rows);               // [n_embd_head_k, n_rows, n_head_kv]
ggml_tensor * h2o_gather_v(ggml_context * ctx, ggml_tensor * v, ggml_tensor * rows, bool v_trans); // [n_rows, n_embd_head_v, n_head_kv]
