"""retrieval="index": for every layer and KV head, a tile of queries chooses positions by their keys in 4 bits.

The oracle and the library, or the library on another path, may choose differently where two scores are nearly equal: a
difference of 1e-7 can be a step of a rounded query or key. With a model of one layer that changes the logits of one
tile; `assert_most_logits_close` lets few rows differ. With more layers all that comes after may change: these tests
have texts on which nothing was found to differ, or a budget that takes everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from compare import assert_all_equal, assert_logits_close
from h2o_llama import H2OConfig, H2OError, Llama, LosslessConfig
from h2o_llama import Sequence as TextSequence
from inputs import ModelByName, random_tokens, repetitive_tokens, split
from llamas import (
    Config,
    assert_agrees_with_oracle,
    decode_calls,
    eval_calls,
    open_llama,
    oracle_calls,
    restore,
    state_of,
    view,
)
from oracle import DenseOracle, read_model
from tolerances import SELF_LOGITS_F32

S, T = 16, 4
CONFIG = Config(S=S, L=4, H=6, A=1, B=8, T=T, retrieval="index")
COLD: dict[str, Any] = {"decode": "memory", "evict": True, "cold_store": "memory"}
# More than any text here has positions.
EVERYTHING = 300


def assert_most_logits_close(actual: Any, expected: Any, bound: float) -> None:
    """All rows but one tile's in 100, for near ties."""
    errors = np.abs(actual - expected).max(axis=1) / np.abs(expected).max()
    assert np.isfinite(actual).all()
    assert np.sum(errors > bound) <= T * len(errors) // 100, f"rows {np.flatnonzero(errors > bound)} differ"


# --- they exist and matter


def test_the_last_chunk_may_have_less_room(tiny_model: Path) -> None:
    """Graphs are reserved for the end of the text, where a dense layer reads all there is: not what would be behind."""
    config = replace(CONFIG, S=160, dense_layers=(1,))
    tokens = random_tokens(250)
    with open_llama(tiny_model, config, n_ctx=256, n_batch=256) as llm, open_llama(tiny_model, config) as larger:
        np.testing.assert_array_equal(*(eval_calls(x, [tokens])[0] for x in (llm, larger)))


def test_a_budget_of_zero_is_off(tiny_model: Path) -> None:
    calls = split(random_tokens(90), [40, 1, 49])
    results = []
    for config in (replace(CONFIG, B=0), replace(CONFIG, B=0, retrieval="ngrams")):
        with open_llama(tiny_model, config) as llm:
            results.append([*eval_calls(llm, calls), *view(llm, history=False)])
            assert llm.kv.stats.index_bytes == 0
    assert_all_equal(results[0], results[1])


# --- P2: where everything is seen


@pytest.mark.parametrize(("H", "B"), [(6, EVERYTHING), (EVERYTHING, 8), (1, 10_000)])
@pytest.mark.parametrize("kv_type", ["f32", "q8_0"])
def test_p2_everything_is_dense(model_by_name: ModelByName, H: int, B: int, kv_type: str) -> None:
    """Retrieved, or in the memory sets. Prompts and generated tokens."""
    for name in ("qwen3-gqa4-f32", "qwen3-gqa8-q8_0", "deci-mixed-f32"):
        path = model_by_name(name)
        model = read_model(path)
        config = replace(CONFIG, H=H, B=B, decode="memory", kv_type=kv_type)
        tokens = random_tokens(100, seed=1)
        expected = DenseOracle(model, kv_type).logits(np.array(tokens))
        with open_llama(path, config) as llm:
            actual = np.concatenate(eval_calls(llm, split(tokens, [25, 1, 34, *[1] * 40])))
        assert_logits_close(actual, expected, config.tolerance(model).logits)


# --- P5: the oracle

# And how many tokens at the end of each call are dense.
CONFIGS = {
    "plain": (CONFIG, 0),
    "generated": (replace(CONFIG, decode="memory"), 5),
    "two_phase": (replace(CONFIG, schedule="two_phase", decode="memory"), 5),
    "f16 cache": (replace(CONFIG, scorer="distant", kv_type="f16", decode="memory"), 0),
    "rotated cache": (replace(CONFIG, kv_type="q8_0"), 5),
    "queries alone": (replace(CONFIG, B=1, T=1), 0),
    "whole chunks": (replace(CONFIG, T=S, decode="memory"), 0),
    "tiles that are cut": (replace(CONFIG, T=7, decode="memory"), 0),
    # The first chunks have fewer positions than that, the later ones more.
    "large budget": (replace(CONFIG, B=60), 5),
    "large memory": (replace(CONFIG, H=40, B=4, decode="memory"), 0),
    "cold store": (replace(CONFIG, **COLD), 0),
    "no heavy hitters": (replace(CONFIG, L=S, H=0), 5),
    "only a window": (replace(CONFIG, L=S, H=0, A=0), 0),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_p5_one_layer(one_layer_model: Path, name: str) -> None:
    check_one_layer(one_layer_model, *CONFIGS[name])


@pytest.mark.parametrize("head_dim", [32, 96])
def test_p5_quantized_keys_that_the_cache_does_not_rotate(head_dim: int, tmp_path: Path) -> None:
    """llama.cpp rotates heads of multiples of 64 only. The index rotates the others itself."""
    path = tmp_path / "model.gguf"
    models.write_model(replace(models.ONE_LAYER, head_dim=head_dim), path)
    check_one_layer(path, *CONFIGS["rotated cache"])


def check_one_layer(path: Path, config: Config, dense_tail: int) -> None:
    model = read_model(path)
    calls = split(random_tokens(140, seed=2), [42, 1, 27, 1, 1, 4, 3, 21, *[1] * 40])
    with open_llama(path, config) as llm:
        actual = np.concatenate(eval_calls(llm, calls, dense_tail))
        oracle = config.oracle(model, choose_memory=lambda chunk, il, *_: llm.kv.history[chunk][il])
        expected = np.concatenate(oracle_calls(oracle, calls, dense_tail))
    assert_most_logits_close(actual, expected, config.tolerance(model, calls).logits)


def test_p5_generated_together(one_layer_model: Path) -> None:
    """Tiles begin with the call, or with a chunk."""
    config = replace(CONFIG, decode="memory")
    prompt, *calls = split(random_tokens(100, seed=9), [50, 3, 6, 1, 25, 15])
    with open_llama(one_layer_model, config) as llm:
        llm.eval(prompt)
        actual = decode_calls(llm, calls)
        oracle = config.oracle(read_model(one_layer_model), choose_memory=lambda i, il, *_: llm.kv.history[i][il])
        oracle.eval(prompt)
        expected = []
        for call in calls:
            oracle.decode_step(*call)
            expected.append(oracle.logits)
    assert_most_logits_close(actual, np.concatenate(expected), config.tolerance(oracle.model).logits)


@pytest.mark.parametrize(
    ("model_name", "schedule"),
    [("qwen3-gqa4-f32", "single_pass"), ("llama-gqa2-f32", "two_phase"), ("deci-mixed-f32", "single_pass")],
)
def test_p5_every_layer(model_by_name: ModelByName, model_name: str, schedule: str) -> None:
    path = model_by_name(model_name)
    config = replace(CONFIG, schedule=schedule, decode="memory")
    calls = split(random_tokens(90, seed=3), [42, 1, 27, 1, 1, 4, 14])
    assert_agrees_with_oracle(path, read_model(path), config, calls)


@pytest.mark.parametrize(("window", "B"), [(0, 8), (models.GEMMA3.window, EVERYTHING)])
def test_p5_gemma(window: int, B: int, tmp_path: Path) -> None:
    """Windows round to F16, 3e-4 of the logits, which decides between keys in 4 bits: without them nothing differs."""
    spec = replace(models.GEMMA3, n_head=(4, 4), n_head_kv=(1, 1), window=window)
    models.write_model(spec, path := tmp_path / "model.gguf")
    calls = split(random_tokens(150), [70, 75, *[1] * 5])
    assert_agrees_with_oracle(path, read_model(path), replace(CONFIG, B=B), calls, dense_tail=9)


def test_p5_dense_layers(model_by_name: ModelByName) -> None:
    """They keep no index."""
    path = model_by_name("llama-gqa2-f32")
    config = replace(CONFIG, dense_layers=(0,), decode="memory")
    calls = split(random_tokens(90, seed=4), [60, *[1] * 10, 20])
    assert_agrees_with_oracle(path, read_model(path), config, calls)
    with open_llama(path, config) as one, open_llama(path, replace(config, dense_layers=())) as both:
        assert 2 * one.kv.stats.index_bytes == both.kv.stats.index_bytes


# --- P3: splits


@pytest.mark.parametrize("schedule", ["single_pass", "two_phase"])
def test_p3_splits_on_the_grid(one_layer_model: Path, schedule: str) -> None:
    """Tile by tile too, and of prompts longer than n_batch."""
    config = replace(CONFIG, schedule=schedule)
    tokens = random_tokens(150, seed=5)
    with open_llama(one_layer_model, config) as whole, open_llama(one_layer_model, config, n_batch=S + T) as parts:
        (expected,) = eval_calls(whole, [tokens])
        for sizes in ([150], [*[T] * 37, 2], [20, 4, 8, S, 52, 50]):
            parts.reset()
            actual = np.concatenate(eval_calls(parts, split(tokens, sizes), decode=False))
            assert_most_logits_close(actual, expected, SELF_LOGITS_F32)


def rms(x: Any) -> float:
    return float(np.sqrt(np.mean(x * x)))


@pytest.mark.parametrize("schedule", ["single_pass", "two_phase"])
def test_p3_other_splits(one_layer_model: Path, schedule: str) -> None:
    """Only tiles that a call ends within choose otherwise. They are as near to dense attention, and to each other."""
    config = replace(CONFIG, H=0, schedule=schedule)
    tokens = random_tokens(150, seed=6)
    dense = DenseOracle(read_model(one_layer_model), "f32").logits(np.array(tokens))
    with open_llama(one_layer_model, config) as llm:
        (whole,) = eval_calls(llm, [tokens])
        for sizes in ([150], [22, 6, 2, 19, 48, 3, 50], [3] * 50, [1] * 150):
            llm.reset()
            actual = np.concatenate(eval_calls(llm, split(tokens, sizes), decode=False))
            cuts = np.cumsum(sizes)[:-1]
            cut_tiles = cuts[cuts % T > 0] // T
            same = ~np.isin(np.arange(150) // T, cut_tiles)
            assert_most_logits_close(np.where(same[:, None], actual, whole), whole, SELF_LOGITS_F32)
            assert (np.abs(actual - whole).max() > 0.1) == (len(cut_tiles) > 0)
            assert rms(actual - whole) < rms(whole - dense)
            assert rms(actual - dense) < 1.05 * rms(whole - dense)


@pytest.mark.parametrize(("tile", "sizes"), [(1, [1] * 14), (1, [3, 1, 10]), (T, [4, 8, 2]), (T, [14])])
def test_generated_tokens_are_as_those_of_a_prompt(one_layer_model: Path, tile: int, sizes: list[int]) -> None:
    """Whose tiles are theirs, until a memory set is built."""
    tokens = random_tokens(62, seed=7)
    with open_llama(one_layer_model, replace(CONFIG, T=tile, decode="memory")) as llm:
        (expected,) = eval_calls(llm, [tokens])
        llm.reset()
        llm.eval(tokens[:48])
        got = decode_calls(llm, split(tokens[48:], sizes))
        assert_most_logits_close(got, expected[48:], SELF_LOGITS_F32)


# --- a cold store: the same bits as where all K and V are kept


@pytest.mark.parametrize(("model_name", "kv_type"), [("qwen3-gqa4-f32", "f16"), ("deci-mixed-f32", "q8_0")])
def test_what_is_chosen_is_brought_back(
    model_by_name: ModelByName, tmp_path: Path, model_name: str, kv_type: str
) -> None:
    """Prompts, generated tokens and the tokens of a copy, while another sequence reads another text."""
    kept = replace(CONFIG, decode="memory", kv_type=kv_type)
    cold = replace(kept, **COLD)
    lossless = LosslessConfig()
    configs = (kept, cold, replace(cold, cold_store=str(tmp_path)), replace(cold, lossless=lossless))
    tokens, others = random_tokens(150, seed=15), random_tokens(90, seed=16)
    results = []
    for config in configs:
        with open_llama(model_by_name(model_name), config, n_seq_max=3, n_threads=3) as llm:
            other = llm.sequence()
            got = eval_calls(llm, split(tokens[:100], [70, 30]))
            got += eval_calls(other, split(others, [50, 40]))
            copy = llm.fork()
            got.append(decode_calls(llm, [[token] for token in tokens[100:]]))
            got.append(decode_calls(copy, [[token] for token in others[:40]]))
            results.append(got)
    for result in results[1:]:
        assert_all_equal(result, results[0])


# --- bytes, and what is refused


def test_bytes_held(model_by_name: ModelByName) -> None:
    """Of 2 layers: 4.5 bits for each number of a key, 1,024 positions, 2 KV heads of 64; what rotates blocks too."""
    for retrieval in ("index", "ngrams"):
        with open_llama(model_by_name("llama-gqa2-f32"), replace(CONFIG, retrieval=retrieval)) as llm:
            stats = llm.kv.stats
            index_bytes = 2 * (1024 * 2 * 64 * 18 // 32 + 32 * 32 * 4) if retrieval == "index" else 0
            assert 0 <= stats.index_bytes - index_bytes < 256
            with llm._state.used() as context:
                assert context.kv_bytes == stats.kv_bytes + stats.index_bytes


def extra_keys_of(llm: TextSequence) -> list[Any]:
    """Of every layer, head and tile; None where they are not kept."""
    found = []
    for layer in llm.kv.layers:
        for head, tile in np.ndindex(len(llm.kv.memory_indices(layer)), len(CONFIG.tiles(llm.n_tokens))):
            try:
                found.append((layer, head, tile, llm.kv.extra_keys(layer, head, tile).tolist()))
            except H2OError:
                found.append((layer, head, tile, None))
    return found


def test_extra_keys_are_those_of_the_oracle(one_layer_model: Path) -> None:
    """Of prompts in any split, dense tails and generated tokens; but for near ties."""
    model = read_model(one_layer_model)
    calls = split(random_tokens(140, seed=2), [42, 1, 27, 1, 1, 4, 3, 21, *[1] * 40])
    config = replace(CONFIG, decode="memory")
    with open_llama(one_layer_model, config) as llm:
        eval_calls(llm, calls, dense_tail=5)
        oracle = config.oracle(model, choose_memory=lambda i, il, *_: llm.kv.history[i][il])
        oracle_calls(oracle, calls, dense_tail=5)
        found = extra_keys_of(llm)
    chosen = [
        (layer, head, tile, oracle.chosen[layer, tile][head].tolist() if (layer, tile) in oracle.chosen else None)
        for layer, head, tile, _ in found
    ]
    assert sum(a != b for a, b in zip(found, chosen, strict=True)) <= len(found) // 100
    assert sum(keys is None for *_, keys in found) > 0


def test_extra_keys_are_kept_and_go_with_their_tokens(model_by_name: ModelByName) -> None:
    tokens = random_tokens(150, seed=18)
    config = replace(CONFIG, decode="memory")
    with open_llama(model_by_name("qwen3-gqa4-f32"), config, n_seq_max=2) as llm:
        llm.eval(tokens[:90])
        decode_calls(llm, [[token] for token in tokens[90:107]])
        before = extra_keys_of(llm)
        for layer, head, tile, keys in before:
            start = config.tiles(llm.n_tokens)[tile][0] // S * S
            memory = llm.kv.history[start // S - 1][layer][head] if start else []
            assert keys is not None
            assert sorted({*keys} - {*memory}) == keys
            n = max(1, int(CONFIG.B * (start / (8 * S)) ** 0.4 + 0.5))
            assert len(keys) == max(0, min(n, start - config.M))
            assert max(keys, default=-1) < start
        with llm.fork() as fork:
            assert extra_keys_of(fork) == before
            llm.rewind(105)  # in the tile of 104 to 107
            kept = [(*place, keys if place[-1] < 104 // T else None) for *place, keys in before]
            assert extra_keys_of(llm) == kept
            llm.rewind(96)
            llm.eval(tokens[110:130])
            after = extra_keys_of(llm)
            assert [row for row in after if row[2] < 96 // T] == [row for row in before if row[2] < 96 // T]
            assert [row for row in after if row[2] == 25] != [row for row in before if row[2] == 25]
            assert extra_keys_of(fork) == before
            state = state_of(fork)
        restore(llm, state)
        assert {tile for *_, tile, keys in extra_keys_of(llm) if keys is not None} == {0, 1, 2, 3}


def test_without_a_record_only_the_last_chunks_extra_keys_are_kept(tiny_model: Path) -> None:
    with open_llama(tiny_model, replace(CONFIG, H=0), record=False) as llm, open_llama(tiny_model, CONFIG) as none:
        for call in split(random_tokens(100), [70, 10, 20]):
            llm.eval(call)
        assert {tile for *_, tile, keys in extra_keys_of(llm) if keys} == {24}
        llm.eval(random_tokens(12))
        assert {tile for *_, tile, keys in extra_keys_of(llm) if keys} == {24, 25, 26, 27}
        with pytest.raises(H2OError, match=r"extra keys of tile 23 are not kept. .* record=True"):
            llm.kv.extra_keys(0, 0, 23)
        for bad in ((9, 0, 24), (0, 9, 24), (0, 0, 28), (0, 0, -1), (0, 0, 1.5)):
            with pytest.raises(ValueError, match="layer|head|tile"):
                llm.kv.extra_keys(*bad)
        with pytest.raises(ValueError, match="tile"):
            none.kv.extra_keys(0, 0, 0)
    with (
        open_llama(tiny_model, replace(CONFIG, B=0)) as llm,
        pytest.raises(H2OError, match="nothing chooses"),
    ):
        llm.kv.extra_keys(0, 0, 0)


def test_attention_must_be_one_operator(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h2o = H2OConfig(retrieval="index")
    with pytest.raises(ValueError, match=r"flash_attn='off' rules out: pass flash_attn='auto' or retrieval='ngrams'"):
        Llama(tiny_model, n_ctx=1024, h2o=h2o, flash_attn="off")
    monkeypatch.setenv("H2O_NO_FUSED_ATTENTION", "1")
    with pytest.raises(H2OError, match=r"needs attention as one operator, which layer 0 does not have\. Leave flash"):
        Llama(tiny_model, n_ctx=1024, h2o=h2o)
    Llama(tiny_model, n_ctx=1024, h2o=H2OConfig(retrieval="index", lookup_budget=0)).close()


def test_heads_must_be_blocks(tmp_path: Path) -> None:
    path = tmp_path / "heads-of-16.gguf"
    models.write_model(models.ModelSpec("heads-of-16", "qwen3", 64, 16, (4, 4), (2, 2)), path)
    with pytest.raises(
        H2OError, match="heads whose size is a multiple of 32, but layer 0 has heads of 16: use retrieval"
    ):
        Llama(path, n_ctx=1024, h2o=H2OConfig(retrieval="index"))
    Llama(path, n_ctx=1024, h2o=H2OConfig()).close()


def test_a_budget_that_no_memory_could_hold(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h2o_llama._internal.memory.physical_memory", lambda: 2**24)
    h2o = H2OConfig(retrieval="index", lookup_budget=2**31 - 1, research={"tile": 1})
    with pytest.raises(ValueError, match=r"lookup_budget=2147483647 needs about .* for what every tile retrieves"):
        Llama(tiny_model, n_ctx=4096, h2o=h2o)


# --- what goes with it


def test_drafts(tiny_model: Path) -> None:
    """They find their guesses in the text, without an index of n-grams, and see what was chosen for all of them."""
    tokens = repetitive_tokens(60, seed=15)
    texts: list[Sequence[int]] = []
    with open_llama(tiny_model, replace(CONFIG, B=EVERYTHING, decode="memory")) as llm:
        for draft in (0, 8):
            llm.reset()
            generated = llm.generate(tokens, temperature=0, draft=draft)
            texts.append([next(generated) for _ in range(40)])
        assert llm.kv.stats.drafted_tokens > 0
    assert texts[0] == texts[1]
