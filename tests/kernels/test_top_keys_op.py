"""The operator that chooses rows of an index of keys, against NumPy, with every kernel that this machine has."""

from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from compare import case
from cuda_in_software import running
from h2o_llama import _core
from kernels import ALL_ISAS, CUDA, backend_of
from oracle.top_keys import index_logits, tile_scores, top_keys
from pairwise import all_pairs

Array = NDArray[Any]


def exact_keys(rng: np.random.Generator, n_head_kv: int, n_k: int, d: int) -> Array:
    """Bytes of Q4_0 whose scales are powers of two: with exact_queries, all scores are exact in float32."""
    k = rng.integers(0, 256, (n_head_kv, n_k, d // 32, 18), dtype=np.uint8)
    k[..., :2] = rng.choice(np.float16([0.25, 0.5, -0.5, 2]), (n_head_kv, n_k, d // 32, 1)).view(np.uint8)
    return k.reshape(n_head_kv, n_k, -1)


def real_keys(rng: np.random.Generator, n_head_kv: int, n_k: int, d: int) -> Array:
    """Bytes of Q4_0."""
    keys = rng.standard_normal((n_head_kv, n_k, d), dtype=np.float32)
    return gguf.quants.quantize(keys, gguf.GGMLQuantizationType.Q4_0)


def exact_queries(rng: np.random.Generator, n_head_kv: int, group: int, n_q: int, d: int) -> Array:
    """Sums over groups are integers up to 127, times a power of two of each query: 8 bits are enough for them."""
    sums = rng.integers(-127, 128, (n_head_kv, 1, n_q, d))
    sums[..., rng.integers(d)] = 127
    others = rng.integers(-50, 51, (n_head_kv, group - 1, n_q, d))
    q = np.concatenate([others, sums - others.sum(axis=1, keepdims=True)], axis=1)
    q = q * 2.0 ** rng.integers(-2, 3, (n_q, 1))
    return q.reshape(-1, n_q, d).astype(np.float32)


def in_8_bits(rng: np.random.Generator, k: Array) -> Array:
    """Bytes of Q8_0 in place of such bytes of Q4_0. The largest number of a block is 64: scores are exact again."""
    blocks = k.reshape(*k.shape[:2], -1, 18)
    numbers = rng.integers(-63, 64, (*blocks.shape[:-1], 32), dtype=np.int8)
    numbers[..., rng.integers(32)] = rng.choice(np.int8([-64, 64]), blocks.shape[:-1])
    numbers[rng.random(blocks.shape[:-1]) < 0.05] = 0
    return np.concatenate([blocks[..., :2], numbers.view(np.uint8)], axis=-1).reshape(*k.shape[:2], -1)


def queries(rng: np.random.Generator, n_head: int, n_q: int, d: int) -> Array:
    return rng.standard_normal((n_head, n_q, d), dtype=np.float32)


def operator(
    q: Array,
    k: Array,
    n_top: int,
    *,
    tile: int = 1,
    offset: int = 0,
    excluded: Any = None,
    backend: str = "cpu",
    n_threads: int = 1,
) -> Array:
    """The rows of k that the queries of a tile choose together: src/ggml/top-keys/top-keys.h."""
    excluded = None if excluded is None else np.ascontiguousarray(excluded, dtype=np.int32)
    return _core.ops_top_keys(q, k, n_top, excluded, tile, offset, backend, n_threads)


def choose(kernel: str, *arguments: Any, **more: Any) -> Array:
    """By the operator. CUDA's threads may run in any order."""
    got = operator(*arguments, **more, backend=backend_of(kernel))
    if kernel == CUDA:
        with running("shuffled"):
            np.testing.assert_array_equal(operator(*arguments, **more, backend=backend_of(kernel)), got)
    return got


def check(kernel: str, q: Array, k: Array, n_top: int, **more: Any) -> None:
    np.testing.assert_array_equal(choose(kernel, q, k, n_top, **more), top_keys(q, k, n_top, **more))


class TestEqualsNumpy:
    def test_sizes(self, rng: np.random.Generator, kernel: str) -> None:
        for choice in all_pairs(
            d=[32, 64, 96, 128, 256, 576],
            n_q=[1, 8, 9, 45],
            group=[1, 3],
            n_k=[1, 15, 17, 127, 129, 513, 2000 if kernel == CUDA else 6000],
            n_top=[1, 64, 700],
            tile=[1, 7, 16, 64],
        ):
            with case(**choice):
                q = exact_queries(rng, 2, choice["group"], choice["n_q"], choice["d"])
                k, tile = exact_keys(rng, 2, choice["n_k"], choice["d"]), choice["tile"]
                for keys in (k,) if kernel == CUDA else (k, in_8_bits(rng, k)):
                    check(kernel, q, keys, choice["n_top"], tile=tile, offset=int(rng.integers(tile)))

    def check_odd(self, kernel: str, seed: int, n_head_kv: int, n_q: int, n_k: int, n_top: int, tile: int) -> None:
        """With many equal scores, rows that are excluded, and values that are 0 or not finite."""
        rng = np.random.default_rng(seed)
        q, k = exact_queries(rng, n_head_kv, int(rng.integers(1, 4)), n_q, 32), exact_keys(rng, n_head_kv, n_k, 32)
        k = k[:, rng.integers(0, rng.integers(1, n_k + 1), n_k)]  # n_k rows, fewer different ones
        odd = rng.random((n_head_kv, n_k)) < rng.choice([0, 0.1, 1])
        k[odd, :2] = rng.choice(np.float16([0, np.nan]), (np.count_nonzero(odd), 1)).view(np.uint8)
        q[rng.random(q.shape) < rng.choice([0, 0.003])] = rng.choice([np.nan, np.inf])
        q[:, rng.random(n_q) < 0.1] = 0
        excluded = rng.integers(-3, n_k + 3, (n_head_kv, int(rng.integers(1, n_k + 1))))
        check(kernel, q, k, n_top, excluded=excluded, tile=tile, offset=int(rng.integers(tile)))

    @pytest.mark.parametrize("kernel", [*ALL_ISAS, pytest.param(CUDA, marks=pytest.mark.slow)], indirect=True)
    def test_random_sizes(self, kernel: str) -> None:
        for seed in range(12 if kernel == CUDA else 100):
            with case(seed=seed):
                sizes = np.random.default_rng(seed).integers(1, (4, 31, 1200, 150, 12)).tolist()
                self.check_odd(kernel, seed, *sizes)

    def test_small_and_large_queries(self, rng: np.random.Generator, kernel: str) -> None:
        for power in (-100, 100):
            with case(power=power):
                q, k = exact_queries(rng, 2, 2, 9, 64) * np.float32(2.0**power), exact_keys(rng, 2, 300, 64)
                check(kernel, q, k, 30, tile=4)

    def test_infinite_keys(self, rng: np.random.Generator, kernel: str) -> None:
        """Different rows that are free are chosen."""
        q, k = exact_queries(rng, 1, 1, 9, 32), exact_keys(rng, 1, 200, 32)
        for value in (np.inf, -np.inf):
            with case(value=value):
                k[0, 7:90:9, :2] = np.float16([value]).view(np.uint8)
                rows = choose(kernel, q, k, 20, tile=4, excluded=[range(50)])
                assert (rows[..., 1:] > rows[..., :-1]).all()
                assert 50 <= rows.min() <= rows.max() < 200


class TestRealKeys:
    """Scores are rounded in float32: rows whose scores hardly differ may take each other's places."""

    @pytest.mark.parametrize("n_q", [1, 20])
    def test_the_best_are_chosen(self, rng: np.random.Generator, isa: str, n_q: int) -> None:
        q, k = queries(rng, 4, n_q, 128), real_keys(rng, 2, 9000, 128)
        rows = operator(q, k, 100, tile=16)
        assert (rows[..., 1:] > rows[..., :-1]).all()
        logits = index_logits(q, k)
        for head, tile in np.ndindex(*rows.shape[:2]):
            of_tile = logits[head, tile * 16 : (tile + 1) * 16]
            scores = tile_scores(of_tile)
            worst = scores[rows[head, tile]].min()
            scores[rows[head, tile]] = -np.inf
            assert worst >= scores.max() - 1e-6 * np.abs(of_tile).max()

    @pytest.mark.parametrize("n_q", [1, 5, 60])
    def test_same_for_tiles_alone_with_any_number_of_threads(
        self, rng: np.random.Generator, isa: str, n_q: int
    ) -> None:
        q, k, excluded = queries(rng, 6, n_q, 64), real_keys(rng, 3, 2100, 64), rng.integers(0, 2100, (3, 300))
        want = operator(q, k, 50, tile=16, offset=3, excluded=excluded)
        for n_threads in (2, 3, 16):
            got = operator(q, k, 50, tile=16, offset=3, excluded=excluded, n_threads=n_threads)
            np.testing.assert_array_equal(got, want)
        for tile in range(want.shape[1]):
            part = q[:, max(16 * tile - 3, 0) : 16 * tile + 13]
            got = operator(part, k, 50, tile=16, offset=0 if tile else 3, excluded=excluded)
            np.testing.assert_array_equal(got[:, 0], want[:, tile])

    def test_more_keys_than_are_packed_at_once(self, rng: np.random.Generator) -> None:
        """KV heads take turns, two and then one: 3 of them take 42 MB, room is for 32."""
        k = np.repeat(exact_keys(rng, 3, 4096, 256), 22, axis=1)
        q = exact_queries(rng, 3, 1, 9, 256)
        want = np.concatenate([operator(q[[h]], k[[h]], 10, tile=4) for h in range(3)])
        for n_threads in (1, 3):
            np.testing.assert_array_equal(operator(q, k, 10, tile=4, n_threads=n_threads), want)
