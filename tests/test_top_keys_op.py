"""The operator that chooses rows of an index of keys, against NumPy, with every CPU kernel that this machine has."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compare import assert_refused, case
from h2o_llama import ops
from kernels import ALL_ISAS, using
from oracle.top_keys import attention_of, choose, head_logits, index_scores, top_keys
from pairwise import all_pairs

Array = NDArray[Any]


def exact_keys(rng: np.random.Generator, n_head_kv: int, n_k: int, d: int) -> Array:
    """Bytes of Q4_0 whose scales are powers of two: all scores are exact in float32."""
    k = rng.integers(0, 256, (n_head_kv, n_k, d // 32, 18), dtype=np.uint8)
    k[..., :2] = rng.choice(np.float16([0.25, 0.5, -0.5, 2]), (n_head_kv, n_k, d // 32, 1)).view(np.uint8)
    return k.reshape(n_head_kv, n_k, -1)


def real_keys(rng: np.random.Generator, n_head_kv: int, n_k: int, d: int) -> tuple[Array, Array]:
    """Bytes of Q4_0, and the numbers that they stand for."""
    k = gguf.quants.quantize(rng.standard_normal((n_head_kv, n_k, d), dtype=np.float32), gguf.GGMLQuantizationType.Q4_0)
    return k, gguf.quants.dequantize(k, gguf.GGMLQuantizationType.Q4_0)


def queries(rng: np.random.Generator, n_head: int, n_q: int, d: int) -> Array:
    return rng.standard_normal((n_head, n_q, d), dtype=np.float32)


class TestEqualsNumpy:
    def test_head_sizes(self, rng: np.random.Generator, isa: str) -> None:
        for d, n_q in itertools.product((32, 64, 96, 128, 256), (1, 8, 9, 30)):
            with case(d=d, n_q=n_q):
                q, k = queries(rng, 6, n_q, d), exact_keys(rng, 2, 700, d)
                np.testing.assert_array_equal(ops.top_keys(q, k, 20), top_keys(q, k, 20))

    def test_numbers_of_keys(self, rng: np.random.Generator, isa: str) -> None:
        sizes = (1, 15, 16, 17, 511, 512, 513, 6000, 20001)
        for choice in all_pairs(n_k=sizes, n_top=[1, 64, 128, 700], n_q=[1, 20]):
            with case(**choice):
                q, k = queries(rng, 2, choice["n_q"], 64), exact_keys(rng, 1, choice["n_k"], 64)
                np.testing.assert_array_equal(ops.top_keys(q, k, choice["n_top"]), top_keys(q, k, choice["n_top"]))

    @pytest.mark.parametrize("isa_name", ALL_ISAS)
    @given(data=st.data())
    @settings(max_examples=100, deadline=None, derandomize=True)
    def test_random_sizes(self, isa_name: str, data: st.DataObject) -> None:
        """With many equal scores, rows that are taken, and such as are not finite."""
        draw: Callable[[int, int], int] = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
        n_head_kv, group, n_q, n_k, n_top = draw(1, 3), draw(1, 3), draw(1, 12), draw(1, 1200), draw(1, 150)
        rng = np.random.default_rng(draw(0, 1000))
        q, k = queries(rng, n_head_kv * group, n_q, 32), exact_keys(rng, n_head_kv, n_k, 32)
        k = k[:, rng.integers(0, draw(1, n_k), n_k)]  # n_k rows, fewer different ones
        odd = rng.random((n_head_kv, n_k)) < data.draw(st.sampled_from([0, 0.1, 1]))
        k[odd, :2] = rng.choice(np.float16([0, np.nan, np.inf, -np.inf]), (np.count_nonzero(odd), 1)).view(np.uint8)
        q[rng.random(q.shape) < data.draw(st.sampled_from([0, 0.003]))] = data.draw(st.sampled_from([np.nan, np.inf]))
        taken = rng.integers(-3, n_k + 3, (n_head_kv, draw(1, n_k)))
        with using(isa_name):
            got = ops.top_keys(q, k, n_top, taken=taken, n_threads=2)
        np.testing.assert_array_equal(got, top_keys(q, k, n_top, taken))

    def test_ordered_scores(self, rng: np.random.Generator, isa: str) -> None:
        """The best rows stand together, at the beginning or at the end."""
        for n_q, step in itertools.product((1, 20), (1, -1)):
            with case(n_q=n_q, step=step):
                q, k = np.repeat(queries(rng, 1, 1, 64), n_q, axis=1), exact_keys(rng, 1, 5000, 64)
                k = k[:, np.argsort(index_scores(q, k)[0, 0])[::step]]
                np.testing.assert_array_equal(ops.top_keys(q, k, 100), top_keys(q, k, 100))

    def test_small_and_large_queries(self, rng: np.random.Generator, isa: str) -> None:
        for scale in (1e-44, 1e-30, 1e30):
            with case(scale=scale):
                q, k = queries(rng, 4, 5, 64) * np.float32(scale), exact_keys(rng, 2, 300, 64)
                np.testing.assert_array_equal(ops.top_keys(q, k, 30), top_keys(q, k, 30))

    def test_views(self, rng: np.random.Generator, isa: str) -> None:
        """The heads of a token stand together, as in a model; taken rows are part of a larger array."""
        q, k, taken = (
            queries(rng, 4, 30, 64),
            exact_keys(rng, 2, 300, 64),
            rng.integers(0, 300, (2, 100), dtype=np.int32),
        )
        got = ops.top_keys(q.swapaxes(0, 1).copy().swapaxes(0, 1), k, 30, taken=taken[:, 10:60])
        np.testing.assert_array_equal(got, top_keys(q, k, 30, taken[:, 10:60]))


class TestRealKeys:
    """Scores are rounded in float32: rows whose scores hardly differ may take each other's places."""

    @pytest.mark.parametrize("n_q", [1, 20])
    def test_the_best_are_chosen(self, rng: np.random.Generator, isa: str, n_q: int) -> None:
        q, (k, _) = queries(rng, 4, n_q, 128), real_keys(rng, 2, 9000, 128)
        rows = ops.top_keys(q, k, 100)
        assert (rows[..., 1:] > rows[..., :-1]).all()
        scores = index_scores(q, k)
        chosen = np.take_along_axis(scores, rows, axis=-1)
        np.put_along_axis(scores, rows, -np.inf, axis=-1)
        assert (chosen.min(axis=-1) >= scores.max(axis=-1) - 1e-6 * np.abs(chosen).max(axis=-1)).all()

    def test_scores_are_attention_logits(self, rng: np.random.Generator) -> None:
        """A query is rounded to 1/127 of its peak; the errors of its numbers are independent."""
        q, (k, numbers) = queries(rng, 6, 10, 64), real_keys(rng, 2, 500, 64)
        sums = q.reshape(2, 3, 10, 64).sum(axis=1, dtype=np.float64)
        step = np.abs(sums).max(axis=-1, keepdims=True) / 127
        error = index_scores(q, k) * step - sums @ numbers.swapaxes(1, 2)
        assert (np.abs(error) < 6 * step / np.sqrt(12) * np.linalg.norm(numbers, axis=-1)[:, None]).all()

    def test_same_for_queries_alone(self, rng: np.random.Generator, isa: str) -> None:
        q, (k, _) = queries(rng, 4, 25, 128), real_keys(rng, 2, 2100, 128)
        want = ops.top_keys(q, k, 50)
        for start, end in ((0, 1), (7, 8), (24, 25), (3, 11), (5, 21), (1, 25)):
            np.testing.assert_array_equal(ops.top_keys(q[:, start:end], k, 50), want[:, start:end])

    @pytest.mark.parametrize("n_q", [1, 5, 60])
    def test_same_with_any_number_of_threads(self, rng: np.random.Generator, isa: str, n_q: int) -> None:
        q, (k, _), taken = queries(rng, 6, n_q, 64), real_keys(rng, 3, 2100, 64), rng.integers(0, 2100, (3, 300))
        want = ops.top_keys(q, k, 50, taken=taken)
        for n_threads in (2, 3, 16):
            np.testing.assert_array_equal(ops.top_keys(q, k, 50, taken=taken, n_threads=n_threads), want)

    def test_more_keys_than_are_packed_at_once(self, rng: np.random.Generator) -> None:
        """KV heads take turns, two and then one: 3 of them take 42 MB, room is for 32."""
        k = np.repeat(exact_keys(rng, 3, 4096, 256), 22, axis=1)
        q = queries(rng, 3, 9, 256)
        want = top_keys(q, k, 10)
        for n_threads in (1, 3):
            np.testing.assert_array_equal(ops.top_keys(q, k, 10, n_threads=n_threads), want)


class TestAttentionOfHeads:
    """Query heads of a group look for different rows: the candidates to which they give most are chosen."""

    @pytest.mark.parametrize("isa_name", ALL_ISAS)
    @given(data=st.data())
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_equals_numpy(self, isa_name: str, data: st.DataObject) -> None:
        draw: Callable[[int, int], int] = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
        n_head_kv, group, n_q, n_k, n_top = draw(1, 3), draw(2, 10), draw(1, 12), draw(1, 900), draw(1, 150)
        d, scale = 32 * draw(1, 4), data.draw(st.sampled_from([1e-3, 0.1, 1.0, 3.0]))
        rng = np.random.default_rng(draw(0, 1000))
        q, (k, _) = queries(rng, n_head_kv * group, n_q, d), real_keys(rng, n_head_kv, n_k, d)
        taken = rng.integers(-3, n_k + 3, (n_head_kv, draw(1, n_k)))
        with using(isa_name):
            got = ops.top_keys(q, k, n_top, taken=taken, scale=scale, n_threads=2)
        want, logits = top_keys(q, k, n_top, taken, scale), head_logits(q, k, scale)
        for head, i in np.argwhere((got != want).any(axis=-1)):
            # Both are rounded: what only one of them has weighs as much as what only the other has, or nothing.
            assert sorted(got[head, i]) == list(got[head, i])
            candidates = choose(index_scores(q, k), 8 * n_top, taken)[head, i]
            attention = dict(zip(candidates, attention_of(logits[:, head, i, candidates]), strict=True))
            sets = set(got[head, i]), set(want[head, i])
            only = [sorted(attention[row] for row in one - other) for one, other in (sets, sets[::-1])]
            np.testing.assert_allclose(*only, rtol=1e-3, atol=1e-30)

    def test_a_head_that_another_outweighs(self, isa: str) -> None:
        """One head's queries are long and look at 40 rows alike; the other's are short and look at one."""
        numbers = np.zeros((1, 300, 32), dtype=np.float32)
        numbers[0, :40, 0], numbers[0, 200, 1] = 1, 1
        k = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q4_0)
        q = np.zeros((2, 1, 32), dtype=np.float32)
        q[0, 0, 0], q[1, 0, 1] = 10, 8
        assert 200 not in ops.top_keys(q, k, 30)
        assert 200 in ops.top_keys(q, k, 30, scale=1.0)

    def test_what_is_not_finite(self, rng: np.random.Generator, isa: str) -> None:
        """The scores decide where the attention to a candidate is none."""
        q, k = queries(rng, 4, 5, 32), exact_keys(rng, 1, 200, 32)
        for value in (np.inf, -np.inf, np.nan):
            with case(value=value):
                k[0, 7:90:9, :2] = np.float16([value]).view(np.uint8)
                np.testing.assert_array_equal(ops.top_keys(q, k, 20, scale=0.1), top_keys(q, k, 20, scale=0.1))
        q[1, 2, 3] = np.nan
        np.testing.assert_array_equal(ops.top_keys(q, k, 20, scale=0.1), top_keys(q, k, 20, scale=0.1))


Q = np.zeros((4, 3, 64), dtype=np.float32)
K = np.zeros((2, 5, 36), dtype=np.uint8)


def test_bad_arguments() -> None:
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: ops.top_keys(Q.astype(np.float64), K, 1), r"q must be float32, got float64"),
        (lambda: ops.top_keys(Q[0], K, 1), r"q must have 3 axes, got 2"),
        (lambda: ops.top_keys(Q[:3], K, 1), r"the heads of k must divide the 3 heads of q, got 2"),
        (lambda: ops.top_keys(Q[..., :48], K, 1), r"k must have rows of 48 elements, as q has, got 64"),
        (lambda: ops.top_keys(Q, K[..., :35], 1), r"rows of q4_0 are multiples of 18 bytes, got 35"),
        (lambda: ops.top_keys(Q, K[:, :0], 1), r"k must not be empty"),
        (lambda: ops.top_keys(Q, K.astype(np.int8), 1), r"k must be uint8, got int8"),
        (lambda: ops.top_keys(Q, K, 0), r"n_top must be an integer of at least 1, got 0"),
        (lambda: ops.top_keys(Q, K, 1, taken=[[1]]), r"taken must be of shape \[2, 'n_taken'\], got \[1, 1\]"),
        (lambda: ops.top_keys(Q, K, 1, taken=[[0.5]] * 2), r"taken must be integers, got float64"),
        (lambda: ops.top_keys(Q, K, 1, taken=[[2**31]] * 2), r"taken must be int32 numbers, got 2147483648"),
        (lambda: ops.top_keys(Q, K, 1, scale=-1), r"scale must be a finite number from 0"),
        (lambda: ops.top_keys(Q, K, 1, backend="abacus"), r"there is no backend 'abacus'"),
        (lambda: ops.top_keys(Q, K, 1, n_threads=0), r"n_threads must be"),
    ]
    assert_refused(calls, "top_keys")
