"""Adapters and RoPE options with H2O: P1 and P2, forks, snapshots, rewinding, eviction, several sequences."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters import random_adapter
from changes import CHANGES, KINDS, LORA
from check_architecture import OPEN, Checks, random_text, read
from compare import relative_error
from h2o_llama import Llama
from inputs import ModelByName


@pytest.mark.parametrize("model", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_what_holds_for_a_model_holds_for_a_changed_one(
    change: str, model: str, model_by_name: ModelByName, tmp_path: Path
) -> None:
    """All that tests/check_architecture.py checks, against dense attention with the same change, which matters."""
    path = model_by_name(model)
    arguments: dict[str, Any] = dict(CHANGES[change])
    if change == LORA:
        arguments["lora"] = [(random_adapter(path).write(tmp_path / "adapter.gguf"), 0.7)]
    dense: dict[str, Any] = {"h2o": None, "flash_attn": "off", **OPEN}
    with warnings.catch_warnings(), Llama(path, **dense, **arguments) as changed:
        warnings.simplefilter("ignore")  # memory sets that hold everything cost more than they save
        with Llama(path, **dense) as plain:
            logits = read(plain, random_text(plain.n_vocab, 0))
        checks = Checks(changed)
        checks.run()
    assert checks.failed == {}
    assert len(checks.errors) > 15
    assert relative_error(logits, checks.dense) > 0.05
    assert np.isfinite(checks.dense).all()
