"""Layers that attend to everything, between others that have memory sets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compare import case
from h2o_llama import H2OConfig, H2OError
from llamas import Config, open_llama

CONFIG = Config(S=16, L=4, H=6, A=1, B=6, T=4, scorer="distant")


def test_a_number_means_the_first_layers() -> None:
    assert H2OConfig(dense_layers=3) == H2OConfig(dense_layers=[2, 0, 1, 0])
    assert H2OConfig(dense_layers=0) == H2OConfig()


def test_bad_values(tiny_model: Path, one_layer_model: Path) -> None:
    with pytest.raises(H2OError, match="no layer is left for H2O"):
        open_llama(one_layer_model, replace(CONFIG, dense_layers=(0,)))
    for value in [-1, 513, 1.0, True, "0", [512], [-1], [0, 1.5], [[0]], None]:
        with case(value=value), pytest.raises(ValueError, match=r"^\[H2OConfig\] dense_layers must be an integer"):
            H2OConfig(dense_layers=value)
    with pytest.raises(ValueError, match="dense_layers need schedule single_pass"):
        H2OConfig(dense_layers=1, schedule="two_phase")
    with pytest.raises(ValueError, match="dense_layers must be layers of this model, from 0 to 2, got 99"):
        open_llama(tiny_model, replace(CONFIG, dense_layers=(0, 99)))
    with open_llama(tiny_model, replace(CONFIG, dense_layers=(0,))) as llm, pytest.raises(ValueError, match="layer"):
        llm.kv.memory_indices(0)
