"""`Llama` and `KVCache` as a user meets them. What the numbers must be is for the test_h2o_* files."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import h2o_llama
import models
from compare import assert_all_equal, case
from h2o_llama import (
    H2OConfig,
    H2OError,
    H2OWarning,
    KVCache,
    KVStats,
    Llama,
    Model,
    OutOfMemoryError,
    UnsupportedModelError,
)
from h2o_llama._cli.serve import _cache_ram
from h2o_llama._internal import machine
from inputs import ModelByName, Opened, random_tokens
from llamas import TINY, open_tiny

S, L, H, A = TINY.chunk_size, TINY.local_window, int(TINY.heavy_budget), TINY.sink_tokens
N_VOCAB = models.N_VOCAB
LAYERS, N_HEAD_KV, HEAD_DIM = [0, 1, 2], 2, 32  # QWEN3_GQA4


@pytest.fixture
def dense(opened: Opened, tiny_model: Path) -> Llama:
    """With H2O off, the sequence empty."""
    return opened("dense", partial(open_tiny, h2o=None), tiny_model)


# --- the package


def test_a_model_that_h2o_cannot_work_with_is_dense(unsupported_memory_model: Path) -> None:
    """With one warning, if nobody asked for H2O."""
    with pytest.warns(H2OWarning, match=r"(?s)H2O.*: attention is dense. Pass h2o=None") as warned:
        llm = Llama(unsupported_memory_model, n_ctx=64, n_threads=1)
    with llm:
        assert len(warned) == 1
        assert warned[0].filename == __file__
        assert llm.h2o is None
        assert llm.model._matmul_kernels == "upstream"  # also the layout of the weights
        llm.eval([1, 2, 3])
    with pytest.raises(UnsupportedModelError, match="H2O does not work with this model"):
        Llama(unsupported_memory_model, n_ctx=64, n_threads=1, h2o=H2OConfig(local_window=8, heavy_budget=8))


def test_what_a_path_says_is_no_reason(tiny_model: Path, tmp_path: Path) -> None:
    for name in ("out of memory", "failed to allocate", "[h2o] lookup by the index of keys needs"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.gguf").symlink_to(tiny_model)
        message = f"does not read 'qwen3.wrong' from .*{re.escape(name)}"
        with case(name=name), pytest.raises(H2OError, match=message) as caught:
            Llama(folder / "model.gguf", n_ctx=64, n_threads=1, kv_overrides={"qwen3.wrong": 1})
        assert type(caught.value) is H2OError


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does")
def test_the_lack_of_memory_is_told_apart() -> None:
    program = """
import re, resource
from h2o_llama import H2OConfig, Llama, Model, demo_model_path
model = Model(demo_model_path())
used = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
for h2o in (None, H2OConfig()):
    try:
        Llama(model, n_ctx=200_000, n_threads=1, h2o=h2o)
    except Exception as error:
        print(type(error).__name__)
"""
    assert _run(program) == ("OutOfMemoryError\n" * 2, "")


@pytest.mark.parametrize(
    ("files", "n"),
    [
        ({}, 8),
        ({"own": "1:cpuset:/x\n4:cpu:/a:b", "cpu/a:b/cpu.cfs_quota_us": "150000"}, 2),
        ({"own": "nonsense\n\n4:cpu:/a", "cpu/cpu.cfs_quota_us": "-1"}, 8),
        ({"service/cpu.max": "250000 100000", "cpu.max": "max 100000"}, 3),
        ({"service/cpu.max": "nonsense", "cpu.max": "1600000 100000"}, 8),
    ],
)
def test_threads_are_no_more_than_a_container_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], n: int
) -> None:
    _use_cgroups(tmp_path, monkeypatch, files)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert machine.available_cpus() == n


@pytest.mark.parametrize(
    "files",
    [
        {"service/memory.max": "max", "memory.max": str(900 << 20)},
        {"own": "5:memory:/a/b", "memory/a/memory.limit_in_bytes": str(900 << 20)},
    ],
)
def test_a_server_caches_in_a_quarter_of_what_a_container_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    _use_cgroups(tmp_path, monkeypatch, files | {"memory/a/b/memory.limit_in_bytes": "9223372036854771712"})
    assert machine.physical_memory() == 900 << 20
    assert _cache_ram() == ["--cache-ram", 225]
    monkeypatch.setenv("LLAMA_ARG_CACHE_RAM", "1000")
    assert _cache_ram() == []


def _use_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    periods = {name.replace("quota", "period"): "100000" for name in files if "quota" in name}
    for name, content in ({"own": "0::/service"} | files | periods).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "_OWN_CGROUPS", tmp_path / "own")


@pytest.mark.parametrize(
    "name", ["qwen3-gqa4-f32", "deci-mixed-f32", "deci-linear-f32", "gemma3-windows-f32", "lfm2-conv-f32"]
)
def test_a_cache_is_no_smaller_than_is_said(model_by_name: ModelByName, name: str) -> None:
    """Or a model that fits would be refused: here some layers have fewer KV heads than the first, or none."""
    with open_tiny(model_by_name(name), h2o=None) as llm:
        least = h2o_llama._internal.machine.kv_bytes_at_least(llm.model._handle, llm.n_ctx, "f16", "f16")
        assert least <= llm.kv.stats.kv_bytes
        assert least == llm.kv.stats.kv_bytes or name != "qwen3-gqa4-f32"


def test_all_logits_must_fit_into_memory(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    n_bytes = 4 * N_VOCAB * 16
    monkeypatch.setattr(h2o_llama._internal.machine, "physical_memory", lambda: n_bytes)
    llm.eval([1] * 16, logits="all")
    with pytest.raises(ValueError, match=r"n_tokens=17 needs 0.0 GiB for logits='all'"):
        llm.eval([1] * 17, logits="all")
    assert llm.n_tokens == 16
    llm.eval([1] * 17)


# --- the model


def test_n_ctx_is_what_was_asked_for(tiny_model: Path) -> None:
    """llama.cpp rounds up to 256; the limit is the user's number, and a chunk may be larger. 0: as it was trained."""
    with open_tiny(tiny_model, n_ctx=0) as llm:
        assert llm.n_ctx == models.N_CTX_TRAIN
    with open_tiny(tiny_model, n_ctx=20, h2o=H2OConfig(local_window=64, heavy_budget=0, chunk_size=64)) as llm:
        llm.eval([1] * 20)
        assert llm.kv.chunk_size == 64
    with open_tiny(tiny_model, n_ctx=20) as llm:
        assert llm.n_ctx == 20
        llm.eval([1] * 20)
        with pytest.raises(ValueError, match="do not fit into n_ctx=20"):
            llm.eval([1])
        assert llm.n_tokens == 20


def test_n_ctx_of_0_is_what_fits(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a warning that says the bytes; a number that does not fit is refused as ever."""
    with open_tiny(tiny_model, n_ctx=0, h2o=None) as llm:
        weights, n_bytes = llm.model_bytes, llm.kv.stats.kv_bytes
    monkeypatch.setattr(h2o_llama._internal.machine, "physical_memory", lambda: weights + n_bytes // 2)
    for kwargs, n in (({}, models.N_CTX_TRAIN // 2), ({"n_seq_max": 2}, models.N_CTX_TRAIN // 4)):
        with (
            pytest.warns(H2OWarning, match=rf"n_ctx=8192.* needs 0.0 GiB .* leave 0.0 GiB .* n_ctx is {n}\.") as warned,
            open_tiny(tiny_model, n_ctx=0, h2o=None, **kwargs) as llm,
        ):
            assert llm.n_ctx == n
        assert [warning.filename for warning in warned] == [open_tiny.__code__.co_filename]
    with pytest.raises(OutOfMemoryError, match="n_ctx=65536 needs"):
        open_tiny(tiny_model, n_ctx=65536, h2o=None)


# --- a model


def test_metadata_is_replaced(tiny_model: Path) -> None:
    """One value of each kind: it is shown, and it counts."""
    overrides: dict[str, Any] = {
        "qwen3.context_length": 77,
        "general.name": "another",
        "tokenizer.ggml.add_bos_token": True,
    }
    overrides["qwen3.rope.freq_base"] = 500.0
    with Model(tiny_model) as model, Model(tiny_model, kv_overrides=overrides) as other:
        assert other.n_ctx_train == 77 != model.n_ctx_train
        assert other.metadata == model.metadata | dict(
            zip(overrides, ["77", "another", "true", "500.000000"], strict=True)
        )
        assert other.tokenize("a") == [other.token_bos, *model.tokenize("a", add_special=False)]
        logits = []
        for each in (model, other):
            with open_tiny(each, h2o=None) as llm:  # type: ignore[arg-type]
                llm.eval([1, 2, 3, 4, 5])
                logits.append(llm.logits)
        assert np.abs(logits[0] - logits[1]).max() > 1e-3


@pytest.mark.parametrize(("n_threads_batch", "expected"), [(None, (3, 3)), (2, (3, 2))])
def test_threads_of_prompts(tiny_model: Path, n_threads_batch: int | None, expected: tuple[int, int]) -> None:
    with open_tiny(tiny_model, n_threads=3, n_threads_batch=n_threads_batch) as llm:
        assert llm._state.context.n_threads == expected


def test_shared_weights_are_loaded_already(tiny_model: Path) -> None:
    options: dict[str, Any] = {"use_mmap": False, "use_mlock": True, "kv_overrides": {}, "lora": "a.gguf"}
    options |= {"main_gpu": 0, "tensor_split": [1], "rpc_servers": "a:1"}
    with Model(tiny_model) as model:
        for name, value in options.items():
            with pytest.raises(ValueError, match=rf"^\[Llama\] {name} must be left out with shared"):
                Llama(model, n_ctx=64, **{name: value})


def test_a_model_and_what_shares_it_close_in_any_order(tiny_model: Path) -> None:
    with Model(tiny_model) as model:
        open_tiny(model).close()
        llm = open_tiny(model, h2o=None, chat_template="chatml")
        assert (llm.chat_template, model.chat_template) == ("chatml", None)
    with open_tiny(llm) as other, llm:
        assert len(list(llm.generate(llm.tokenize("abc"), temperature=0, top_k=1))) > 0
        llm.close()
        assert len(list(other.generate([97], temperature=0))) > 0
    with pytest.raises(ValueError, match=r"^\[Llama\] this model is closed$"):
        llm.model.tokenize("a")


# --- text


# --- eval


# --- kv


def test_arrays_are_copies(llm: Llama) -> None:
    """They do not change under the reader, nor can the reader change the cache."""
    llm.eval(random_tokens(40))
    kv = llm.kv
    arrays: list[Any] = [llm.logits, *(read(0) for read in (kv.memory_indices, kv.scores, kv.keys, kv.values))]
    before = [array.copy() for array in arrays]
    llm.eval(random_tokens(40, seed=1))
    assert_all_equal(arrays, before)
    for read in (kv.memory_indices, kv.scores, kv.keys, kv.values):
        array: Any = read(0)
        array[:] = 7
        assert not np.array_equal(read(0), array)


@pytest.mark.parametrize("schedule", ["single_pass", "two_phase"])
def test_profile(tiny_model: Path, flash_attn: str, schedule: Literal["single_pass", "two_phase"]) -> None:
    """The parts of the prefill, on top of the same results; the operator gathers by itself."""
    h2o = H2OConfig(local_window=L, heavy_budget=H, lookup_budget=0, scorer="sum", schedule=schedule, chunk_size=S)
    results = []
    for profile in (True, False):
        with open_tiny(tiny_model, h2o=h2o, flash_attn=flash_attn, profile=profile) as llm:
            llm.eval(random_tokens(60))
            results.append([llm.logits, *(llm.kv.scores(il) for il in LAYERS)])
            stats = llm.kv.stats
        parts = (stats.gather_ms, stats.attention_ms, stats.score_ms)
        if not profile:
            assert parts == (0, 0, 0)
            continue
        assert min(stats.attention_ms, stats.score_ms) > 0
        assert sum(parts) < stats.single_pass_ms + stats.phase1_ms + stats.phase2_ms
        composed = os.environ["H2O_NO_FUSED_ATTENTION"] == "1"
        assert (stats.gather_ms > 0) == composed
    assert_all_equal(*results)


def test_kv_without_h2o(dense: Llama) -> None:
    dense.eval(random_tokens(40))
    assert dense.h2o is None
    assert dense.kv.n_tokens == 40
    assert dense.kv.stats == KVStats(kv_bytes=len(LAYERS) * 256 * N_HEAD_KV * HEAD_DIM * 2 * 2)
    for name in ("layers", "chunk_size", "history"):
        with pytest.raises(H2OError, match="H2O is off"):
            getattr(dense.kv, name)
    with pytest.raises(H2OError, match="H2O is off"):
        dense.kv.scores(0)


def test_stand_alone_cache_outlives_the_model_it_was_made_from(tiny_model: Path) -> None:
    with open_tiny(tiny_model) as llm:
        cache = KVCache(llm, kv_size=64, chunk_size=S, local_window=L, heavy_budget=H)
    cache.init_chunk_scores(0, 0, np.ones((N_HEAD_KV, S)))
    assert cache.layers == LAYERS
    assert cache.kv_size >= 64


# --- silence


def _run(code: str) -> tuple[str, str]:
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return process.stdout, process.stderr


def test_verbose_is_the_only_noise(tiny_model: Path) -> None:
    """verbose=False prints nothing in a whole life, the end of the interpreter with an open model included."""
    code = f"""
import h2o_llama
h2o = h2o_llama.H2OConfig(local_window=4, heavy_budget=4, chunk_size=16)
llm = h2o_llama.Llama({str(tiny_model)!r}, n_ctx=64, h2o=h2o, verbose=VERBOSE)
llm.eval([1] * 40)
llm("a", max_tokens=3)
"""
    assert _run(code.replace("VERBOSE", "False")) == ("", "")
    stdout, stderr = _run(code.replace("VERBOSE", "True"))
    assert stdout == ""
    assert "llama_model_loader" in stderr
    assert "llama_context" in stderr


@pytest.mark.parametrize("why", ["flash_attn", "H2O_NO_FUSED_ATTENTION"])
def test_an_index_that_cannot_be(tiny_model: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """Where it was not asked for, there is a memory set alone, with its size and a warning."""
    if why != "flash_attn":
        monkeypatch.setenv(why, "1")
    said, options = "index of keys needs attention as one operator", {"n_ctx": 64, "n_threads": 1}
    options |= {"flash_attn": "off" if why == "flash_attn" else "auto"}
    with pytest.warns(H2OWarning, match=said):
        llm = Llama(tiny_model, **options, h2o=H2OConfig(local_window=9))
    with llm:
        assert llm.h2o == H2OConfig(local_window=9, lookup_budget=0)
        assert llm.h2o.heavy_budget == 448
    with pytest.raises(UnsupportedModelError, match=said):
        Llama(tiny_model, **options, h2o=H2OConfig(lookup_budget=9))
