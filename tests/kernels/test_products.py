"""H2O's products with weights of each type that it multiplies, against NumPy, with each CPU kernel of this machine.

In whole models, the oracle's tests use them: some of these models have such weights.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cases import SMALL
from compare import assert_logits_close, case
from h2o_llama import _core
from inputs import ModelByName, random_tokens
from kernels import ALL_ISAS, using
from llamas import eval_calls, open_llama
from oracle import dense, read_model

Array = NDArray[Any]
ROOT = Path(__file__).parents[2]

# The bytes of each type's unit that hold scales in F16, and where numbers lie if there are minimums besides.
TYPES: dict[str, tuple[list[int], slice | None]] = {
    "q4_0": ([0], None),
    "q4_1": ([0, 2], slice(4, None)),
    "q5_0": ([0], None),
    "q5_1": ([0, 2], slice(4, None)),
    "q8_0": ([0], None),
    "iq4_nl": ([0], None),
    "mxfp4": ([], None),
    "q2_K": ([80, 82], slice(16, 80)),
    "q3_K": ([108], None),
    "q4_K": ([0, 2], slice(16, None)),
    "q5_K": ([0, 2], slice(16, None)),
    "q6_K": ([208], None),
    "iq4_xs": ([0], None),
}

# From this number of columns on, of an expert on average, AMX multiplies in BF16.
TILE_COLUMNS = 49

# Those with kernels of their own.
ISAS = [isa for isa in ALL_ISAS if isa in ("amx", "avx512vnni", "avxvnni", "avx2")]

every_isa = pytest.mark.parametrize("isa", ISAS, indirect=True)
every_type = pytest.mark.parametrize("type_name", TYPES)


def ggml_type(type_name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[type_name.upper()]


def in_bf16(isa: str, n_columns: int) -> bool:
    return isa == "amx" and n_columns >= TILE_COLUMNS


def as_type(x: Array, type_name: str) -> Array:
    return gguf.quants.dequantize(gguf.quants.quantize(x, ggml_type(type_name)), ggml_type(type_name))


def unit(type_name: str) -> int:
    """Numbers that have a scale in common, or 32: products of fewer are upstream's."""
    return max(gguf.GGML_QUANT_SIZES[ggml_type(type_name)][0], 32)


def weights_of(
    rng: np.random.Generator, type_name: str, n_rows: int, n: int, scales: list[float] | None = None
) -> Array:
    """Any bytes, as a file may hold them, with scales of all sizes, or some of these."""
    n_numbers, n_bytes = gguf.GGML_QUANT_SIZES[ggml_type(type_name)]
    shape = (n_rows, n // n_numbers)
    units = rng.integers(0, 256, (*shape, n_bytes), dtype=np.uint8)
    for i in TYPES[type_name][0]:
        drawn = rng.choice(scales, (*shape, 1)) if scales else rng.standard_normal((*shape, 1))
        units[..., i : i + 2] = np.float16(drawn).view(np.uint8)
    if type_name == "mxfp4":
        units[..., 0] = rng.choice([0, 1, 2, 200], shape) if scales else rng.integers(118, 132, shape)
    return units.reshape(n_rows, -1)


def columns_of(rng: np.random.Generator, n_columns: int, n: int) -> Array:
    """Columns that Q8_0 and BF16 represent exactly: a block has 127 as its largest number, scales are powers of 2."""
    x = rng.integers(-127, 128, (n_columns, n // 32, 32)).astype(np.float32)
    x[..., 5] = 127
    x *= rng.choice(np.float32([0.25, 1, 8]), (n_columns, n // 32, 1))
    x[rng.random(x.shape[:2]) < 0.05] = 0
    return x.reshape(n_columns, -1)


def product(type_name: str, weights: Array, x: Array, n_threads: int = 1) -> Array:
    return _core.ops_product(weights, type_name, x, True, n_threads)


def check(type_name: str, weights: Array, x: Array, got: Array, bf16: bool = False) -> None:
    """The error is in proportion to the sizes of terms: scale times number, and minimum.

    In BF16, terms are added singly, and a weight may be rounded the other way: its minimum was not added at once.
    """
    w = gguf.quants.dequantize(weights, ggml_type(type_name))
    w = (as_type(w, "bf16") if bf16 else w).astype(np.float64)
    sizes = np.abs(w)
    one = 2.0**-8 * np.abs(x).max(axis=1)[:, None] * sizes.max(axis=1) if bf16 else 0.0
    numbers = TYPES[type_name][1]
    if numbers is not None:
        units = weights.reshape(len(weights), -1, gguf.GGML_QUANT_SIZES[ggml_type(type_name)][1]).copy()
        units[..., numbers] = 0
        minimums = gguf.quants.dequantize(units.reshape(weights.shape), ggml_type(type_name))
        sizes += 2 * np.abs(minimums)
    assert got.shape == (len(x), len(weights))
    assert np.all(np.abs(got - x.astype(np.float64) @ w.T) <= (4e-6 if bf16 else 1e-6) * (np.abs(x) @ sizes.T) + one)


@pytest.mark.parametrize("isa_name", ISAS)
@given(data=st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_sizes(isa_name: str, data: st.DataObject) -> None:
    draw: Callable[[int, int], int] = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    type_name = data.draw(st.sampled_from(list(TYPES)))
    rng = np.random.default_rng(draw(0, 1000))
    n = unit(type_name) * draw(1, 4800 // unit(type_name))  # more than a slice of blocks, too
    weights, x = weights_of(rng, type_name, draw(1, 70), n), columns_of(rng, draw(1, 130), n)
    with using(isa_name):
        got = product(type_name, weights, x, n_threads=draw(1, 3))
    check(type_name, weights, x, got, in_bf16(isa_name, len(x)))


@every_isa
@every_type
def test_extreme_numbers_and_scales(rng: np.random.Generator, isa: str, type_name: str) -> None:
    """All bits set or none; scales from the smallest to the largest F16, columns of 127 or -127."""
    n = 512
    for scales in ([65504.0], [6e-8, -6e-8], [0.0], [1e-3, 65504.0]):
        for bits in (None, 0x00, 0x80, 0x7F, 0xFF):
            with case(scales=scales, bits=bits):
                weights = weights_of(rng, type_name, 9, n, scales)
                if bits is not None:
                    units = weights.reshape(9, n // unit(type_name), -1)
                    kept = [0] if type_name == "mxfp4" else [i + j for i in TYPES[type_name][0] for j in (0, 1)]
                    units[..., np.setdiff1d(np.arange(units.shape[2]), kept)] = bits
                for n_columns in (1, 3, 20, 50):
                    x = rng.choice(np.float32([-127, 127]), (n_columns, n))
                    x[0] = -127
                    bf16 = in_bf16(isa, n_columns)
                    check(type_name, weights, x, product(type_name, weights, x), bf16)


@every_isa
@every_type
def test_a_column_does_not_depend_on_others_or_threads(rng: np.random.Generator, isa: str, type_name: str) -> None:
    is_wide = isa == "amx"
    n_columns = 140 if is_wide else 70
    weights, x = weights_of(rng, type_name, 75, 2560), rng.standard_normal((n_columns, 2560), dtype=np.float32)
    whole = product(type_name, weights, x, n_threads=3)
    for start, end in ((0, 130), (3, 140)) if is_wide else ((0, 9), (5, 17), (30, 70)):
        np.testing.assert_array_equal(product(type_name, weights, x[start:end]), whole[start:end])
    few = product(type_name, weights, x[:4], n_threads=2)
    for i in range(4):
        np.testing.assert_array_equal(product(type_name, weights, x[i : i + 1]), few[i : i + 1])


@every_isa
@pytest.mark.parametrize("n_columns", [19, 60])
def test_what_is_not_finite_stays_in_its_column_or_row(rng: np.random.Generator, isa: str, n_columns: int) -> None:
    weights, x = weights_of(rng, "q8_0", 21, 128), rng.standard_normal((n_columns, 128), dtype=np.float32)
    expected = product("q8_0", weights, x)
    odd_x, odd_weights = x.copy(), weights.copy()
    odd_x[3, 70], odd_x[18, 127] = np.inf, np.inf if in_bf16(isa, n_columns) else 1e30
    odd_weights[5, 34:36] = np.float16([np.nan]).view(np.uint8)
    odd_weights[20, :2] = np.float16([np.inf]).view(np.uint8)
    for i, got in ((0, product("q8_0", weights, odd_x).T), (1, product("q8_0", odd_weights, x))):
        odd = [[3, 18], [5, 20]][i]
        rest = np.setdiff1d(np.arange(got.shape[1]), odd)
        assert not np.isfinite(got[:, odd]).any()
        np.testing.assert_array_equal(got[:, rest], (expected.T if i == 0 else expected)[:, rest])


@every_isa
@pytest.mark.parametrize("type_name", ["q8_0", "q4_K", "q6_K", "q5_1"])
def test_experts(rng: np.random.Generator, isa: str, type_name: str) -> None:
    """Each token's product with the experts that were chosen for it: some have many tokens, others few or none."""
    n, n_experts, n_rows = 2304, 7, 70
    weights = weights_of(rng, type_name, n_experts * n_rows, n).reshape(n_experts, n_rows, -1)
    for n_tokens, n_used, is_shared in ((1, 2, True), (1, 3, False), (5, 4, True), (130, 3, False)):
        with case(n_tokens=n_tokens, n_used=n_used, is_shared=is_shared):
            skewed = np.array([0.4, 0.3, 0.2, 0.04, 0.03, 0.03, 0])
            skewed[:6] += 1e-9
            ids = np.array(
                [rng.choice(n_experts, n_used, replace=False, p=skewed / skewed.sum()) for _ in range(n_tokens)]
            )
            x = columns_of(rng, n_tokens * (1 if is_shared else n_used), n).reshape(n_tokens, -1, n)
            got = _core.ops_product(weights, type_name, x, True, 3, ids.astype(np.int32))
            for expert in np.unique(ids):
                token, i = np.nonzero(ids == expert)
                bf16 = in_bf16(isa, n_tokens * n_used // n_experts)
                check(type_name, weights[expert], x[token, 0 * i if is_shared else i], got[token, i], bf16)


@pytest.mark.skipif(not ISAS, reason="no kernels for this CPU")
def test_auto_is_own_with_h2o_and_upstreams_without(model_by_name: ModelByName) -> None:
    """`Llama(matmul_kernels=)`: both are used, of the same weights; they differ, by as little as rounding."""
    path = model_by_name("qwen3-gqa4-q8_0")
    model = read_model(path)
    config = SMALL.but(chunk_size=64, local_window=8, heavy_budget=8, sink_tokens=0)
    calls = [random_tokens(60), [1], [2]]  # in one chunk: sparse attention is dense attention
    expected = dense(model, np.concatenate(calls)).logits
    for h2o, auto in ((None, "upstream"), (config, "own")):
        found = {}
        for kernels in ("auto", "upstream", "own"):
            with open_llama(path, h2o, matmul_kernels=kernels) as llm:
                found[kernels] = np.concatenate(eval_calls(llm, calls))
            assert_logits_close(found[kernels], expected, config.tolerance(model, calls).logits)
        np.testing.assert_array_equal(found["auto"], found[auto])
        assert not np.array_equal(found["own"], found["upstream"])
