"""The oracle by itself: what the library is compared with must be right first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from compare import assert_all_equal, assert_logits_close, case, relative_error
from h2o_llama.models._quantize import quantize_model
from inputs import ModelByName, random_tokens, repetitive_tokens, split
from llamas import eval_calls, open_llama
from oracle import (
    DenseOracle,
    GGUFModel,
    OracleSinglePass,
    OracleTwoPhase,
    fuse,
    layers,
    read_model,
    select_memory,
    softmax_state,
)
from oracle.arrays import Array
from oracle.key_index import choose_keys, index_budget
from oracle.kv_cache import OracleKVCache
from oracle.kv_rounding import CacheRounding, hadamard, round_bf16, round_q4_0, round_q8_0, round_to
from oracle.lookup import FOLLOW
from selection_table import SELECTION_TABLE
from tolerances import tolerance

F64 = np.float64
S, T = 16, 4
# A prompt's call, tokens that were generated, and a call with a dense tail.
Call = tuple[str, list[int]]
TAIL = 5


# --- tables by hand


def test_softmax_state_of_known_values() -> None:
    state, weights = softmax_state(np.log([[1.0, 3.0]]), np.array([[0.0, 4.0], [8.0, 0.0]]))
    np.testing.assert_allclose(weights, [[0.25, 0.75]])
    np.testing.assert_allclose(state.m, np.log([3.0]))
    np.testing.assert_allclose(state.l, [4 / 3])
    np.testing.assert_allclose(state.o, [[6.0, 1.0]])


def test_empty_block_is_neutral_and_two_empty_blocks_are_empty() -> None:
    state, _ = softmax_state(np.array([[5.0, -3.0]]), np.eye(2))
    nothing, weights = softmax_state(np.zeros((1, 0)), np.zeros((0, 2)))
    assert weights.shape == (1, 0)
    for fused in (fuse(state, nothing), fuse(nothing, state)):
        assert_all_equal(fused, state)
    assert_all_equal(fuse(nothing, nothing), ([-np.inf], [0], [[0, 0]]))


def test_bf16_rounds_to_nearest_even() -> None:
    step = 2.0**-7
    x = np.array([1.0, 1 + step / 2, 1 + 3 * step / 2, 1 + step / 2 + 2**-20, -np.inf, np.nan])
    want = np.array([1.0, 1.0, 1 + 2 * step, 1 + step, -np.inf, np.nan])
    np.testing.assert_array_equal(round_bf16(x), want)


def test_q8_0_has_one_scale_per_32_values(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 96)).astype(np.float32)
    x[:, 32:64] *= 1000
    x[0, 64:] = 0
    error = np.abs(round_q8_0(x) - x).reshape(3, 3, 32)
    largest = np.abs(x).reshape(3, 3, 32).max(axis=-1)
    # Half a step, and the F16 rounding of the scale.
    assert np.all(error.max(axis=-1) <= largest * (0.5 / 127 + 2.0**-11))
    assert not error[0, 2].any()


def test_cache_rotation_is_undone_when_read(rng: np.random.Generator) -> None:
    np.testing.assert_allclose(hadamard(64) @ hadamard(64), np.eye(64), atol=1e-12)
    x = rng.standard_normal((2, 5, 128))
    x[..., 7] = 50  # an outlier that plain Q8_0 would pay for
    for keys in (True, False):
        rounding = CacheRounding("q8_0", 128, keys=keys)
        rotated_error = np.abs(rounding(x) - x).mean()
        assert rotated_error < np.abs(round_q8_0(x) - x).mean() / 2
    assert CacheRounding("q8_0", 32, keys=True).rotation == 0
    assert CacheRounding("f16", 64, keys=True).rotation == 0


def test_selection_of_hand_computed_tables() -> None:
    for scores, previous, S, c, L, H, A, kept in SELECTION_TABLE:
        with case(scores=scores, previous=previous, S=S, c=c, L=L, H=H, A=A, kept=kept):
            memory = select_memory(
                np.array(scores, dtype=F64),
                np.array([*previous, -1], dtype=np.int32),
                c * S,
                (c + 1) * S,
                L=L,
                H=H,
                A=A,
            )
            assert memory.tolist() == kept


def test_keys_in_4_bits() -> None:
    """The largest number is -8 steps; the others are rounded to steps, halves up, from -8 to 7."""
    x = np.zeros(32, np.float32)
    x[:6] = [-4, 4, 0.24, 0.26, -0.25, 1.3]
    expected = np.zeros(32, np.float32)
    expected[:6] = [-4, 3.5, 0, 0.5, 0, 1.5]
    np.testing.assert_array_equal(round_q4_0(x), expected)
    np.testing.assert_array_equal(round_q4_0(-x)[:6], [4, -3.5, 0, -0.5, 0, -1.5])
    assert not round_q4_0(np.zeros((2, 64), np.float32)).any()


@pytest.mark.parametrize(
    ("memory", "tiles", "n_top", "expected"),
    [
        ([], [0, 1], 2, [[0, 1], [2, 3]]),
        # together: the largest logit of any of them
        ([], [3, 3], 1, [[0]] * 2),
        ([], [3, 3], 2, [[0, 1]] * 2),
        ([], [3, 3], 3, [[0, 1, 2]] * 2),
        ([], [3, 3], 4, [[0, 1, 2, 3]] * 2),
        ([], [3, 3], 9, [[0, 1, 2, 3, 4]] * 2),
        # without what is in memory
        ([0, 2], [3, 3], 1, [[1]] * 2),
        ([0, 2], [3, 3], 2, [[1, 3]] * 2),
        ([0, 2], [0, 1], 2, [[1, 3], [1, 3]]),
    ],
)
def test_the_choice_of_a_tile(memory: list[int], tiles: list[int], n_top: int, expected: list[list[int]]) -> None:
    """Two heads are summed: one query is 10 in one direction, the other 1 in another. Of equals the lower wins."""
    q = np.zeros((2, 2, 32), np.float32)
    q[:, 0, 0], q[:, 1, 1] = [12, -2], [0.5, 0.5]
    index = np.zeros((1, 5, 32), np.float32)
    index[0, :, :2] = [[1.0, 0.0], [0.5, 0.0], [0.0, 1.0], [0.0, 0.25], [0.0, 0.0]]
    chosen = choose_keys(q, index, np.array([memory], dtype=np.int32), n_top, np.array(tiles))
    assert [np.flatnonzero(row).tolist() for row in chosen[0]] == expected


def test_the_budget_grows_with_the_text() -> None:
    for B, S, start, expected in [
        (256, 1024, 1024, 111),
        (256, 1024, 8192, 256),
        (256, 1024, 16384, 338),
        (8, 16, 16, 3),
        (1, 16, 16, 1),
        (0, 16, 160, 0),
    ]:
        assert index_budget(B, S, start) == expected


def test_who_chooses_together(one_layer_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a prompt's call, those of a tile of their chunk; of generated tokens, tile by tile those of a call."""
    found: list[tuple[int, list[int]]] = []

    def spy(*arguments: Any) -> Any:
        found.append((arguments[3], arguments[4].tolist()))
        return choose_keys(*arguments)

    monkeypatch.setattr("oracle.sequence.choose_keys", spy)
    oracle = sequence(read_model(one_layer_model), retrieval="index", decode="memory", T=6, B=9)
    oracle.eval(range(40))
    oracle.eval(range(6))
    oracle.decode_step(1)
    oracle.decode_step(*range(11))
    chunk = [*[0] * 6, *[1] * 6, *[2] * 4]
    assert found == [
        (1, chunk),
        (4, chunk),
        (5, chunk[:8]),
        (5, chunk[8:14]),
        (5, [0]),
        (5, [0]),
        (6, [*[0] * 6, *[1] * 4]),
    ]


# --- single_pass by its definition


def sequence(model: GGUFModel, **kwargs: Any) -> OracleSinglePass:
    defaults: dict[str, Any] = {"S": S, "L": 3, "H": 5, "A": 2, "B": 6, "T": T, "dtype": F64, "kv_type": "f32"}
    return OracleSinglePass(model, **(defaults | kwargs))


def logits_of(oracle: OracleSinglePass, calls: Sequence[Call]) -> Array:
    """Of all tokens."""
    logits = []
    for what, tokens in calls:
        if what == "generated":
            for token in tokens:
                oracle.decode_step(token)
                logits.append(oracle.logits)
        else:
            oracle.eval(tokens, TAIL if what == "tail" else 0)
            logits.append(oracle.logits)
    return np.concatenate(logits)


class Naive:
    """Everything from its definition: one query and one head at a time, layer by layer, sets of positions.

    Layers do not tell each other anything but x, so the whole text can go through one before the next.
    """

    def __init__(self, model: GGUFModel, L: int = 3, H: int = 5, A: int = 2, B: int = 6) -> None:
        self.model = model
        self.L, self.H, self.A, self.B = L, H, A, B
        # By query, of those of a prompt: the positions that it asked for.
        self.asked: dict[int, list[int]] = {}
        # Per layer: scores [n_head_kv, n], and every head's memory set of every complete chunk but the last.
        self.scores: dict[int, Array] = {}
        self.memory: dict[int, list[list[set[int]]]] = {}
        self.kv: dict[int, list[Array]] = {}

    def logits(self, calls: Sequence[Call]) -> Array:
        tokens = [token for _, part in calls for token in part]
        self.kinds = [kind for what, part in calls for kind in self._kinds(what, len(part))]
        self.asked = {}
        for x, kind in enumerate(self.kinds):
            if kind == "prompt":
                self.asked[x] = self._ask(tokens, x)
        positions = np.arange(len(tokens), dtype=np.int32)
        cache = OracleKVCache(self.model.hparams, "f32")  # of the other layers

        def attention(il: int, x: Array) -> Array:
            # As the cache rounds them: the same flips of activations in both.
            self.kv[il] = [round_to(a, "f32") for a in layers.key_value(self.model, il, x, positions)]
            return self._attention(il, layers.query(self.model, il, x, positions), *self.kv[il])

        return layers.output_logits(self.model, layers.forward(self.model, cache, np.array(tokens), F64, attention))

    def _kinds(self, what: str, n: int) -> list[str]:
        n_tail = min(TAIL, n) if what == "tail" else 0
        return ["generated" if what == "generated" else "prompt"] * (n - n_tail) + ["tail"] * n_tail

    def _ask(self, tokens: list[int], x: int) -> list[int]:
        """Around earlier n-grams that end as the text does at x; few enough to visit all of them."""
        end = x - x % S - self.L
        scores: dict[int, float] = {}
        for n in (1, 2, 3):
            if x + 1 < n:
                continue
            gram = tokens[x + 1 - n : x + 1]
            found = [p for p in range(n - 1, end) if tokens[p + 1 - n : p + 1] == gram]
            for p in found[::-1]:
                for j, weight in FOLLOW:
                    scores[p + j] = scores.get(p + j, 0) + weight * (n / len(found))
        held = self._looked_up(x)
        best = sorted((-s, -p) for p, s in scores.items() if self.A <= p < end and s > 0 and p not in held)
        share = self.B // 4 + (self.B % 4 > 0)
        return sorted(-p for _, p in best[:share])

    def _looked_up(self, x: int) -> set[int]:
        """The last B that were asked for before the tile of x, and what its queries up to x have asked for."""
        tile = x - x % S % T
        before, within = (
            [p for query in queries for p in self.asked.get(query, ())] for queries in (range(tile), range(tile, x + 1))
        )
        seen = (before[-self.B :] if self.B else []) + within
        assert len(set(seen)) == len(seen)
        return set(seen)

    def _attention(self, il: int, q: Array, k: Array, v: Array) -> Array:
        n_head_kv, n, _ = k.shape
        group = len(q) // n_head_kv
        out = np.zeros((*q.shape[:2], v.shape[-1]))
        scores = self.scores[il] = np.zeros((n_head_kv, n))
        built = self.memory[il] = []
        memory: list[set[int]] = [set() for _ in range(n_head_kv)]
        for x in range(n):
            c0 = x - x % S
            if x == c0 and x > 0:
                memory = [self._select(scores[g], memory[g], x) for g in range(n_head_kv)]
                built.append(memory)
            for h in range(len(q)):
                g = h // group
                own = memory[g] | set(range(c0, x + 1))
                seen = own | self._looked_up(x) if self.kinds[x] == "prompt" else set(range(x + 1))
                weights = {p: float(np.exp(q[h, x] @ k[g, p])) for p in seen}
                total = sum(weights.values())
                for p, weight in weights.items():
                    out[h, x] += weight / total * v[g, p]
                    if self.kinds[x] == "tail" or (self.kinds[x] == "prompt" and p in own):
                        scores[g, p] += weight / total
        return out

    def _select(self, scores: Array, previous: set[int], end: int) -> set[int]:
        """No two scores are equal but for zeros, of which the lower position wins."""
        always = {p for p in range(end) if p < self.A or p >= end - self.L}
        others = (previous | set(range(end - S, end))) - always
        return always | set(sorted(others, key=lambda p: (-scores[p], p))[: self.H])


def assert_is_naive(model: GGUFModel, calls: Sequence[Call], **sizes: int) -> OracleSinglePass:
    naive = Naive(model, **sizes)
    expected = naive.logits(calls)
    oracle = sequence(model, **sizes)
    assert relative_error(logits_of(oracle, calls), expected) < 1e-10
    for il in model.hparams.attention_layers:
        sets = [[set(row[row >= 0].tolist()) for row in built[il]] for built in oracle.history]
        assert sets == naive.memory[il]
        np.testing.assert_allclose(oracle.scores(il), naive.scores[il], rtol=1e-10, atol=1e-12)
        for got, want in zip(oracle.cache.read(il, slice(0, oracle.n_tokens)), naive.kv[il], strict=True):
            assert relative_error(got, want) < 1e-12
    assert oracle.log == [(p, query) for query, positions in naive.asked.items() for p in positions]
    return oracle


@pytest.mark.parametrize("sizes", [[90], [10, 33, 1, 2, 44]], ids=str)
def test_is_what_its_definition_says(fixture_model: GGUFModel, sizes: list[int]) -> None:
    """Six chunks, the last one open."""
    calls = [("prompt", part) for part in split(repetitive_tokens(90, models.N_VOCAB), sizes)]
    assert_is_naive(fixture_model, calls, B=0)
    assert len(assert_is_naive(fixture_model, calls).log) > 60


CALLS: list[tuple[str, int]] = [
    ("prompt", 18),
    ("generated", 2),
    ("prompt", 17),
    ("generated", 3),
    ("tail", 9),
    ("prompt", 3),
    ("tail", 20),
    ("generated", 9),
    ("tail", 3),
    ("prompt", 7),
]


@pytest.mark.parametrize("sizes", [{}, {"B": 3}, {"B": 200}, {"L": 0, "A": 0}, {"L": 16, "H": 0}, {"B": 0}], ids=str)
def test_generated_tokens_and_dense_tails_ask_for_nothing(tiny_model: Path, sizes: dict[str, int]) -> None:
    """What was asked for before them is seen after them, until B newer rows have come."""
    parts = split(repetitive_tokens(91, models.N_VOCAB, seed=1), [n for _, n in CALLS])
    calls = [(what, part) for (what, _), part in zip(CALLS, parts, strict=True)]
    oracle = assert_is_naive(read_model(tiny_model), calls, **sizes)
    # of chunk 5, positions 80 to 90: generated to 80, a tail to 83, the prompt goes on
    asking = {*range(18), *range(20, 37), *range(40, 44), *range(49, 67), *range(84, 91)}
    assert {query for _, query in oracle.log} <= asking
    assert (len(oracle.log) > 10) == (sizes.get("B", 1) > 0)


def test_text_that_was_generated_or_is_a_tail_is_found(tiny_model: Path) -> None:
    model = read_model(tiny_model)
    for what in ("generated", "tail"):
        oracle = sequence(model, L=0, A=0, B=4 * len(FOLLOW))
        logits_of(oracle, [("prompt", [9] * 8), (what, [1, 2, 3, 4]), ("prompt", [9] * 4), ("prompt", [2, 5, 6, 7])])
        assert oracle.log == sorted((9 + j, 16) for j, _ in FOLLOW)


# --- two_phase


def test_two_phase_with_one_layer_and_everything_in_memory_is_dense(one_layer_model: Path) -> None:
    """With one layer there are no hidden states that differ between the phases: H ≥ N must give dense attention."""
    model, tokens = read_model(one_layer_model), random_tokens(50)
    oracle = OracleTwoPhase(model, S, 0, 64, kv_type="f32", dtype=F64)
    oracle.eval(tokens)
    assert relative_error(oracle.logits, DenseOracle(model, "f32", F64).logits(np.array(tokens))) < 1e-12


def test_two_phase_scores_add_up_to_the_number_of_queries(fixture_model: GGUFModel) -> None:
    """Each softmax row sums to 1: one row per query and head in its chunk, one more to the memory set."""
    N = 60
    oracle = OracleTwoPhase(fixture_model, S, 4, 4, kv_type="f32", dtype=F64)
    oracle.eval(random_tokens(N, models.N_VOCAB))
    for il in fixture_model.hparams.attention_layers:
        group = fixture_model.hparams.n_head[il] // fixture_model.hparams.n_head_kv[il]
        np.testing.assert_allclose(oracle.scores(il).sum(axis=1), group * (N + (N - S)))


# --- weights


def test_products_with_every_type_of_weights_are_the_librarys(model_by_name: ModelByName, tmp_path: Path) -> None:
    tokens = random_tokens(40, models.N_VOCAB)
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K"):
        with case(name=name):
            path = tmp_path / f"{name}.gguf"
            quantize_model(model_by_name("wide-f32"), path, name, n_threads=1)
            model = GGUFModel(path)
            expected = DenseOracle(model, "f32").logits(np.array(tokens))
            with open_llama(path, None) as llm:
                (logits,) = eval_calls(llm, [tokens])
            assert_logits_close(logits, expected, tolerance(model.activation_type, "f32").logits)
