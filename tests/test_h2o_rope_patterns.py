"""Scorer "key_diff" on every way in which a model's graph brings K to the cache, and what the user is told of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from compare import assert_all_equal
from h2o_llama import H2OConfig, H2OError, Llama
from h2o_llama.sequence import _ranges
from inputs import random_tokens
from llamas import Config, eval_calls, open_llama
from oracle.layers import rope
from oracle.scorers import key_difference
from pairwise import pairwise
from rope_models import ABSENT, HIDDEN, ROPE_MODELS, TAKEN_BACK, RopeModel

Array = npt.NDArray[np.float32]
PathOf = Callable[[RopeModel], Path]

S = 32
CONFIG = Config(S=S, L=4, H=8, scorer="key_diff", pooling=1)
TOKENS = random_tokens(3 * S + 10)  # three whole chunks, and one that is open

SCORABLE = [name for name, model in ROPE_MODELS.items() if HIDDEN not in model.rope]
NOT_SCORABLE = [name for name, model in ROPE_MODELS.items() if HIDDEN in model.rope]

WARNING = "changes its keys after RoPE, which scorer 'key_diff' cannot take back: in layers 0-1 'sum' ranks positions"


@pytest.fixture(scope="session")
def path_of(tmp_path_factory: pytest.TempPathFactory) -> PathOf:
    folder = tmp_path_factory.mktemp("rope")

    def path(model: RopeModel) -> Path:
        res = folder / model.spec.file_name
        if not res.exists():
            model.write(model.spec, res)
        return res

    return path


def config(**kwargs: str) -> Config:
    return Config(**(vars(CONFIG) | kwargs))


def open_quietly(path: Path, config: Config, calls: list[list[int]]) -> Llama:
    """After these calls."""
    llm = open_llama(path, config, n_ctx=128)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*changes its keys after RoPE")
        eval_calls(llm, calls)
    return llm


def without_rope(model: RopeModel, keys: Array) -> Array:
    """Keys [n_head_kv, n, head_dim] of the positions from 0 on, turned back."""
    turned: Array = keys.copy()
    rotated = keys[..., : model.n_rot].transpose(1, 0, 2).astype(np.float64)
    back = rope(rotated, -np.arange(keys.shape[1]), model.spec.rope_base, neox=model.neox)
    turned[..., : model.n_rot] = back.transpose(1, 0, 2)
    for end in (model.n_rot // 2, model.n_rot):
        still = slice(end - model.n_still, end)
        turned[..., still] = keys[..., still]
    return turned


def key_differences(keys: Array) -> Array:
    """Of all whole chunks."""
    n = keys.shape[1] // S * S
    differences: Array = np.concatenate([key_difference(keys[:, p : p + S]) for p in range(0, n, S)], axis=1)
    return differences


# --- where RoPE can be taken back, or there is none


@pairwise("schedule", "isa", kv_type=["f32", "f16", "q8_0"], name=SCORABLE)
def test_scores_are_of_keys_without_rope(name: str, kv_type: str, schedule: str, isa: str, path_of: PathOf) -> None:
    model = ROPE_MODELS[name]
    with open_llama(path_of(model), config(kv_type=kv_type, schedule=schedule), n_ctx=128) as llm:
        llm.eval(TOKENS)
        assert [llm.kv.scorer(il) for il in llm.kv.layers] == ["key_diff"] * model.spec.n_layer
        for il, kind in enumerate(model.rope):
            keys, scores = llm.kv.keys(il), llm.kv.scores(il)[:, : 3 * S]
            bare = without_rope(model, keys)
            expected = key_differences(bare if kind == TAKEN_BACK else keys)
            np.testing.assert_allclose(scores, expected, atol=1e-5)
            # The other way round would be seen.
            assert np.abs(scores - key_differences(keys if kind == TAKEN_BACK else bare)).max() > 1e-2


def test_every_pattern_is_there() -> None:
    assert {kind for model in ROPE_MODELS.values() for kind in model.rope} == {TAKEN_BACK, ABSENT, HIDDEN}
    assert any({TAKEN_BACK, ABSENT} <= set(model.rope) for model in ROPE_MODELS.values())


# --- where it cannot


@pairwise("schedule", "flash_attn", first=[[], [3], [3, 40]], kv_type=["f32", "q8_0"], name=NOT_SCORABLE)
def test_hidden_rope_is_scored_by_sum(
    name: str, kv_type: str, first: list[int], schedule: str, flash_attn: str, path_of: PathOf
) -> None:
    """Bit by bit, whatever the first call is."""
    model = ROPE_MODELS[name]
    calls = [*([token] for token in first), TOKENS[: S + 5], TOKENS[S + 5 :]]
    found = []
    for scorer in ("sum", "key_diff"):
        wanted = config(scorer=scorer, kv_type=kv_type, schedule=schedule, flash_attn=flash_attn)
        with open_quietly(path_of(model), wanted, calls) as llm:
            assert [llm.kv.scorer(il) for il in llm.kv.layers] == ["sum"] * model.spec.n_layer
            assert llm.kv.scores(0)[:, -1].min() > 0  # the open chunk has scores already: they are attention
            history = [memory[il] for memory in llm.kv.history for il in llm.kv.layers]
            found.append([llm.logits, *history, *(llm.kv.scores(il) for il in llm.kv.layers)])
    assert_all_equal(*found)


def test_generated_tokens_are_scored_by_sum_too(path_of: PathOf) -> None:
    found = []
    for scorer in ("sum", "key_diff"):
        wanted = replace(config(scorer=scorer), decode="memory")
        with open_quietly(path_of(ROPE_MODELS["maincoder"]), wanted, [TOKENS[: S + 5]]) as llm:
            for token in TOKENS[S + 5 :]:
                llm.eval([token], decode=True)
            found.append([llm.logits, *(f(il) for il in llm.kv.layers for f in (llm.kv.memory_indices, llm.kv.scores))])
            assert llm.kv.scores(0)[:, -1].min() > 0
    assert_all_equal(*found)


def test_other_scorers_do_not_care(path_of: PathOf) -> None:
    """Nor does dense attention."""
    for scorer in ("sum", "distant"):
        with open_llama(path_of(ROPE_MODELS["maincoder"]), config(scorer=scorer), n_ctx=128) as llm:
            llm.eval(TOKENS)  # warnings are errors
            assert [llm.kv.scorer(il) for il in llm.kv.layers] == [scorer] * 2
            with pytest.raises(ValueError, match="layer 2 has no K/V"):
                llm.kv.scorer(2)
    with open_llama(path_of(ROPE_MODELS["maincoder"]), None) as llm:
        llm.eval(TOKENS)
        with pytest.raises(H2OError, match="H2O is off"):
            llm.kv.scorer(0)


# --- what the user is told


@pytest.mark.parametrize("name", NOT_SCORABLE)
def test_a_fallback_warns_once(name: str, path_of: PathOf) -> None:
    with open_llama(path_of(ROPE_MODELS[name]), CONFIG, n_ctx=128) as llm:
        with pytest.warns(UserWarning, match=WARNING) as record:
            llm.eval(TOKENS[:5])
        assert [(str(w.message).startswith("[Llama] "), w.filename) for w in record] == [(True, __file__)]
        assert llm.n_tokens == 5
        llm.eval(TOKENS[5:])
        llm.reset()
        llm.eval(TOKENS)
        with Llama(llm, n_ctx=128, n_ubatch=S, h2o=H2OConfig(4, 8, scorer="key_diff")) as other:
            with pytest.warns(UserWarning, match=WARNING):
                next(other.generate(TOKENS))
            next(other.generate(TOKENS[:2]))


def test_a_warning_as_an_error_leaves_the_sequence_usable(path_of: PathOf) -> None:
    with open_llama(path_of(ROPE_MODELS["talkie"]), CONFIG, n_ctx=128) as llm:
        with pytest.raises(UserWarning, match=WARNING):
            llm.eval(TOKENS[:40])
        llm.eval(TOKENS[40:])
        assert llm.n_tokens == len(TOKENS)


@pytest.mark.parametrize(
    ("numbers", "text"), [([4], "4"), ([0, 1], "0-1"), ([0, 1, 2, 4], "0-2, 4"), ([1, 3, 5, 6], "1, 3, 5-6")]
)
def test_layers_are_named_by_ranges(numbers: list[int], text: str) -> None:
    assert _ranges(numbers) == text
