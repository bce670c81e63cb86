"""The attention operator without column sums: few queries read K and V in place, many keys are walked in blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compare import assert_all_equal, case
from h2o_llama import ops
from kernels import ISAS, using
from test_attention_op import (
    Sizes,
    as_in_a_model,
    assert_close,
    assert_same_bits_on_threads,
    compute,
    random_inputs,
    reference,
    spoil,
    stored_and_wide,
)

Array = NDArray[Any]
Inputs = tuple[Array, Array, Array, Array]

NO_SUMS = np.zeros(0)


def attend(inputs: Inputs, first: Array | None = None, type: str = "f32", n_threads: int = 2) -> ops.Attention:
    return compute(inputs, type, n_threads=n_threads, first=first)


def check(inputs: Inputs, isa: str, first: Array | None = None) -> ops.Attention:
    q, k, v, rows = inputs
    with_sums = reference(q, k, v, rows, causal=False, first=first)
    got = attend(inputs, first)
    assert_close(got, with_sums._replace(sums=NO_SUMS), q, k, v, 1.0, isa)
    return got


def sorted_firsts(rng: np.random.Generator, n_q: int, n_k: int) -> Array:
    """Queries that see nothing yet, and keys that none sees, are among them."""
    return np.sort(rng.integers(0, n_q + 1, n_k))


# Query heads times queries: as many as a kernel holds at once (3 or 6), fewer, and up to 16. Keys: fewer than a block
# has, as many, and several blocks.
DECODE = [
    Sizes(3, 3, 1, 8191, 64, 64),
    Sizes(2, 7, 1, 127, 128, 128),
    Sizes(1, 1, 1, 128, 16, 48),
    Sizes(2, 4, 3, 1000, 80, 112),
    Sizes(2, 16, 1, 300, 64, 64),
    Sizes(8, 2, 2, 700, 128, 128),
]
# The last one is computed in two parts of its rows.
PACKED = [
    Sizes(2, 3, 40, 4100, 64, 80),
    Sizes(1, 2, 300, 4096, 33, 100),
    Sizes(2, 1, 1, 4500, 40, 24),
    Sizes(1, 3, 683, 4096, 16, 16),
]


class TestEqualsNumpy:
    def test_sizes(self, rng: np.random.Generator, isa: str) -> None:
        for sizes in DECODE + PACKED:
            with case(sizes=sizes):
                check(random_inputs(rng, sizes), isa)
                causal = np.maximum(np.arange(sizes.n_k) - sizes.memory, 0)
                check(random_inputs(rng, sizes), isa, causal)

    @pytest.mark.parametrize("isa_name", ISAS)
    @given(data=st.data())
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_random_sizes(self, isa_name: str, data: st.DataObject) -> None:
        draw: Callable[[int, int], int] = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
        d_k, d_v = 16 * draw(1, 9), 16 * draw(1, 9)
        sizes = Sizes(draw(1, 3), draw(1, 9), draw(1, 4), draw(0, 500), d_k, d_v)
        rng = np.random.default_rng(draw(0, 1000))
        inputs = random_inputs(rng, sizes)
        first = sorted_firsts(rng, sizes.n_q, sizes.n_k) if data.draw(st.booleans()) else None
        with using(isa_name):
            check(inputs, isa_name, first)

    def test_seen_keys_are_few(self, rng: np.random.Generator, isa: str) -> None:
        """Padding, as of a decode step: none of it is read, and a query may see nothing at all."""
        for sizes in [Sizes(2, 3, 2, 300), Sizes(2, 3, 20, 4200)]:
            with case(sizes=sizes):
                q, k, v, rows = random_inputs(rng, sizes)
                for n_seen in (0, 1, 5, 129):
                    first = np.where(np.arange(sizes.n_k) < n_seen, 1, sizes.n_q)
                    got = check((q, k, v, rows), isa, first)
                    assert not got.o[:, 0].any()
                    assert np.all(got.m[..., 0] == -np.inf)
                    k_bad, v_bad = np.full_like(k, np.nan), np.full_like(v, np.nan)
                    for h in range(sizes.n_head_kv):
                        seen = rows[0, h, :n_seen]
                        k_bad[h, seen], v_bad[h, seen] = k[h, seen], v[h, seen]
                    assert_all_equal(attend((q, k_bad, v_bad, rows), first), got)

    def test_types(self, rng: np.random.Generator, isa: str) -> None:
        """K and V are widened to float32: the same bits. Subnormal, infinite and negative numbers are among them."""
        for sizes, type in product(
            [Sizes(2, 3, 1, 500, 64, 96), Sizes(2, 3, 20, 4200, 64, 96)], ["f16", "bf16", "q4_0", "q8_0"]
        ):
            with case(sizes=sizes, type=type):
                q, k, v, rows = random_inputs(rng, sizes)
                k[:, ::3] *= 1e-6
                v[:, ::5] *= 1e-7
                if type in ("f16", "bf16"):
                    v[1, rows[0, 1, 7], 3] = -np.inf
                stored, wide = stored_and_wide(k, v, type)
                assert_all_equal(attend((q, *stored, rows), type=type), attend((q, *wide, rows)))

    def test_heads_of_a_token_side_by_side(self, rng: np.random.Generator, isa: str) -> None:
        """As in a model's cache."""
        q, k, v, rows = random_inputs(rng, Sizes(3, 3, 2, 400))
        want = attend((q, k, v, rows))
        assert_all_equal(attend((*as_in_a_model(q, k, v), rows)), want)


def test_same_bits_on_any_number_of_threads(rng: np.random.Generator, isa: str) -> None:
    for sizes in [Sizes(3, 3, 1, 5000), Sizes(3, 3, 3, 70), Sizes(2, 2, 300, 4200)]:
        with case(sizes=sizes):
            inputs = random_inputs(rng, sizes)
            assert_same_bits_on_threads(partial(attend, inputs))


SPECIAL = [Sizes(2, 2, 2, 300), Sizes(2, 2, 30, 4200)]


@pytest.mark.parametrize("sizes", SPECIAL, ids=str)
class TestSpecialNumbers:
    def test_not_finite(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        """It arrives where NumPy has it, and nowhere else: one key is in the middle, one only the last query sees."""
        for bad, where in product([np.nan, np.inf, -np.inf], ["q", "k", "v"]):
            with case(bad=bad, where=where):
                for key in (150, sizes.n_k - 1):
                    q, k, v, rows = random_inputs(rng, sizes)
                    first = np.maximum(np.arange(sizes.n_k) - sizes.memory, 0)
                    spoil((q, k, v), where, bad, (0, 2, 1, 7), (1, rows[0, 1, key], 7))
                    got, want = attend((q, k, v, rows), first), reference(q, k, v, rows, first=first)
                    for x, y in ((got.o, want.o), (got.m, want.m), (got.l, want.l)):
                        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
                    assert where != "v" or not np.isfinite(got.o).all()
                    assert np.isfinite(got.o[:, :, 0]).all()

    def test_all_logits_minus_infinity(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        """Of one query, and of a block of keys for all."""
        q, k, v, rows = random_inputs(rng, sizes)
        q[..., 0], k[..., 0] = 1, 1
        q[:, 1, 1, 0] = -np.inf
        k[:, rows[0, :, 128:256].ravel(), 0] = -np.inf
        q[:, 1, 1, 0] = 1
        q[:, 1, 1, 1], k[..., 1] = -np.inf, 1
        got, want = attend((q, k, v, rows)), reference(q, k, v, rows, causal=False)
        assert got.m[0, 1, 1] == -np.inf
        assert got.l[0, 1, 1] == 0
        assert not got.o[0, 1, 1].any()
        for x, y in ((got.o, want.o), (got.m, want.m), (got.l, want.l)):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)

    def test_large_logits(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        """The largest logit is in one block, the others' weights become 0."""
        for magnitude in [1e4, 1e20, 1e37]:
            with case(magnitude=magnitude):
                q, k, v, rows = random_inputs(rng, sizes)
                power = np.float32(2.0 ** np.round(np.log2(magnitude)))
                q[...], k[...] = 0, 0
                q[..., 0] = rng.choice([-1.0, -0.5, 0.5, 1.0], q.shape[:-1])
                k[..., 0] = power * (rng.integers(-8, 9, k.shape[:-1]) / 8)  # products are exact, and ties are
                got, want = attend((q, k, v, rows)), reference(q, k, v, rows, causal=False)
                np.testing.assert_array_equal(got.m, want.m)
                np.testing.assert_allclose(got.l, want.l, rtol=1e-6)
                np.testing.assert_allclose(got.o, want.o, rtol=0, atol=1e-5 * np.abs(v).max())

    def test_sums_that_overflow(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        """Values next to the largest float32: their average is no larger."""
        q, k, v, rows = random_inputs(rng, sizes)
        v[...] = 3e38
        np.testing.assert_allclose(attend((q, k, v, rows)).o, 3e38, rtol=1e-5)
