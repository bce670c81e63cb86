"""LosslessConfig: an encoded cold store gives what the raw one gives, and takes less room."""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import h2o_llama
from cases import SMALL, Case
from compare import assert_all_equal
from full_disk import file_size_limit
from h2o_llama import H2OConfig, H2OError, LosslessConfig
from inputs import random_tokens, split
from llamas import arrays, eval_calls, open_llama, restore, state_of

# Chunks large enough for encoded rows to be shorter.
CONFIG = SMALL.but(
    chunk_size=64,
    local_window=8,
    heavy_budget=24,
    sink_tokens=4,
    scorer="distant",
    kv_type="f16",
    lookup_budget=32,
    decode="memory",
    evict=True,
    cold_store="memory",
)
STORE = LosslessConfig(n_threads=1)
CONFIGS = {
    "f16": CONFIG.but(cold_store_compression=STORE),
    "f32": CONFIG.but(kv_type="f32", cold_store_compression=LosslessConfig(n_threads=2)),
    "q8_0": CONFIG.but(kv_type="q8_0", cold_store_compression=STORE),
    "bf16": CONFIG.but(kv_type="bf16", cold_store_compression=STORE),
    "f16, file": CONFIG.but(cold_store=tempfile.gettempdir(), cold_store_compression=STORE),
    "iq4_nl": CONFIG.but(kv_type="iq4_nl", cold_store_compression=STORE),
    "dense layer, ratio": CONFIG.but(dense_layers=(0,), heavy_budget=100, keep_ratio=0.3, cold_store_compression=STORE),
}


def text(n: int, seed: int = 1) -> list[int]:
    """So few different tokens that they are there before, and that rows are like others."""
    return [token % 20 for token in random_tokens(n, seed=seed)]


def raw(config: Case) -> Case:
    return config.but(cold_store_compression=None)


def encoded(llm: h2o_llama.Llama) -> h2o_llama.LosslessStats:
    """The counters when all chunks are encoded."""
    end = time.monotonic() + 60
    while True:
        stats = llm.kv.stats.lossless
        assert stats is not None
        if stats.waiting_chunks == 0:
            return stats
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("name", CONFIGS)
def test_is_the_raw_cold_store_bit_for_bit(tiny_model: Path, name: str) -> None:
    """Prompts, generated tokens, a dense tail, K and V, whether all is encoded already or not; states in either kind.

    In any order with all else: test_h2o_past.py.
    """
    config = CONFIGS[name]
    calls = split(text(1000), [100, 300, 1, 1, 60, *[1] * 80, 458])
    with open_llama(tiny_model, config, n_ctx=1200) as llm, open_llama(tiny_model, raw(config), n_ctx=1200) as want:
        for i, call in enumerate(calls):
            assert_all_equal(*(eval_calls(x, [call]) for x in (llm, want)))
            if i % 3 == 0:
                encoded(llm)
        stats = encoded(llm)
        assert stats.encoded_blocks > 0
        if name == "iq4_nl":  # its fields are not known: only rows that are equal to others become shorter
            assert stats.raw_blocks > stats.encoded_blocks
        assert stats.failed_blocks == 0
        assert_all_equal(*(arrays(x) for x in (llm, want)))
        assert llm.kv.stats.cold_bytes < want.kv.stats.cold_bytes
        for x in (llm, want):
            x.eval(text(70, seed=2), dense_tail=30)
        assert_all_equal(*([x.logits, *arrays(x)] for x in (llm, want)))
        restore(want, state_of(llm))
        for x in (llm, want):
            x.eval(text(70, seed=3))
        assert_all_equal(*([x.logits, *arrays(x)] for x in (llm, want)))


@pytest.mark.parametrize("lossless", [None, STORE])
def test_generated_tokens_look_up_more_than_is_kept_of_it(tiny_model: Path, lossless: LosslessConfig | None) -> None:
    """Rows of 512 positions stay for later tokens, and make room for others. Each thread brings a part of them back."""
    config = CONFIG.but(cold_store_compression=lossless)
    prompt = [token % 200 for token in random_tokens(2500, seed=1)]
    with (
        open_llama(tiny_model, config, n_ctx=3500, n_threads=3, n_seq_max=2) as llm,
        open_llama(tiny_model, raw(CONFIG).but(evict=False, cold_store=None), n_ctx=3500) as kept,
    ):
        for x in (llm, kept):
            x.eval(prompt[:2000])
        for token in prompt[2000:]:
            for x in (llm, kept):
                x.eval([token], decode=True)
            np.testing.assert_array_equal(llm.logits, kept.logits)
        with llm.fork() as fork:
            for x in (fork, kept):
                x.eval([1], decode=True)
            np.testing.assert_array_equal(fork.logits, kept.logits)
        looked_up = [llm.kv.extra_keys(0, 0, i) for i in range(2000 // CONFIG.h2o.tile, 2500 // CONFIG.h2o.tile)]
        assert len(np.unique(np.concatenate(looked_up))) > 600


def cold_file() -> str:
    """The cold store's, which has no name any more."""
    names = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    (found,) = (name for name in names if os.path.exists(name) and "/h2o-" in os.readlink(name))
    return found


on_linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds an open file in /proc")


@on_linux
def test_the_file_is_smaller_and_does_not_grow(tiny_model: Path, tmp_path: Path) -> None:
    """It has the encoded rows and room for the chunks that a call closes, up to two of 15, over several texts."""
    sizes = []
    for config in (CONFIG, CONFIG.but(cold_store_compression=STORE)):
        with open_llama(tiny_model, config.but(cold_store=str(tmp_path))) as llm:
            for seed in (1, 2, 3):
                llm.reset()
                for call in split(text(1000, seed=seed), [100] * 10):
                    llm.eval(call)
                    if config.cold_store_compression:
                        encoded(llm)
            sizes.append(os.stat(cold_file()).st_size)
            if config.cold_store_compression:
                assert sizes[1] < llm.kv.stats.cold_bytes + sizes[0] * 2 / 15
    assert sizes[1] < sizes[0]


@on_linux
def test_a_damaged_block_is_told(tiny_model: Path, tmp_path: Path) -> None:
    """Every reader gets an error with its place; nothing is computed from it."""
    config = CONFIG.but(cold_store=str(tmp_path), cold_store_compression=STORE)
    with open_llama(tiny_model, config) as llm:
        llm.eval(text(200))
        encoded(llm)
        expected = llm.logits.copy()
        with open(cold_file(), "r+b") as file:
            file.write(bytes(os.path.getsize(file.name)))
        told = r"the cold store is damaged: layer \d, [KV] of positions \d+ to \d+ \(.*\)\. Reset the sequence"
        with pytest.raises(H2OError, match=told):
            llm.eval(text(20))
        for look in (
            lambda: llm.kv.values(1),
            llm.snapshot,
            lambda: llm.rewind(64),
            lambda: llm.eval([1] * 20, dense_tail=9),
        ):
            with pytest.raises(H2OError, match=told):
                look()
        assert llm.n_tokens == 200
        llm.reset()
        llm.eval(text(200))
        np.testing.assert_array_equal(llm.logits, expected)


def test_a_full_disk_while_encoding_leaves_rows_as_they_are(tiny_model: Path, tmp_path: Path) -> None:
    """There is room for a chunk's rows, but not for their encoded form as well."""
    config = CONFIG.but(cold_store=str(tmp_path), cold_store_compression=STORE)
    with open_llama(tiny_model, config) as llm, open_llama(tiny_model, raw(CONFIG)) as want:
        n_bytes = CONFIG.h2o.chunk_size * llm.kv.stats.token_bytes
        with file_size_limit(n_bytes):
            llm.eval(text(100))
            stats = encoded(llm)
        assert (stats.encoded_blocks, stats.raw_blocks) == (0, 0)
        assert stats.failed_blocks > 0
        assert stats.ratio == 1
        assert llm.kv.stats.cold_bytes == n_bytes
        want.eval(text(100))
        for x in (llm, want):
            x.eval(text(200, seed=2))
        assert encoded(llm).encoded_blocks > 0
        assert_all_equal(*([x.logits, *arrays(x)] for x in (llm, want)))


def test_chunks_that_come_faster_than_they_are_encoded_wait(tiny_model: Path) -> None:
    config = CONFIG.but(cold_store_compression=STORE)
    with open_llama(tiny_model, raw(config), n_ctx=6000) as other, open_llama(tiny_model, config, n_ctx=6000) as llm:
        other.eval(text(2600))
        restore(llm, state_of(other))
        assert_all_equal(*(arrays(x) for x in (llm, other)))
        stats = encoded(llm)
        assert stats.k_bytes + stats.v_bytes == llm.kv.stats.token_bytes * llm.kv.stats.closed_tokens


def test_needs_a_cold_store(tiny_model: Path) -> None:
    for h2o in (None, H2OConfig(), H2OConfig(evict=True)):
        with pytest.raises(ValueError, match="cold_store_compression needs a cold store: pass h2o=H2OConfig"):
            h2o_llama.Llama(tiny_model, h2o=h2o, cold_store_compression=LosslessConfig())
    with pytest.raises(ValueError, match="cold_store_compression must be a LosslessConfig or None, got 'store'"):
        open_llama(tiny_model, CONFIG, cold_store_compression="store")
