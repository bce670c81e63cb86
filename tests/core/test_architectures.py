"""What docs/compatibility.md says of architectures, adapters and RoPE options.

H2O works with each architecture of upstream's generator of tiny models, or says why not.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from adapters import random_adapter
from check_architecture import DEFAULTS, OPEN, Checks, generate, read
from compare import case, relative_error
from h2o_llama import H2OConfig, H2OError, Llama, UnsupportedModelError
from inputs import ModelByName, slowly

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "compatibility.md").read_text(encoding="utf-8")


def names_in(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


_, ARCHITECTURES = PAGE.split("## Architectures\n")
(ACCEPTED,) = (names_in(line) for line in ARCHITECTURES.splitlines() if line.startswith("H2O works with "))
# What the error says, in the order of the page's reasons.
REFUSALS = (
    "has a sparse attention of its own",
    "is recurrent in every layer",
    "attends to the whole text",
    "uses ALiBi position biases",
    "keeps no K and V",
)
ROWS = [line for line in ARCHITECTURES.splitlines() if line.startswith("|")][2:]
REFUSAL_OF = {name: why for why, row in zip(REFUSALS, ROWS, strict=True) for name in names_in(row)}

LORA = "LoRA adapters"
# Arguments of `Model`; an adapter is made of the model. The tests' texts are longer than yarn_orig_ctx.
CHANGES: dict[str, dict[str, Any]] = {
    LORA: {},
    "RoPE scaled linearly": {"rope_scaling_type": "linear", "rope_freq_scale": 0.25, "rope_freq_base": 5000.0},
    "YaRN": {"rope_scaling_type": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 64, "yarn_beta_fast": 8.0},
}


KINDS = ["qwen3-gqa4-f32", *slowly("gemma3-windows-f32", "lfm2-conv-f32", "deepseek2-mla-f32")]


def lower_cap(path: Path) -> None:
    """The cap of attention logits, where there is one, from 30 or 50 to what these models reach."""
    reader = GGUFReader(path, "r+")
    for name, field in reader.fields.items():
        if name.endswith(".attn_logit_softcapping"):
            field.parts[field.data[0]][0] = 0.05
    reader.data.flush()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # memory sets that hold everything cost more than they save
@pytest.mark.parametrize("architecture", [*ACCEPTED, *REFUSAL_OF])
def test_architecture(architecture: str, generator: Path, tmp_path: Path) -> None:
    """With experts, without, or both. After a crash pytest-xdist runs the other architectures."""
    paths = generate(generator, tmp_path, "-a", architecture)
    assert paths
    for path in paths:
        lower_cap(path)
        if architecture in REFUSAL_OF:
            with pytest.raises(UnsupportedModelError, match=REFUSAL_OF[architecture]):
                Llama(path, h2o=DEFAULTS, **OPEN)
        else:
            with Llama(path, h2o=None, flash_attn="off", **OPEN) as dense, case(path=path.name):
                checks = Checks(dense)
                checks.run()
                assert checks.failed == {}
        path.unlink()  # all together are 0.9 GB


HYBRID = ("falcon-h1", "granitehybrid", "jamba", "kimi-linear", "nemotron_h", "qwen35", "qwen35moe", "qwen3next")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", HYBRID)
def test_a_stopped_step_of_some_sequences_leaves_others(architecture: str, generator: Path, tmp_path: Path) -> None:
    for path in generate(generator, tmp_path, "-a", architecture):
        subprocess.run([generator.with_name("test-h2o"), path], check=True)


@pytest.mark.slow
def test_no_architecture_is_left_out(generator: Path, tmp_path: Path) -> None:
    paths = generate(generator, tmp_path)
    for path in paths:
        path.unlink()
    assert {path.stem.rpartition("-")[0] for path in paths} == {*ACCEPTED, *REFUSAL_OF}


def test_learned_positions_are_the_most_that_a_text_has(generator: Path, tmp_path: Path) -> None:
    """GPT-2 has a row of a table for each position: nothing behind it is read, also with eviction."""
    (path,) = generate(generator, tmp_path, "-a", "gpt2")
    with Llama(path, n_threads=1, h2o=H2OConfig(chunk_size=32, evict=True)) as llm:
        assert llm.n_ctx == 256
        llm.eval([1] * 250)
        with pytest.raises(ValueError, match=r"7 tokens after 250 do not fit into n_ctx=256"):
            llm.eval([1] * 7)
        llm._state.engine.n_ctx, llm._state.engine.warns_of_length = 1000, False  # as programs that know nothing of it
        with pytest.raises(H2OError, match="has learned 256 positions and has no others: make the text shorter"):
            llm.eval([1] * 7)
        llm.eval([1] * 6)
    for h2o in (None, H2OConfig(chunk_size=32)):
        with pytest.raises(ValueError, match="n_ctx=257, but this model has learned 256 positions"):
            Llama(path, n_ctx=257, n_threads=1, h2o=h2o)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_what_holds_for_a_model_holds_for_a_changed_one(
    change: str, model: str, model_by_name: ModelByName, tmp_path: Path
) -> None:
    """All that check_architecture.py checks, against dense attention with the same change, which matters."""
    path = model_by_name(model)
    arguments: dict[str, Any] = dict(CHANGES[change])
    if change == LORA:
        arguments["lora"] = [(random_adapter(path).write(tmp_path / "adapter.gguf"), 0.7)]
    dense: dict[str, Any] = {"h2o": None, "flash_attn": "off", **OPEN}
    with Llama(path, **dense, **arguments) as changed:
        checks = Checks(changed, arguments)
        checks.run()
        with Llama(path, **dense) as plain:
            logits = read(plain, checks.text)
    assert checks.failed == {}
    assert len(checks.errors) > 15
    assert relative_error(logits, checks.dense) > 0.05
    assert np.isfinite(checks.dense).all()
