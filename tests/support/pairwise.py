"""Cases for tests of many axes: every two values of different axes meet in some case, not all values of all axes."""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from allpairspy import AllPairs

from inputs import EXTERNAL_MODEL
from kernels import ALL_ISAS
from models import FIXTURE_MODELS
from oracle import SCHEDULES, UnsupportedModel, read_model

# Every architecture, type of weights and kind of RoPE once, not each with each. "external" is LLAMACPP_TEST_MODELFILE.
MODELS = (
    "qwen3-gqa4-f32",
    "qwen3-mha-f16",
    "qwen3-gqa8-f32",
    "llama-gqa2-q8_0",
    "llama3-gqa2-f32",
    "deci-mixed-f32",
    "deci-linear-f32",
    "qwen2-gqa2-f32",
    "gemma3-windows-f32",
    "lfm2-conv-f32",
    "deepseek2-mla-f32",
    "demo",
    *(["external"] if EXTERNAL_MODEL else []),
)
# For what depends on a model's kinds of layers and heads at most, and not on its weights.
SHAPES = ("qwen3-gqa4-f32", "deci-linear-f32", "gemma3-windows-f32", "lfm2-conv-f32", *MODELS[MODELS.index("demo") :])

# How H2O's attention is computed: by its own operator, or composed of ggml's operators.
ATTENTION = ("fused", "composed")

# Axes that are fixtures of conftest.py, with all their values.
FIXTURES = {"model_path": MODELS, "schedule": tuple(SCHEDULES), "flash_attn": ATTENTION, "isa": tuple(ALL_ISAS)}


@cache
def has_two_phases(name: str) -> bool:
    """Whether a model of the table has both schedules: no window or recurrent state can pass the same text twice."""
    if name != "external":
        return name not in FIXTURE_MODELS or not FIXTURE_MODELS[name].has_side_layers
    try:
        return read_model(Path(str(EXTERNAL_MODEL))).hparams.has_two_phases
    except UnsupportedModel:
        return True


def is_possible(values: Iterable[Any]) -> bool:
    """Whether a case of these values, or names of values, can be run."""
    names = [value for value in values if isinstance(value, str)]
    return not any("two_phase" in name for name in names) or all(
        has_two_phases(name) for name in names if name in MODELS
    )


def all_pairs(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """Choices of a value for each axis, in which every two values of different axes meet that can."""
    choices = [list(axis) for axis in axes.values()]
    found = AllPairs(choices, filter_func=is_possible) if len(choices) > 2 else product(*choices)
    return [dict(zip(axes, values, strict=True)) for values in found]


def in_turn(config: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrise a test by the fixtures `model_path` and `config`: each of these names with two models, in turn."""
    cases = []
    for i, name in enumerate(config):
        models = [model for model in (*SHAPES[i % len(SHAPES) :], *SHAPES) if is_possible([model, name])]
        cases += [(models[0], name), (models[2], name)]
    return pytest.mark.parametrize(("model_path", "config"), cases, indirect=True)


def pairwise(*fixtures: str, **axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrise a test by fixtures of the table above, with all their values, and by axes with these values."""
    axes = {name: FIXTURES[name] for name in fixtures} | axes
    cases = [tuple(choice.values()) for choice in all_pairs(**axes)]
    ids = ["-".join(map(str, case)) for case in cases]
    return pytest.mark.parametrize(list(axes), cases, ids=ids, indirect=[name for name in axes if name in FIXTURES])
