"""The attention operator, against a float64 NumPy reference, with every CPU kernel that this machine has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from h2o_llama import _core, ops


@pytest.fixture(params=_core.ops_attention_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    _core.ops_set_attention_isa(request.param)
    yield request.param
    _core.ops_set_attention_isa(_core.ops_attention_isas()[0])


def reference(
    q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], rows: NDArray[Any], scale: float = 1.0, causal: bool = True
) -> ops.Attention:
    """All in float64. q [n_block, n_head, n_q, d_k], rows [n_block, n_head_kv, n_k]."""
    n_block, n_head, n_q, _ = q.shape
    n_head_kv, n_k = rows.shape[1:]
    group = n_head // n_head_kv
    kv_heads = np.arange(n_head_kv)[None, :, None]
    keys = np.repeat(k.astype(np.float64)[kv_heads, rows], group, axis=1)
    values = np.repeat(v.astype(np.float64)[kv_heads, rows], group, axis=1)
    with np.errstate(all="ignore"):
        logits = np.float64(np.float32(scale)) * (q.astype(np.float64) @ keys.swapaxes(-1, -2))
        if causal:
            logits[..., np.triu(np.ones((n_q, n_k), dtype=bool), k=n_k - n_q + 1)] = -np.inf
        m = logits.max(axis=-1)
        e = np.exp(logits - np.where(m == -np.inf, 0, m)[..., None])
        l = e.sum(axis=-1)  # noqa: E741
        weights = e / np.where(l == 0, 1, l)[..., None]
    o = (weights @ values).swapaxes(1, 2)
    sums = weights.reshape(n_block, n_head_kv, group * n_q, n_k).sum(axis=2)
    return ops.Attention(o, sums, m, l)


def random_case(
    rng: np.random.Generator, n_block: int, n_head_kv: int, group: int, n_q: int, memory: int, d_k: int, d_v: int
) -> tuple[NDArray[Any], ...]:
    n_k = n_q + memory
    n_kv = n_k + 7
    q = rng.standard_normal((n_block, n_head_kv * group, n_q, d_k), dtype=np.float32)
    k = rng.standard_normal((n_head_kv, n_kv, d_k), dtype=np.float32)
    v = rng.standard_normal((n_head_kv, n_kv, d_v), dtype=np.float32)
    rows = np.stack([[rng.permutation(n_kv)[:n_k] for _ in range(n_head_kv)] for _ in range(n_block)])
    return q, k, v, rows


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1, 1, 0, 1, 1), (1, 2, 2, 33, 17, 32, 32), (2, 3, 1, 65, 0, 33, 80), (1, 1, 16, 7, 300, 100, 128)],
    ids=str,
)
def test_equals_numpy(rng: np.random.Generator, isa: str, sizes: tuple[int, ...], causal: bool) -> None:
    q, k, v, rows = random_case(rng, *sizes)
    scale = sizes[5] ** -0.5
    got = ops.attention(q, k, v, rows, scale=scale, causal=causal)
    want = reference(q, k, v, rows, scale, causal)
    for name, x, y in zip(got._fields, got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=name)
