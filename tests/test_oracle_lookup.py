"""The oracle's retrieval by itself: what the library is compared with must be right first. Needs no build of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from compare import relative_error
from inputs import ModelByName, repetitive_tokens, split
from oracle import GGUFModel, OracleSinglePass, layers, read_model
from oracle.arrays import Array
from oracle.key_index import choose_keys, index_budget
from oracle.kv_cache import OracleKVCache
from oracle.kv_rounding import round_q4_0, round_to
from oracle.lookup import FOLLOW

F64 = np.float64
S, T = 16, 4
# A prompt's call, tokens that were generated, and a call with a dense tail.
Call = tuple[str, list[int]]
TAIL = 5


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


def prompt(*parts: list[int]) -> list[Call]:
    return [("prompt", part) for part in parts]


# --- by its definition


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
    """Six chunks, the last one open. Much is looked up, some of it in a head's memory set and not in another's."""
    tokens = repetitive_tokens(90, models.N_VOCAB)
    assert_is_naive(fixture_model, prompt(*split(tokens, sizes)), B=0)
    oracle = assert_is_naive(fixture_model, prompt(*split(tokens, sizes)))
    assert len(oracle.log) > 60
    kept = [
        np.array([position in oracle.history[query // S - 1][il][head] for position, query in oracle.log])
        for il in fixture_model.hparams.attention_layers
        for head in range(fixture_model.hparams.n_head_kv[il])
    ]
    assert all(0 < head.sum() < len(head) for head in kept)
    if len(kept) > 2:
        assert any(np.any(a != b) for a, b in itertools.pairwise(kept))


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


def calls_of(tokens: list[int]) -> list[Call]:
    parts = split(tokens, [n for _, n in CALLS])
    return [(what, part) for (what, _), part in zip(CALLS, parts, strict=True)]


@pytest.mark.parametrize("sizes", [{}, {"B": 3}, {"B": 200}, {"L": 0, "A": 0}, {"L": 16, "H": 0}, {"B": 0}], ids=str)
def test_generated_tokens_and_dense_tails_ask_for_nothing(model_by_name: ModelByName, sizes: dict[str, int]) -> None:
    """What was asked for before them is seen after them, until B newer rows have come."""
    model = read_model(model_by_name("qwen3-gqa4-f32"))
    oracle = assert_is_naive(model, calls_of(repetitive_tokens(91, models.N_VOCAB, seed=1)), **sizes)
    if not sizes.get("B", 1):
        assert not oracle.log
        return
    # of chunk 5, positions 80 to 90: generated to 80, a tail to 83, the prompt goes on
    asking = {*range(18), *range(20, 37), *range(40, 44), *range(49, 67), *range(84, 91)}
    queries = {query for _, query in oracle.log}
    assert queries <= asking
    assert all(queries & set(part) for part in (range(20, 37), range(49, 67), range(84, 91)))
    assert len(oracle.log) > 10


def test_text_that_was_generated_or_is_a_tail_is_found(model_by_name: ModelByName) -> None:
    model = read_model(model_by_name("qwen3-gqa4-f32"))
    for what in ("generated", "tail"):
        oracle = sequence(model, L=0, A=0, B=4 * len(FOLLOW))
        logits_of(oracle, [("prompt", [9] * 8), (what, [1, 2, 3, 4]), ("prompt", [9] * 4), ("prompt", [2, 5, 6, 7])])
        assert oracle.log == sorted((9 + j, 16) for j, _ in FOLLOW)


# --- keys in 4 bits


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
