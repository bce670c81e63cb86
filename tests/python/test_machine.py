"""Memory and threads of the machine, or of a container: sizes that fit, and the reasons in errors."""

import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import pytest

import h2o_llama
import models
from h2o_llama import H2OWarning, Llama, OutOfMemoryError
from h2o_llama._cli.serve import _cache_ram
from h2o_llama._internal import machine
from inputs import ModelByName
from llamas import open_tiny


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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert (done.stdout, done.stderr) == ("OutOfMemoryError\n" * 2, "")


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
    n_bytes = 4 * models.N_VOCAB * 16
    monkeypatch.setattr(h2o_llama._internal.machine, "physical_memory", lambda: n_bytes)
    llm.eval([1] * 16, logits="all")
    with pytest.raises(ValueError, match=r"n_tokens=17 needs 0.0 GiB for logits='all'"):
        llm.eval([1] * 17, logits="all")
    assert llm.n_tokens == 16
    llm.eval([1] * 17)


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


@pytest.mark.parametrize(("n_threads_batch", "expected"), [(None, (1, 1)), (8, (1, 8))])
def test_threads_of_prompts(tiny_model: Path, n_threads_batch: int | None, expected: tuple[int, int]) -> None:
    """A generated token wakes none of them."""
    with open_tiny(tiny_model, n_threads=1, n_threads_batch=n_threads_batch) as llm:
        assert llm._state.context.n_threads == expected
        llm.eval(range(100))
        before = getrusage(RUSAGE_SELF).ru_nvcsw
        for token in range(50):
            llm.eval([token])
        assert getrusage(RUSAGE_SELF).ru_nvcsw - before < 50
