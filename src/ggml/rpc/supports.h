#pragma once

// A part of upstream's ggml-rpc.cpp, which includes it behind the messages that it sends.

// Whether the device has this operator of H2O: asked once for each operator, and types and sizes of its operands.
static bool ggml_rpc_h2o_supports(ggml_backend_rpc_device_context * ctx, const ggml_tensor * op) {
    static std::mutex mutex;
    static std::unordered_map<std::string, bool> answers;

    std::string key = ctx->endpoint + "/" + std::to_string(ctx->device) + "/" + ggml_op_desc(op);
    for (const ggml_tensor * src : op->src) {
        key += src ? std::string("/") + ggml_type_name(src->type) : "/";
        for (int i = 0; src && i < GGML_MAX_DIMS; i++) {
            key += "," + std::to_string(src->ne[i]);
        }
    }
    std::lock_guard<std::mutex> lock(mutex);
    if (answers.count(key) == 0) {
        auto request = std::make_shared<rpc_msg_get_alloc_size_req>();
        request->device = ctx->device;
        request->tensor = serialize_tensor(op);
        for (int i = 0; i < GGML_MAX_SRC; i++) {
            request->srcs[i] = serialize_tensor(op->src[i]);
        }
        rpc_msg_get_alloc_size_rsp response;
        get_dispatcher(ctx->endpoint)->send(
            RPC_CMD_GET_ALLOC_SIZE, request, sizeof(*request), &response, sizeof(response));
        answers[key] = response.alloc_size > 0;
    }
    return answers[key];
}
