"""LoRA adapters: against the oracle with the adapter merged into the weights; refusals."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from adapters import Adapter, random_adapter
from cases import SMALL, Case
from compare import assert_logits_close, case, relative_error
from gguf_mutation import UINT32, mutated, pack
from h2o_llama import DamagedFileError, H2OConfig, Llama, Model
from h2o_llama.models._quantize import quantize_model
from inputs import ModelByName, random_tokens
from llamas import assert_agrees_with_oracle, eval_calls, open_llama
from oracle import read_model
from tolerances import tolerance

S = 16
CONFIG = SMALL.but(decode="memory")


@pytest.fixture(scope="session")
def adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random one."""
    return random_adapter(tiny_model).write(tmp_path_factory.mktemp("adapters") / "f32.gguf")


# --- what an adapter computes


def test_an_adapter_is_what_it_adds_to_the_weights(tiny_model: Path, schedule: str, tmp_path: Path) -> None:
    """Logits, memory sets, scores, K and V, of a prompt in two calls and generated tokens; two adapters, one of the
    embedding too. In every kind of model: test_architectures.py."""
    merged, lora = tiny_model, []
    for seed, scale in enumerate((0.7, -0.4)):
        adapter = random_adapter(tiny_model, rank=4 + seed, seed=seed, embedding=seed == 0)
        lora.append((adapter.write(tmp_path / f"{seed}.gguf"), scale))
        if seed == 0:
            # merge_into() adds B·A as [n_out, n_in], here [n_vocab, n_embd]
            a, b = adapter.factors["token_embd.weight"]
            adapter.factors["token_embd.weight"] = b.T, a
        merged = adapter.merge_into(merged, tmp_path / f"merged-{seed}.gguf", scale)
    tokens = random_tokens(90)
    calls = [tokens[:50], tokens[50:85], *([t] for t in tokens[85:])]
    assert_agrees_with_oracle(tiny_model, read_model(merged), CONFIG.but(schedule=schedule), calls, lora=lora)


@pytest.mark.parametrize("name", ["llama-gqa2-q8_0", "deepseek2-mla-q8_0"])
def test_adapters_with_our_own_products(name: str, model_by_name: ModelByName, tmp_path: Path) -> None:
    """Dense layers and experts: as with weights of 32 bits but for rounding, which the adapter is far above.

    Not as with upstream's products: its AMX kernel adds to unwritten sums where weights have rows of 32 numbers.
    """
    if name == "deepseek2-mla-q8_0":
        path = tmp_path / "model.gguf"
        models.write_model(replace(models.DEEPSEEK2, weight_type="q8_0"), path)
    else:
        path = model_by_name(name)
    lora = random_adapter(path).write(tmp_path / "adapter.gguf")
    tokens = random_tokens(70)

    exact = tmp_path / "exact.gguf"
    quantize_model(path, exact, "F32")

    def logits(config: Case | None, path: Path = path, **options: Any) -> Any:
        with open_llama(path, config, matmul_kernels="own", **options) as llm:
            return eval_calls(llm, [tokens])[0]

    everything = CONFIG.but(heavy_budget=128)
    with pytest.warns(UserWarning, match="costs more than it saves"):
        own = logits(everything, lora=lora)
    bound = tolerance("Q8_0", "f32").logits
    assert_logits_close(own, logits(None, lora=lora), bound)
    assert_logits_close(own, logits(None, exact, lora=lora), bound)
    assert relative_error(logits(None), logits(None, lora=lora)) > 4 * bound


# --- snapshots and sequences


def test_sequences_and_contexts_share_adapters(tiny_model: Path, adapter: Path) -> None:
    """Of one context, and of two on the same weights. They outlive the `Model`."""
    with Model(tiny_model, lora=adapter) as model:
        first = Llama(model, n_ctx=64, n_threads=1, n_seq_max=2, h2o=H2OConfig(chunk_size=S))
        second = Llama(model, n_ctx=64, n_threads=1, h2o=H2OConfig(chunk_size=S))
    with first, second, Llama(tiny_model, n_ctx=64, n_threads=1, h2o=H2OConfig(chunk_size=S)) as plain:
        sequences = [first, first.sequence(), second]
        for sequence in (*sequences, plain):
            sequence.eval(random_tokens(40))
        for sequence in sequences:
            np.testing.assert_array_equal(sequence.logits, first.logits)
        assert relative_error(plain.logits, first.logits) > 0.05


# --- refusals


def _without(part: str) -> Callable[[Adapter], None]:
    def change(adapter: Adapter) -> None:
        (name, _), *_ = adapter.factors.items()
        a, b = adapter.factors[name]
        adapter.factors[name] = {
            "rank": (a[:-1], b),
            "n_in": (a[:, :-1], b),
            "experts": (np.stack([a, a]), np.stack([b, b])),
            "type": (a.astype(np.int32), b),
        }[part]

    return change


def _renamed(adapter: Adapter) -> None:
    adapter.factors["blk.77.attn_q.weight"] = adapter.factors.pop("blk.0.attn_q.weight")


BAD: dict[str, tuple[Callable[[Adapter], None], dict[str, str], str]] = {
    **{part: (_without(part), {}, "incorrect shape") for part in ("n_in", "experts")},
    "rank": (_without("rank"), {}, "lora_a tensor is not transposed"),
    "type of a factor": (_without("type"), {}, "must not have the type i32"),
    "no such tensor": (_renamed, {}, "the model has no tensor 'blk.77.attn_q.weight'"),
    "no tensors": (lambda adapter: adapter.factors.clear(), {}, "no tensors"),
    "architecture": (lambda _: None, {"architecture": "llama"}, "model arch and LoRA arch mismatch"),
    "a model": (lambda _: None, {"type": "model"}, "general.type to be 'adapter', but got: model"),
    "an activated one": (lambda _: None, {"tokens": "abc"}, "activated one .*h2o-llama serve"),
    "another kind": (lambda _: None, {"kind": "dora"}, "adapter.type to be 'lora', but got: dora"),
}


def test_what_does_not_fit_is_refused(tiny_model: Path, adapter: Path, tmp_path: Path) -> None:
    bad, cut, wrong_type = (tmp_path / name for name in ("bad.gguf", "cut.gguf", "type.gguf"))
    for name, (change, metadata, message) in BAD.items():
        changed = random_adapter(tiny_model)
        change(changed)
        changed.write(bad, **metadata)
        said = f"bad.gguf is no LoRA adapter of this model: .*{message}"
        with case(name=name), pytest.raises(DamagedFileError, match=said):
            Model(tiny_model, lora=bad)
    cut.write_bytes(adapter.read_bytes()[:-1000])
    mutated(adapter, wrong_type, lambda file: file.set("adapter.lora.alpha", UINT32, pack("I", 1)))
    for path, message in ((cut, "cut.gguf is no"), (wrong_type, "type"), (tiny_model, "general.type")):
        with pytest.raises(DamagedFileError, match=message):
            Model(tiny_model, lora=path)
    with pytest.raises(FileNotFoundError, match="lora: there is no file"):
        Model(tiny_model, lora=tmp_path / "none.gguf")
    with pytest.raises(ValueError, match="is a folder"):
        Model(tiny_model, lora=tmp_path)


def test_an_embedding_that_is_the_output_too_cannot_be_changed(model_by_name: ModelByName, tmp_path: Path) -> None:
    """llama.cpp would end the process."""
    path = model_by_name("gemma3-windows-f32")
    adapter = random_adapter(path, embedding=True).write(tmp_path / "adapter.gguf")
    with pytest.raises(DamagedFileError, match="the model's output too"):
        Model(path, lora=adapter)


def test_arguments_that_name_no_adapter_are_refused(tiny_model: Path, adapter: Path) -> None:
    named: list[tuple[Any, str]] = [
        *(([(adapter, scale)], "the scale of .*f32.gguf must be a finite") for scale in (np.nan, 1e39, "1", True)),
        *((lora, "lora must be a file, or a list of") for lora in (5, [5], [("a", 1, 2)])),
    ]
    for lora, match in named:
        with case(lora=lora), pytest.raises(ValueError, match=rf"^\[Llama\] {match}"):
            Llama(tiny_model, lora=lora)
