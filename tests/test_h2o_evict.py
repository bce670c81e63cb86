"""evict=True: a cache of M + S rows, and the same results as with everything kept."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h2o_llama
from compare import assert_all_equal, assert_logits_close, relative_error
from full_disk import file_size_limit
from h2o_llama import H2OConfig, H2OError, Llama, demo_model_path
from h2o_llama._internal.apart import call_apart, resident_bytes
from inputs import random_tokens, split
from llamas import Config, arrays, eval_calls, lookups_of, open_llama, restore, state_of
from tolerances import SELF_LOGITS_F32

S = 16
CONFIG = Config(S=S, L=4, H=6, A=1, decode="memory", evict=True)
CONFIGS = {
    "sum": CONFIG,
    "distant": replace(CONFIG, scorer="distant"),
    "q8_0": replace(CONFIG, kv_type="q8_0"),
    "more memory than chunk": replace(CONFIG, L=9, H=21, scorer="distant"),
    "long chunks": replace(CONFIG, S=40, scorer="distant"),
    "dense layer": replace(CONFIG, dense_layers=(0,), kv_type="f16"),
    "looked up": replace(CONFIG, scorer="distant", kv_type="f16", B=12, T=4, cold_store="memory"),
    "looked up in a file": replace(CONFIG, kv_type="q8_0", B=9, T=1, cold_store=tempfile.gettempdir()),
    "dense layer, looked up": replace(CONFIG, dense_layers=(1,), B=30, T=2, cold_store=tempfile.gettempdir()),
    "blocks": replace(CONFIG, A=4, L=4, H=12, scorer="block_ema", block_tokens=4, shared_heads=True),
    "ratio": replace(CONFIG, H=40, scorer="distant", keep_ratio=0.3, B=12, T=4, cold_store="memory"),
    "composed": replace(CONFIG, flash_attn="off", scorer="distant"),
    "composed, dense layer": replace(CONFIG, flash_attn="off", dense_layers=(1,)),
}


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> Config:
    return CONFIGS[request.param]


@pytest.mark.parametrize("name", ["looked up", "looked up in a file"])
def test_threads_that_bring_rows_back_do_not_disturb_each_other(tiny_model: Path, name: str) -> None:
    """Each reads a part of them, and what is kept for later steps they share: bit for bit what one thread gives."""
    tokens = [token % 20 for token in random_tokens(150, seed=2)]  # so few that they are there before
    calls = split(tokens, [70, *[1] * 40, 40])
    with open_llama(tiny_model, CONFIGS[name]) as llm:
        expected = np.concatenate(eval_calls(llm, calls))
    for n_threads in (3, 5):
        with open_llama(tiny_model, CONFIGS[name], n_threads=n_threads) as llm:
            np.testing.assert_array_equal(np.concatenate(eval_calls(llm, calls)), expected)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "composed, dense layer"])
def test_is_as_if_everything_were_kept(tiny_model: Path, name: str) -> None:
    """Bit for bit, over the ends of chunks, in prompts and in generated text.

    Where all is kept, generated tokens attend to composed dense layers by upstream's attention, which rounds otherwise.
    """
    config = CONFIGS[name]
    tokens = [token % 20 for token in random_tokens(150, seed=2)]  # so few that they are there before
    calls = split(tokens, [5, 40, 1, 1, 3, 30, *[1] * 40, 30])
    with (
        open_llama(tiny_model, config) as llm,
        open_llama(tiny_model, replace(config, evict=False, cold_store=None)) as kept,
    ):
        for call in calls:
            (got,), (want,) = (eval_calls(x, [call]) for x in (llm, kept))
            np.testing.assert_array_equal(got, want)
        assert_same_memory(llm, kept, is_stored=config.cold_store is not None)
        assert llm.kv.stats.kv_bytes < kept.kv.stats.kv_bytes
        if config.B:
            assert sum(map(len, lookups_of(llm))) > 100


def assert_same_memory(llm: h2o_llama.Llama, kept: h2o_llama.Llama, is_stored: bool) -> None:
    """Sets, scores, K and V. What is evicted is NaN, and nothing else; K and V are not if they are stored."""
    assert llm.n_tokens == kept.n_tokens
    for il in llm.kv.layers:
        memory = kept.kv.memory_indices(il)
        np.testing.assert_array_equal(llm.kv.memory_indices(il), memory)
        scores, *kv = zip(arrays_of(llm, il), arrays_of(kept, il), strict=True)
        for x, y in kv if is_stored else []:
            np.testing.assert_array_equal(x, y)
        for x, y in [scores] if is_stored else [scores, *kv]:
            for head, positions in enumerate(memory):
                here = np.zeros(llm.n_tokens, dtype=bool)
                here[positions[positions >= 0]] = True
                here[len(llm.kv.history) * llm.kv.chunk_size :] = True
                np.testing.assert_array_equal(x[head, here], y[head, here])
                assert np.isnan(x[head, ~here]).all()


def arrays_of(llm: h2o_llama.Llama, il: int) -> list[Any]:
    return [llm.kv.scores(il), llm.kv.keys(il), llm.kv.values(il)]


def test_the_cache_does_not_grow_with_the_text(tiny_model: Path) -> None:
    """Whatever n_ctx is."""
    with open_llama(tiny_model, CONFIG, n_ctx=100_000) as llm:
        n_byte = llm.kv.stats.kv_bytes
    with open_llama(tiny_model, CONFIG, n_ctx=0, n_batch=256) as llm:
        llm.eval(random_tokens(3000))
        assert llm.n_tokens == 3000
        n_head_kv, _, size = llm.kv.keys(0).shape
        assert llm.kv.stats.kv_bytes == n_byte == 2 * 4 * len(llm.kv.layers) * n_head_kv * (CONFIG.M + S) * size
        assert np.isfinite(llm.logits).all()


def given_back_by_a_sequence(n_chunk: int) -> list[float]:
    """Resident bytes that are gone when the chunk after a complete one begins, and when the sequence is empty again.

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
def test_rows_take_memory_while_something_is_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    begun, empty = call_apart("test", given_back_by_a_sequence, 2048)
    assert begun > 0.5
    assert empty > 0.75


def test_a_cache_that_cannot_fit_is_refused(tiny_model: Path) -> None:
    """Of dense layers; without them any n_ctx will do."""
    huge = 2**31 - 1
    with open_llama(tiny_model, CONFIG, n_ctx=huge, n_batch=64) as llm:
        assert llm.n_ctx == huge
    with pytest.raises(ValueError, match=rf"n_ctx={huge} needs .* GiB for the KV cache"):
        open_llama(tiny_model, replace(CONFIG, dense_layers=(0,)), n_ctx=huge, n_batch=64)


def test_says_once_that_the_text_is_longer_than_what_the_model_was_trained_for(tiny_model: Path) -> None:
    with open_llama(tiny_model, CONFIG, n_ctx=0, n_batch=256) as llm:
        llm.eval(random_tokens(llm.model._handle.n_ctx_train))
        with pytest.warns(UserWarning, match=f"trained for texts of {llm.model._handle.n_ctx_train} tokens"):
            llm.eval([1])
        llm.eval([1])  # warnings are errors


def test_a_state_without_rows_takes_back_what_is_in_the_open_chunk(tiny_model: Path, config: Config) -> None:
    """A small part of a state: K and V are in the cache until the chunk closes."""
    tokens = random_tokens(3 * config.S + 5)
    with open_llama(tiny_model, config) as llm, open_llama(tiny_model, config) as fresh:
        for x in (llm, fresh):
            x.eval(tokens)
        state = state_of(llm, partial=True, rows=False)
        assert len(state) < 0.5 * len(state_of(llm, partial=True))
        llm.eval(random_tokens(config.S - 5, seed=1))
        restore(llm, state, partial=True, rows=False)
        for x in (llm, fresh):
            x.eval(random_tokens(config.S, seed=2))
        np.testing.assert_array_equal(llm.logits, fresh.logits)
        before = arrays(llm)
        with pytest.raises(H2OError, match="the rows of this partial state have moved"):
            restore(llm, state, partial=True, rows=False)
        for x, y in zip(arrays(llm), before, strict=True):
            np.testing.assert_array_equal(x, y)


def test_rows_for_a_state_without_rows_are_taken_when_the_chunk_closes(tiny_model: Path, config: Config) -> None:
    """Only those of its own tokens, not of the others in the chunk."""
    tokens = random_tokens(3 * config.S + 5)
    with open_llama(tiny_model, config) as llm, open_llama(tiny_model, config) as fresh:
        for x in (llm, fresh):
            x.eval(tokens)
        state, small = state_of(llm, partial=True, rows=False), len(state_of(llm, partial=True))
        llm.eval(random_tokens(config.S - 5, seed=1))
        rows = state_of(llm, partial=True, end=len(tokens))
        assert len(rows) == pytest.approx(small, rel=0.02)
        assert len(rows) < 0.9 * len(state_of(llm, partial=True))
        llm.eval(random_tokens(2 * config.S, seed=2))
        restore(llm, rows, partial=True)
        restore(llm, state, partial=True, rows=False)
        for more in (random_tokens(2 * config.S, seed=3), [3]):
            assert_all_equal(arrays(llm), arrays(fresh))
            for x in (llm, fresh):
                x.eval(more)
            np.testing.assert_array_equal(llm.logits, fresh.logits)


def test_a_bad_state_is_refused(tiny_model: Path) -> None:
    with open_llama(tiny_model, CONFIG) as llm, open_llama(tiny_model, replace(CONFIG, evict=False)) as kept:
        for x in (llm, kept):
            x.eval(random_tokens(50))
        before = arrays(llm)
        for bad in (state_of(kept), state_of(llm)[:-9], state_of(llm)[:400]):
            with pytest.raises(H2OError, match="state cannot be restored"):
                restore(llm, bad)
            assert_all_equal(arrays(llm), before)


def test_a_dense_tail_attends_to_what_is_kept(tiny_model: Path) -> None:
    with open_llama(tiny_model, CONFIG) as llm, open_llama(tiny_model, CONFIG) as plain:
        tokens = random_tokens(60)
        llm.eval(tokens, dense_tail=20)
        plain.eval(tokens)
        np.testing.assert_array_equal(llm.logits, plain.logits)


@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0"])
def test_with_a_cold_store_a_dense_tail_attends_to_everything(tiny_model: Path, kv_type: str) -> None:
    """Over the end of a chunk, too; in a text of as many chunks as are read one by one, and of more.

    There are no heavy hitters: a tail is scored only where nothing is evicted.
    """
    config = replace(CONFIG, L=10, H=0, kv_type=kv_type, B=8, T=4, cold_store="memory")
    for n in (40, 33 * S, 50 * S + 5):
        tokens = random_tokens(n, seed=n)
        results = []
        for x in (config, replace(config, evict=False, cold_store=None), replace(config, cold_store=None, B=0)):
            with open_llama(tiny_model, x) as llm:
                llm.eval(tokens, dense_tail=19)
                results.append([np.array(llm.logits), *eval_calls(llm, [[1], [2], random_tokens(20)])])
        stored, kept, gone = results
        for x, y in zip(stored, kept, strict=True):
            assert_logits_close(x, y, SELF_LOGITS_F32 if kv_type == "f32" else 2e-3)
        assert relative_error(gone[0], kept[0]) > 1e-2


def test_a_dense_tail_beside_dense_layers(tiny_model: Path) -> None:
    """With a scorer that limits what queries count, and a cold store, in whose tails nothing is scored."""
    config = replace(CONFIG, scorer="distant", B=8, T=4, cold_store="memory", dense_layers=(0,))
    logits = []
    for x in (config, replace(config, evict=False, cold_store=None)):
        with open_llama(tiny_model, x) as llm:
            llm.eval(random_tokens(60), dense_tail=19)
            logits.append(np.array(llm.logits))
    assert_logits_close(*logits, SELF_LOGITS_F32)


def test_a_full_disk_is_told_and_changes_nothing(tiny_model: Path, tmp_path: Path) -> None:
    """A call that fails, and one after it, when there is room again."""
    config = replace(CONFIGS["looked up"], cold_store=str(tmp_path))
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


def test_a_cold_store_that_cannot_be_made(tiny_model: Path, tmp_path: Path) -> None:
    for folder, reason in ((tmp_path / "none", "No such file"), (tiny_model, "Not a directory")):
        config = replace(CONFIGS["looked up"], cold_store=str(folder))
        with pytest.raises(H2OError, match=f"cannot make a file in {folder}.*{reason}"):
            open_llama(tiny_model, config)
    with pytest.raises(ValueError, match=r"cold_store must be of less than 1024 bytes, got 'x{77}\.\.\.'$"):
        open_llama(tiny_model, replace(CONFIGS["looked up"], cold_store="x" * 2000))
    with pytest.raises(H2OError, match="a cold store needs attention as one operator"):
        open_llama(tiny_model, replace(CONFIGS["looked up"], flash_attn="off"))


def test_the_cold_store_is_a_file_without_a_name(tiny_model: Path, tmp_path: Path) -> None:
    """Which is gone, with its room on the disk, when its sequences are."""
    with open_llama(tiny_model, replace(CONFIGS["looked up"], cold_store=str(tmp_path))) as llm:
        llm.eval(random_tokens(200))
        n_head_kv, _, size = llm.kv.keys(0).shape
        assert llm.kv.stats.cold_bytes == 2 * 2 * len(llm.kv.layers) * n_head_kv * size * (200 // S * S)
        assert list(tmp_path.iterdir()) == []


def test_a_memory_set_cannot_be_replaced(tiny_model: Path) -> None:
    with open_llama(tiny_model, CONFIG) as llm:
        llm.eval(random_tokens(2 * S))
        with pytest.raises(ValueError, match="evict=True"):
            llm.kv.set_memory_indices(0, llm.kv.memory_indices(0))
