"""`h2o-llama bench`: figures from given timings, and the command from end to end."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

import h2o_llama
from command_line import h2o_set, invoke, succeeded
from h2o_llama import H2OConfig
from h2o_llama._bench import DENSE, Bench, Mode, Sample, verdict
from h2o_llama._internal import apart

SMALL = [*h2o_set(chunk_size=64, local_window=16, heavy_budget=16, lookup_budget=8), "--threads", "1"]
NAMES = ["llama.cpp", "dense, our kernels", "balanced local_window=16 heavy_budget=16 lookup_budget=8"]
SPARSE = Mode("sparse", H2OConfig(local_window=16, heavy_budget=16))
SAMPLE = Sample(1.0, None, 1.0, 7, 1000, 321)


def run(*arguments: str | Path) -> Result:
    return invoke("bench", *arguments)


def test_speeds_are_of_medians_of_the_faster_variant_and_over_llama_cpp() -> None:
    bench = Bench(h2o_llama.demo_model_path(), [*DENSE, SPARSE], [100], [200], n_gen=10, chunk_size=64)
    seconds = {
        ("on", "upstream", 100): ([4.0, 1.0, 2.0], None),
        ("off", "upstream", 100): ([1.0, 0.9, 9.0], None),
        ("on", "own", 100): ([0.8], None),
        ("auto", "auto", 100): ([0.5, 0.25, 0.1], None),
        ("on", "upstream", 200): ([2.0], 1.0),
        ("off", "upstream", 200): ([4.0], 0.5),
        ("auto", "auto", 200): ([1.0], 0.25),
    }
    for case, samples in bench.samples.items():
        prefills, generation = seconds.get((case.mode.flash_attn, case.mode.matmul_kernels, case.n_tokens), ([], None))
        samples += [replace(SAMPLE, prefill_s=s, generation_s=generation) for s in prefills]
    rows = bench.rows()
    figures = ("mode", "n_tokens", "prefill", "prefill_over_dense", "generation", "generation_over_dense")
    assert [tuple(row[name] for name in figures) for row in rows] == [
        ("llama.cpp", 100, 100.0, 1.0, None, None),
        ("dense, our kernels", 100, 125.0, 1.25, None, None),
        ("sparse", 100, 400.0, 4.0, None, None),
        ("llama.cpp", 200, 100.0, 1.0, 20.0, 1.0),
        ("sparse", 200, 200.0, 2.0, 40.0, 2.0),
    ]
    assert [(s["flash_attn"], s["prefill_s"]) for s in rows[3]["samples"]] == [("on", 2.0), ("off", 4.0)]
    assert (rows[0]["peak_rss"], rows[0]["kv_bytes"], rows[0]["state_bytes"]) == (7, 1000, 321)
    assert not bench.doubt
    next(iter(bench.samples.values())).append(replace(SAMPLE, cpu_share=0.5))
    assert "other processes left as little as 50%" in bench.doubt
    said = verdict(rows)
    assert "(sparse) reads faster than llama.cpp: 4.0 times at 100 tokens, 2.0 times at 200 tokens. It gen" in said
    assert "--h2o off" not in said
    slow = [{**row, "prefill_over_dense": 0.5} if row["n_tokens"] == 100 else row for row in rows]
    assert "Up to 100 tokens --h2o off is faster" in verdict(slow)
    other = {**rows[-1], "mode": "sparse decode=memory", "generation_over_dense": 3.0}
    assert verdict([*rows, other]).endswith("For long answers add --h2o-set decode=memory: 3.0 times as fast.")


@pytest.mark.slow
def test_peak_memory_is_that_of_the_mode_alone() -> None:
    """Attention weights of all pairs of a chunk and the prompt, which only dense attention without flash has."""
    ballast = np.ones(2**25)  # 256 MB in this process
    bench = Bench(h2o_llama.demo_model_path(), DENSE[:2], [2048], repetitions=1, n_threads=1)
    bench.run()
    flash, plain = (samples[0] for samples in bench.samples.values())
    assert flash.kv_bytes == plain.kv_bytes == 2048 * 2048
    assert flash.peak_rss is not None
    assert plain.peak_rss is not None
    assert plain.peak_rss - flash.peak_rss > 4 * 6 * 1024 * 2048 / 2
    assert flash.peak_rss < ballast.nbytes


def test_a_process_imports_nothing_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pickle.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert apart.call_apart("test", os.getpid) != os.getpid()


# --- the command


@pytest.mark.slow
def test_from_end_to_end(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    options = ["--n-prompt", "64,130", "--depth", "130", "--n-gen", "3", "-r", "1", *h2o_set(decode="full")]
    result = succeeded(run("demo", *SMALL, *options, "--json", out))
    assert sum(line.endswith(" tokens/s") for line in result.stderr.splitlines()) == 10  # a line for each sample
    rows = json.loads(out.read_text())["rows"]
    assert [(row["n_tokens"], row["mode"]) for row in rows] == [(n, name) for n in (64, 130) for name in NAMES]
    assert [len(row["samples"]) for row in rows] == 2 * [2, 2, 1]
    assert [row["generation"] is None for row in rows] == [*3 * [True], *3 * [False]]
    assert all(row["prefill_over_dense"] > 0 for row in rows)
    assert [row["kv_bytes"] for row in rows] == 2 * [256 * 2048, 256 * 2048, 256 * 1088]  # with H2O in eight bits
    assert result.stdout.endswith(f"Written: {out}\n")
