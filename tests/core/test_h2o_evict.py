"""Eviction and the cold store: memory, a full disk, positions of the cache, statistics, refusals.

What eviction computes: test_h2o_oracle.py, test_h2o_past.py, test_cold_codec.py.
"""

import math
import re
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h2o_llama
import models
from cases import BLOCKS, CACHE_POSITIONS, COLD, EVICT, INDEX, SMALL, Case, S
from compare import assert_all_equal, case, relative_error
from full_disk import file_size_limit
from h2o_llama import H2OConfig, H2OError, Llama, UnsupportedModelError, demo_model_path
from h2o_llama._internal.apart import call_apart, resident_bytes
from inputs import ModelByName, random_tokens
from llamas import arrays, open_llama
from oracle import layers, read_model

TRAINED = 50  # CACHE_POSITIONS
REACH = TRAINED - S  # of a chunk: keys that are further away count as that far


def test_rows_that_come_back_take_memory_as_they_are_chosen(
    tiny_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A device gets those alone, not the text's."""
    sizes = []
    for n_ctx in (4000, 64_000):
        with open_llama(tiny_model, COLD.but(tile=S), n_ctx=n_ctx, n_batch=S, verbose=True):
            sizes.append(sum(map(float, re.findall(r"compute buffer size = +([\d.]+) MiB", capfd.readouterr().err))))
    assert sizes[1] - sizes[0] < 1


def given_back_by_a_sequence(n_chunk: int) -> list[float]:
    """Resident bytes that are freed when the chunk after a complete one begins, and when the sequence is reset.

    Over the K and V of a chunk. The most of some rounds: what else the process does takes memory now and then.
    """
    h2o = H2OConfig(chunk_size=n_chunk, evict=True)
    rounds = []
    with Llama(demo_model_path(), n_ctx=2 * n_chunk, n_batch=n_chunk, h2o=h2o) as llm:
        of_chunk = llm.kv.stats.token_bytes * n_chunk
        for _ in range(4):
            resident = []
            for step in (lambda: llm.eval([65] * n_chunk), lambda: llm.eval([65]), llm.reset):
                step()
                resident.append(resident_bytes() or 0)
            rounds.append([(resident[0] - later) / of_chunk for later in resident[1:]])
    return [max(shares) for shares in zip(*rounds, strict=True)]


@pytest.mark.skipif(sys.platform != "linux", reason="only there is memory of unused rows given back")
def test_rows_take_memory_while_something_is_in_them() -> None:
    begun, empty = call_apart("test", given_back_by_a_sequence, 2048)
    assert begun > 0.5
    assert empty > 0.75


# --- the cold store's file


def test_a_full_disk_is_told_and_changes_nothing(tiny_model: Path, tmp_path: Path) -> None:
    """A call that fails, and one after it, when there is room again."""
    config = COLD.but(cold_store=str(tmp_path))
    tokens = [token % 20 for token in random_tokens(150, seed=2)]
    with open_llama(tiny_model, config) as llm, open_llama(tiny_model, config) as fresh:
        for x in (llm, fresh):
            x.eval(tokens[:40])
        before = arrays(llm)
        with file_size_limit(20_000), pytest.raises(H2OError, match="cannot write .* cold store: File too large"):
            llm.eval(tokens[40:])
        assert_all_equal(arrays(llm), before)
        for x in (llm, fresh):
            x.eval(tokens[40:])
        np.testing.assert_array_equal(llm.logits, fresh.logits)


# --- positions="cache": no key counts as further away than what the model was trained for


@pytest.mark.parametrize(("kv_type", "bound"), [("f16", 1.2e-3), ("q8_0", 1.2e-2)])
def test_errors_do_not_add_up(one_layer_model: Path, kv_type: str, bound: float) -> None:
    """Keys that have moved a hundred times are as exact as two roundings, when written and when moved, leave them."""
    model = read_model(one_layer_model)
    tokens = random_tokens(120 * S + 3)
    with open_llama(one_layer_model, CACHE_POSITIONS.but(sink_tokens=0, kv_type=kv_type), n_ctx=0, n_batch=256) as llm:
        llm.eval(tokens)
        memory, keys = llm.kv.memory_indices(0), llm.kv.keys(0)
    assert memory.min() < 20 * S
    x = model.tok_embd.rows(np.array(tokens), np.float64)
    unrotated, _ = layers.key_value(model, 0, x, np.zeros(len(tokens), np.int32))
    for head, positions in enumerate(memory):
        places = np.maximum(positions - (120 * S - REACH), 0).astype(np.int32)
        expected = model.hparams.rope[0](unrotated[head, positions, None], places)
        assert relative_error(keys[head, positions], expected[:, 0]) < bound


def test_it_is_the_default_where_it_can_be(model_by_name: ModelByName) -> None:
    options: dict[str, Any] = {"h2o": H2OConfig(chunk_size=S, evict=True), "n_threads": 1, "n_batch": 64, "n_ctx": 64}
    for model, want in (("qwen3-gqa4-f32", "cache"), ("deepseek2-mla-f32", "text")):
        with Llama(model_by_name(model), **options) as llm:
            assert llm.h2o is not None
            assert llm.h2o.positions == want


def test_a_text_never_ends(tiny_model: Path) -> None:
    """Prompts and generated tokens, far beyond the trained length: as long as asked for, without a warning."""
    with open_llama(tiny_model, CACHE_POSITIONS, n_ctx=0, n_batch=256) as llm:
        n_bytes = llm.kv.stats.kv_bytes
        llm.eval([token % 20 for token in random_tokens(20 * TRAINED)])
        assert len(list(islice(llm.generate([], temperature=0, logit_bias={models.EOS: -100}), 5 * TRAINED))) > 0
        assert llm.n_tokens == 25 * TRAINED
        assert llm.kv.stats.kv_bytes == n_bytes


# --- memory sets that grow with the text


def test_statistics_of_a_memory_set_that_is_a_part_of_the_text(tiny_model: Path) -> None:
    """It grows by the chunk, in whole blocks; sinks and local window are 8 tokens, whatever the ratio asks for."""
    ratio, n_ctx = 3.2, 160
    config = BLOCKS.but(lookup_budget=0, decode="memory", evict=True, heavy_budget=1000, keep_ratio=1 / ratio)
    with open_llama(tiny_model, config, n_ctx=n_ctx) as llm:
        before = 0
        for end in range(S, n_ctx + 1, S):
            llm.eval(random_tokens(S, seed=end))
            closed, stats = end - S, llm.kv.stats
            kept = min(max(8, math.ceil(closed / ratio / 4) * 4), closed)
            assert (stats.n_tokens, stats.closed_tokens, stats.kept_tokens) == (end, closed, kept)
            assert stats.evicted_tokens == before + stats.last_evicted_tokens == closed - kept
            assert stats.lossy_ratio == (pytest.approx(closed / kept) if closed else 1)
            assert not closed or (stats.floor_tokens, stats.target_tokens) == (8, pytest.approx(closed / ratio))
            before = stats.evicted_tokens
        assert stats.n_tokens * stats.token_bytes / stats.kv_bytes == pytest.approx(n_ctx / (llm.kv.memory_size + S))
        llm.reset()
        assert (llm.kv.stats.lossy_ratio, llm.kv.stats.evicted_tokens) == (1, 0)


# --- bytes and refusals


def test_bytes_held(model_by_name: ModelByName) -> None:
    """Of 2 layers: 4.5 bits for each number of a key, 1,024 positions, 2 KV heads of 64; what rotates blocks too."""
    for config in (INDEX, INDEX.but(lookup_budget=0)):
        with open_llama(model_by_name("llama-gqa2-f32"), config) as llm:
            stats = llm.kv.stats
            index_bytes = 2 * (1024 * 2 * 64 * 18 // 32 + 32 * 32 * 4) if config is INDEX else 0
            assert 0 <= stats.index_bytes - index_bytes < 256
            with llm._state.used() as context:
                assert context.kv_bytes == stats.kv_bytes + stats.index_bytes


def test_heads_that_an_index_cannot_have(tmp_path: Path) -> None:
    path = tmp_path / "heads-of-16.gguf"
    models.write_model(models.ModelSpec("heads-of-16", "qwen3", 64, 16, (4, 4), (2, 2)), path)
    said = "heads whose size is a multiple of 32, but layer 0 has heads of 16: use lookup_budget 0"
    with pytest.warns(h2o_llama.H2OWarning, match=said), Llama(path, n_ctx=64, h2o=H2OConfig(preset="fast")) as llm:
        assert (llm.h2o.lookup_budget, llm.h2o.heavy_budget) == (0, 192)


def test_a_budget_that_no_memory_could_hold(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h2o_llama._internal.machine.physical_memory", lambda: 2**24)
    h2o = H2OConfig(lookup_budget=2**31 - 1, research={"tile": 1})
    with pytest.raises(ValueError, match=r"lookup_budget=2147483647 needs about .* for what every tile retrieves"):
        Llama(tiny_model, n_ctx=4096, h2o=h2o)


HUGE = 2**31 - 1
PLAIN, LATENTS, WINDOWS, RECURRENT = "qwen3-gqa4-f32", "deepseek2-mla-f32", "gemma3-windows-f32", "lfm2-conv-f32"
NEEDED = CACHE_POSITIONS.h2o.memory_size + S - 1
REFUSED: list[tuple[str, Case, dict[str, Any], str]] = [
    (
        PLAIN,
        EVICT.but(dense_layers=(0,)),
        {"n_ctx": HUGE, "n_batch": 64},
        rf"n_ctx={HUGE} needs .* GiB for the KV cache",
    ),
    (PLAIN, COLD.but(cold_store="/none"), {}, "cannot make a file in /none.*No such file"),
    (PLAIN, COLD.but(cold_store=__file__), {}, "cannot make a file in .*Not a directory"),
    (PLAIN, COLD.but(flash_attn="off", lookup_budget=0), {}, "a cold store needs attention as one operator"),
    (PLAIN, SMALL.but(dense_layers=(0, 1, 2)), {}, "no layer is left for H2O"),
    (PLAIN, SMALL.but(dense_layers=(0, 99)), {}, "dense_layers must be layers of this model, from 0 to 2, got 99"),
    (PLAIN, CACHE_POSITIONS.but(n_ctx_train=NEEDED), {}, f"at most the {NEEDED} tokens which this model"),
    (LATENTS, CACHE_POSITIONS, {}, "in layer 0 of this model it rotates a part.* Use positions text"),
    (LATENTS, COLD, {}, r"has multi-head latent attention \(MLA\), which keeps one row for both"),
    (WINDOWS, SMALL.but(schedule="two_phase"), {}, r"computes each token twice.*has such layers\. Use single_pass"),
    (RECURRENT, SMALL.but(schedule="two_phase"), {}, r"computes each token twice.*has such layers\. Use single_pass"),
]


def test_what_cannot_be_is_refused(model_by_name: ModelByName) -> None:
    for model, config, options, message in REFUSED:
        with case(config=config, message=message), pytest.raises((ValueError, H2OError), match=message) as caught:
            open_llama(model_by_name(model), config, **options)
        if "Use positions" in message:
            assert isinstance(caught.value, UnsupportedModelError)
            assert caught.value.option == "positions"
    with (
        open_llama(model_by_name(PLAIN), SMALL.but(dense_layers=(0,))) as llm,
        pytest.raises(ValueError, match="layer"),
    ):
        llm.kv.memory_indices(0)
