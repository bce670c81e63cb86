"""The operators on the CPU backend, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import gguf
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from compare import assert_all_equal, case
from h2o_llama import _core
from tolerances import FUSION

THREADS = [1, 3, 8]
TYPES = {"float32": "f32", "float16": "f16", "int32": "i32"}
SHAPES = [(1,), (31,), (64,), (65,), (3, 1000), (7, 1), (5, 3, 129), (2, 3, 5, 67), (1, 2, 1, 257), (70, 256)]

# Views of an array [4, 6, 10, 67] whose strides ggml can express.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "heads and rows swapped": lambda a: a.swapaxes(1, 2),
    "batch innermost": lambda a: a.transpose(2, 1, 0, 3),
    "some of each": lambda a: a[1:, ::3, 2:9:2, 5:38],
    "one row": lambda a: a[2:3, 1:2, 4:5],
    "one column": lambda a: a[..., 7:8],
}


class SoftmaxState(NamedTuple):
    """Online-softmax state of a block of keys. For a query whose keys are all masked: m = -inf, l = 0, o = 0."""

    m: Any
    """[..., n_q] largest logit"""
    l: Any  # noqa: E741
    """[..., n_q] Σ exp(logit - m)"""
    o: Any
    """[..., n_q, d] Σ exp(logit - m) v / l"""


def max_rows(a: Any, n_threads: int = 1) -> Any:
    return _core.ops_max_rows(a, TYPES[a.dtype.name], "cpu", n_threads)


def get_rows(a: Any, indices: Any, type: str | None = None, n_threads: int = 1) -> Any:
    """Of an array of a `type` that NumPy lacks: a has the rows' bytes."""
    return _core.ops_get_rows(a, type or TYPES[a.dtype.name], indices.astype(np.int32), "cpu", n_threads)


def softmax_state(logits: Any, v: Any, scale: float = 1.0, n_threads: int = 1) -> SoftmaxState:
    """By H2O's graph, of ``scale * logits`` [..., n_q, n_k], -inf where a key is masked, and values [..., n_k, d]."""
    m, l, o = _core.ops_softmax_state(logits, v, scale, "cpu", n_threads)  # noqa: E741
    return SoftmaxState(m[..., 0], l[..., 0], o)


def fuse(a: SoftmaxState, b: SoftmaxState) -> SoftmaxState:
    """By H2O's graph: as if one softmax had gone over both blocks."""
    states = [(m[..., None], l[..., None], o) for m, l, o in (a, b)]  # noqa: E741
    m, l, o = _core.ops_fuse(states[0], states[1], "cpu", 1)  # noqa: E741
    return SoftmaxState(m[..., 0], l[..., 0], o)


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return rng.standard_normal(shape).astype(dtype)


class TestMaxRows:
    """A maximum is one of the elements: equal, not close."""

    def test_equals_numpy(self, rng: np.random.Generator) -> None:
        for shape, dtype, n_threads in product(SHAPES, ["float32", "float16"], THREADS):
            with case(shape=shape, dtype=dtype, n_threads=n_threads):
                a = random(rng, shape, dtype)
                got = max_rows(a, n_threads=n_threads)
                assert got.dtype == a.dtype
                np.testing.assert_array_equal(got, a.max(axis=-1, keepdims=True))

    def test_views(self, rng: np.random.Generator) -> None:
        for dtype, (name, view) in product(["float32", "float16"], VIEWS.items()):
            with case(dtype=dtype, view=name):
                a = view(random(rng, (4, 6, 10, 67), dtype))
                np.testing.assert_array_equal(max_rows(a, n_threads=3), a.max(axis=-1, keepdims=True))

    def test_maximum_nan_and_infinities_at_every_place(self, rng: np.random.Generator) -> None:
        for dtype, n in product(["float32", "float16"], [1, 16, 65, 300]):
            with case(dtype=dtype, n=n):
                a = np.full((n, n), -2, dtype=dtype)
                np.fill_diagonal(a, -1)
                np.testing.assert_array_equal(max_rows(a), np.full((n, 1), -1))
                a = random(rng, (n, n), dtype)
                np.fill_diagonal(a, np.nan)
                assert np.isnan(max_rows(a)).all()
                a = random(rng, (4, n), dtype)
                a[0] = -np.inf
                a[1, n // 2 :] = -np.inf
                a[2, n // 2] = np.inf
                a[3] = np.finfo(dtype).min
                np.testing.assert_array_equal(max_rows(a), a.max(axis=-1, keepdims=True))


class TestGetRows:
    """Rows are copied or widened to float32: equal, not close."""

    def test_every_batch_by_its_own_indices(self, rng: np.random.Generator) -> None:
        for dtype, batch, n_threads in product(["float32", "float16", "int32"], [(), (3,), (2, 3), (5, 1)], THREADS):
            with case(dtype=dtype, batch=batch, n_threads=n_threads):
                a = (100 * random(rng, (*batch, 11, 33))).astype(dtype)
                indices = rng.integers(0, 11, (*batch, 7))
                got = get_rows(a, indices, n_threads=n_threads)
                assert got.dtype == (np.int32 if dtype == "int32" else np.float32)
                np.testing.assert_array_equal(got, np.take_along_axis(a, indices[..., None], axis=-2))

    def test_views(self, rng: np.random.Generator) -> None:
        for name, view in VIEWS.items():
            with case(view=name):
                a = view(random(rng, (4, 6, 10, 67)))
                indices = rng.integers(0, a.shape[-2], (*a.shape[:-2], 9))
                want = np.take_along_axis(a, indices[..., None], axis=-2)
                np.testing.assert_array_equal(get_rows(a, indices), want)

    def test_types_without_a_dtype(self, rng: np.random.Generator) -> None:
        """A permuted K cache: [n_cells, n_head, ...] becomes [n_head, n_cells, ...]."""
        for type in ["bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]:
            with case(type=type):
                gguf_type = gguf.GGMLQuantizationType[type.upper()]
                a = gguf.quants.quantize(random(rng, (20, 3, 64)), gguf_type).swapaxes(0, 1)
                want = gguf.quants.dequantize(np.ascontiguousarray(a), gguf_type)
                indices = rng.integers(0, 20, (3, 9))
                np.testing.assert_array_equal(
                    get_rows(a.view(np.uint8), indices, type=type),
                    np.take_along_axis(want, indices[..., None], axis=-2),
                )


def assert_is_one_softmax(state: SoftmaxState, logits: Any, v: Any) -> None:
    """Of logits [..., n_q, n_k] and v [..., n_k, d]."""
    x = logits.astype(np.float64)
    m = x.max(axis=-1)
    e = np.exp(x - m[..., None])
    l = e.sum(axis=-1)  # noqa: E741
    for name, got, want in zip("mlo", state, (m, l, e / l[..., None] @ v.astype(np.float64)), strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=FUSION, atol=FUSION, err_msg=name)


def blocks_of(logits: Any, v: Any, sizes: list[int]) -> list[SoftmaxState]:
    """States of consecutive blocks of keys."""
    blocks = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return [softmax_state(logits[..., block], v[..., block, :]) for block in blocks]


def random_block(rng: np.random.Generator, heads: int, n_q: int, n_k: int, d: int, bound: float = 100) -> Any:
    logits = rng.uniform(-bound, bound, (heads, n_q, n_k)).astype(np.float32)
    return logits, rng.standard_normal((heads, n_k, d)).astype(np.float32)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    heads=st.integers(1, 3),
    n_q=st.integers(1, 9),
    sizes=st.lists(st.integers(1, 40) | st.just(1), min_size=1, max_size=5),
    d=st.integers(1, 70),
    bound=st.sampled_from([0.0, 1.0, 30.0, 100.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_fused_blocks_equal_one_softmax(
    heads: int, n_q: int, sizes: list[int], d: int, bound: float, seed: int
) -> None:
    """In any order."""
    rng = np.random.default_rng(seed)
    logits, v = random_block(rng, heads, n_q, sum(sizes), d, bound)
    states = blocks_of(logits, v, sizes)
    while len(states) > 1:
        a, b = (states.pop(int(rng.integers(len(states)))) for _ in range(2))
        states.append(fuse(a, b))
    assert_is_one_softmax(states[0], logits, v)


def test_maxima_far_apart(rng: np.random.Generator) -> None:
    """Up to 200: exp underflows long before, and exp of the wrong sign would overflow."""
    for difference, larger_first in product([0, 1, 50, 80, 87, 88, 89, 100, 104, 200], [True, False]):
        with case(difference=difference, larger_first=larger_first):
            logits, v = random_block(rng, 2, 5, 24, 16, bound=1)
            logits[..., 12:] += difference / 2
            logits[..., :12] -= difference / 2
            if larger_first:
                logits, v = logits[..., ::-1], v[..., ::-1, :]
            assert_is_one_softmax(fuse(*blocks_of(logits, v, [12, 12])), logits, v)


def test_empty_blocks_are_neutral(rng: np.random.Generator) -> None:
    """All keys are masked."""
    logits, v = random_block(rng, 2, 3, 7, 4)
    state, nothing = softmax_state(logits, v), softmax_state(np.full_like(logits, -np.inf), v)
    for pair in ((state, nothing), (nothing, state)):
        assert_all_equal(fuse(*pair), state)
    for empty in (nothing, fuse(nothing, nothing)):
        assert_all_equal(empty, (np.full((2, 3), -np.inf), np.zeros((2, 3)), np.zeros((2, 3, 4))))


class TestSoftmaxState:
    """Other arguments of the graph."""

    def test_grouped_queries_scale_and_causal_mask(self, rng: np.random.Generator) -> None:
        for n_threads, group in product(THREADS, [1, 2, 6]):
            with case(n_threads=n_threads, group=group):
                n_head, n_q, n_k, d, scale = 6, 17, 45, 24, 0.125
                logits = 50 * random(rng, (2, n_head, n_q, n_k))
                logits[..., np.triu(np.ones((n_q, n_k), dtype=bool), k=n_k - n_q + 1)] = -np.inf
                v = random(rng, (2, n_head // group, n_k, d))
                x = scale * logits.astype(np.float64)
                m = x.max(axis=-1)
                weights = np.exp(x - m[..., None])
                state = softmax_state(logits, v, scale=scale, n_threads=n_threads)
                np.testing.assert_array_equal(state.m, m)
                np.testing.assert_allclose(state.l, weights.sum(axis=-1), rtol=1e-6)
                o = weights / weights.sum(axis=-1, keepdims=True) @ np.repeat(v, group, axis=1).astype(np.float64)
                np.testing.assert_allclose(state.o, o, rtol=1e-6, atol=1e-6)

    def test_nan_is_kept(self, rng: np.random.Generator) -> None:
        logits, v = random(rng, (3, 20)), random(rng, (20, 4))
        logits[1, 5] = np.nan
        clean = softmax_state(np.delete(logits, 1, axis=0), v)
        state = softmax_state(logits, v)
        for fused in (state, fuse(state, state)):
            for part in fused:
                np.testing.assert_array_equal(np.isnan(part).reshape(3, -1).all(axis=1), [False, True, False])
        for got, want in zip(state, clean, strict=True):
            np.testing.assert_array_equal(np.delete(got, 1, axis=0), want)


class TestColumnSums:
    def test_equals_numpy(self, rng: np.random.Generator) -> None:
        for n_head_kv, n_threads, shape in product([1, 2, 3, 6], THREADS, [(6, 33, 65), (2, 6, 5, 7), (6, 1, 1)]):
            with case(n_head_kv=n_head_kv, n_threads=n_threads, shape=shape):
                weights = rng.random(shape, dtype=np.float32)
                grouped = weights.reshape(*shape[:-3], n_head_kv, -1, shape[-1])
                np.testing.assert_allclose(
                    _core.ops_column_sums(weights, n_head_kv, "cpu", n_threads),
                    grouped.sum(axis=-2, dtype=np.float64),
                    rtol=1e-5,
                )
