// Cases of our operators, which upstream's test-backend-ops.cpp includes.
#pragma once

// GGML_OP_GET_ROWS, each KV head of a K cache gathers its own rows
struct test_get_rows_per_head : public test_case {
    const ggml_type type;
    const int n;         // head size
    const int m;         // cells
    const int r;         // rows to get
    const int n_head;
    const int n_stream;

    std::string vars() override {
        return VARS_TO_STR6(type, n, m, r, n_head, n_stream);
    }

    test_get_rows_per_head(ggml_type type, int n, int m, int r, int n_head, int n_stream)
        : type(type), n(n), m(m), r(r), n_head(n_head), n_stream(n_stream) {}

    ggml_tensor * build_graph(ggml_context * ctx) override {
        ggml_tensor * k = ggml_new_tensor_4d(ctx, type, n, n_head, m, n_stream);
        ggml_set_name(k, "k");

        ggml_tensor * rows = ggml_new_tensor_3d(ctx, GGML_TYPE_I32, r, n_head, n_stream);
        ggml_set_name(rows, "rows");

        ggml_tensor * out = ggml_get_rows(ctx, ggml_permute(ctx, k, 0, 2, 1, 3), rows);
        ggml_set_name(out, "out");

        return out;
    }

    void initialize_tensors(ggml_context * ctx) override {
        test_case::initialize_tensors(ctx);

        ggml_tensor * rows = ggml_get_tensor(ctx, "rows");
        std::vector<int32_t> data(ggml_nelements(rows));
        for (int32_t & i : data) {
            i = rand() % m;
        }
        ggml_backend_tensor_set(rows, data.data(), 0, ggml_nbytes(rows));
    }
};

// GGML_OP_MAX_ROWS
struct test_max_rows : public test_case {
    const std::array<int64_t, 4> ne;
    const bool permute;
    const bool slice;
    const bool inf; // rows with some -INFINITY, and rows of nothing else

    std::string vars() override {
        return VARS_TO_STR4(ne, permute, slice, inf);
    }

    test_max_rows(std::array<int64_t, 4> ne, bool permute = false, bool slice = false, bool inf = false)
        : ne(ne), permute(permute), slice(slice), inf(inf) {}

    ggml_tensor * build_graph(ggml_context * ctx) override {
        ggml_tensor * a = ggml_new_tensor(ctx, GGML_TYPE_F32, 4, ne.data());
        ggml_set_name(a, "a");

        if (slice) {
            a = ggml_view_4d(ctx, a,
                             ne[0], ne[1], ne[2] / 2, ne[3] - 1,
                             a->nb[1], a->nb[2] * 2, a->nb[3], /*offset=*/a->nb[3]);
        }
        if (permute) {
            a = ggml_permute(ctx, a, 0, 2, 3, 1);
        }

        ggml_tensor * out = ggml_max_rows(ctx, a);
        ggml_set_name(out, "out");

        return out;
    }

    void initialize_tensors(ggml_context * ctx) override {
        test_case::initialize_tensors(ctx);

        if (inf) {
            ggml_tensor * a = ggml_get_tensor(ctx, "a");
            std::vector<float> row(ne[0], -INFINITY);
            for (int64_t ir = 0; ir < ggml_nrows(a); ir += 3) {
                ggml_backend_tensor_set(a, row.data(), ir*a->nb[1], ir % 2 ? a->nb[1] : a->nb[1]/2);
            }
        }
    }
};

static std::vector<std::unique_ptr<test_case>> h2o_make_test_cases() {
    std::vector<std::unique_ptr<test_case>> test_cases;
    for (ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
        test_cases.emplace_back(new test_get_rows_per_head(type,  64,  77,   5, 3, 1));
        test_cases.emplace_back(new test_get_rows_per_head(type, 128, 300, 129, 8, 2));
    }
    for (bool permute : {false, true}) {
        for (bool slice : {false, true}) {
            test_cases.emplace_back(new test_max_rows({ 11, 5, 6, 3 }, permute, slice));
        }
        test_cases.emplace_back(new test_max_rows({ 100, 7, 6, 3 }, permute, permute, true));
    }
    for (int64_t ne0 : {1, 32, 33, 64, 129, 1023, 1024, 4099}) {
        test_cases.emplace_back(new test_max_rows({ ne0, 1, 1, 1 }));
        test_cases.emplace_back(new test_max_rows({ ne0, 1024, 2, 1 }));
    }
    return test_cases;
}
