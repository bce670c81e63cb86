"""`h2o-llama bench`: figures from given timings, what is read, and the command from end to end."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from typer.testing import Result

import h2o_llama
from command_line import assert_one_line_error, assert_wrong_usage, invoke, succeeded
from h2o_llama import H2OConfig, H2OError, KVStats, Llama
from h2o_llama._internal import apart
from h2o_llama.bench import DENSE, Bench, Mode, Plan, Report, Sample, alone, measure, read_bandwidth
from h2o_llama.bench.alone import Alone
from h2o_llama.bench.case import Case
from h2o_llama.bench.prompt import prompt_tokens
from h2o_llama.bench.report import COLUMNS
from h2o_llama.bench.rows import Result as Measured
from h2o_llama.bench.rows import of_groups, rows
from h2o_llama.bench.tables import facts, tables
from h2o_llama.bench.token_bytes import weights_read
from pairwise import pairwise

SMALL = ["--chunk", "64", "--local", "16", "--heavy", "16", "--lookup", "8", "--threads", "1"]
TINY = [*SMALL, "--n-prompt", "64,130", "--depth", "130", "--n-gen", "3", "--repetitions", "2"]
SPARSE_NAMES = [f"{s} distant A4 L16 H16 B8 index" for s in ("single_pass", "two_phase")]
NAMES = [mode.name for mode in DENSE] + SPARSE_NAMES
GROUPS = ["dense, upstream products", "dense, own products", *SPARSE_NAMES]
GENERATION_NAMES = [mode.name for mode in DENSE] + [
    name for sparse in SPARSE_NAMES for name in (sparse, f"{sparse} decode memory")
]
SPARSE = Mode("sparse", "auto", H2OConfig(local_window=16, heavy_budget=16))


@pytest.fixture
def not_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process for each case, which tells its peak memory; and little memory is read for the bandwidth."""
    monkeypatch.setattr("h2o_llama.bench.bandwidth._LEAST_BYTES", 2**20)
    monkeypatch.setattr("h2o_llama.bench.bandwidth._BYTES_PER_THREAD", 2**18)
    alone = Alone(sample=Sample(1e-3, 1e-3, 1.0), stats=KVStats(), peak_rss=7)
    monkeypatch.setattr(measure, "measure_alone", lambda *_: alone)


def run(*arguments: str | Path) -> Result:
    return invoke("bench", *arguments)


def measured(
    mode: Mode, n_tokens: int, prefills: list[float], generations: list[float] | None = None, is_prompt: bool = True
) -> Measured:
    """Timings of a case with 1,000 bytes of K and V per position."""
    case = Case(mode, n_tokens, 0 if generations is None else 10, chunk_size=64, n_threads=1, n_gpu_layers=0)
    stats = KVStats(kv_bytes=1000 * case.n_ctx, score_bytes=1, memory_bytes=20, intra_bytes=300)
    result = Measured(case, is_prompt, stats, peak_rss=7)
    steps: list[Any] = generations or [None] * len(prefills)
    result.samples += [Sample(p, g, 1.0) for p, g in zip(prefills, steps, strict=True)]
    return result


# --- figures


def test_speeds_are_of_medians_and_ratios_over_the_better_dense_mode_of_that_length() -> None:
    flash, plain, *own = DENSE
    found = rows(
        [
            measured(flash, 100, [4.0, 1.0, 2.0]),
            measured(plain, 100, [1.0, 0.9, 9.0]),
            measured(own[0], 100, [0.8]),
            measured(own[1], 100, [0.5]),
            measured(SPARSE, 100, [0.5, 0.25, 0.1]),
            measured(flash, 200, [2.0, 4.0]),
            measured(SPARSE, 200, [1.0]),
            measured(SPARSE, 300, [1.0]),
            measured(flash, 300, []),
        ],
        weight_bytes=0,
        bandwidth=None,
    )
    figures = ("mode", "n_tokens", "n", "tokens_per_s", "over_dense", "over_own_dense")
    assert [tuple(row[name] for name in figures) for row in found] == [
        (flash.name, 100, 3, 50.0, 0.5, None),
        (plain.name, 100, 3, 100.0, 1.0, None),
        (own[0].name, 100, 1, 125.0, 1.25, None),
        (own[1].name, 100, 1, 200.0, 2.0, None),
        ("sparse", 100, 3, 400.0, 4.0, 2.0),
        (flash.name, 200, 2, pytest.approx(66.667, rel=1e-4), 1.0, None),
        ("sparse", 200, 1, 200.0, 3.0, None),
        ("sparse", 300, 1, 300.0, None, None),
    ]
    assert [(r["mode"], r["n_tokens"], r["tokens_per_s"]) for r in of_groups(found)][:3] == [
        ("dense, upstream products", 100, 100.0),
        ("dense, own products", 100, 200.0),
        ("sparse", 100, 400.0),
    ]
    assert found[0]["samples"] == [4.0, 1.0, 2.0]
    assert found[0]["kv_bytes"] == 1000 * 256
    assert (found[0]["state_bytes"], found[0]["peak_rss"]) == (321, 7)
    assert all(r["test"] == "prefill" and r["read_bytes"] is None for r in found)


def test_a_generated_token_reads_weights_and_the_keys_and_values_before_it() -> None:
    results = [measured(DENSE[0], 100, [1.0], [0.5]), measured(SPARSE, 100, [1.0], [0.25], is_prompt=False)]
    prefill, *generation = rows(results, weight_bytes=50_000, bandwidth=1e7)
    assert (prefill["test"], prefill["mode"]) == ("prefill", DENSE[0].name)
    assert [(r["test"], r["tokens_per_s"], r["over_dense"]) for r in generation] == [
        ("generation", 20.0, 1.0),
        ("generation", 40.0, 2.0),
    ]
    # One token is generated before the ten that are timed; each of these sees itself too.
    positions = np.mean([100 + 1 + i for i in range(1, 11)])
    assert [r["read_bytes"] for r in generation] == 2 * [50_000 + 1000 * positions]
    assert [r["of_bandwidth"] for r in generation] == pytest.approx([r["read_per_s"] / 1e7 for r in generation])
    assert generation[1]["read_per_s"] == 40.0 * generation[1]["read_bytes"]
    assert [r["of_bandwidth"] for r in rows(results, 0, None)] == 3 * [None]


def test_a_token_that_reads_memory_sets_reads_no_more_at_any_depth() -> None:
    """M = 12, B = 8, S = 64: at 201, the first that is timed, those and 10 of its chunk."""
    h2o = H2OConfig(local_window=4, heavy_budget=4, sink_tokens=4, lookup_budget=8, decode="memory")
    results = [measured(Mode("memory", "auto", h2o), n, [1.0], [1.0]) for n in (20, 200, 200 + 64)]
    found = [row["read_bytes"] for row in rows(results, 0, None) if row["test"] == "generation"]
    assert found == [1000 * (22 + 4.5), *2 * [1000 * (12 + 8 + 10 + 4.5)]]


def test_a_token_reads_the_index_of_keys() -> None:
    """4 bytes for each of the positions before its chunk, where some are not in the memory set."""
    h2o = H2OConfig(local_window=4, heavy_budget=4, sink_tokens=4, lookup_budget=8, decode="memory", retrieval="index")
    results = [measured(Mode("index", "auto", h2o), n, [1.0], [1.0]) for n in (20, 200)]
    for result in results:
        result.stats = replace(result.stats, index_bytes=4 * result.case.n_ctx)
    found = [row["read_bytes"] for row in rows(results, 0, None) if row["test"] == "generation"]
    assert found == [1000 * (22 + 4.5), 1000 * (12 + 8 + 10 + 4.5) + 4 * 192]


def test_weights_read_are_all_tensors_but_rows_that_are_looked_up_and_idle_experts() -> None:
    tensors = {"token_embd.weight": 1000, "blk.0.ffn_up.weight": 10, "blk.0.ffn_up_exps.weight": 800}
    assert weights_read(tensors, {"general.architecture": "llama"}) == 1810  # the embedding is the output layer
    moe = {"general.architecture": "moe", "moe.expert_count": "8", "moe.expert_used_count": "2"}
    assert weights_read({**tensors, "output.weight": 500, "position_embd.weight": 7}, moe) == 710


@pairwise("model_path")
def test_weight_bytes_are_those_of_the_file(model_path: Path) -> None:
    with Llama(model_path, n_ctx=64, h2o=None) as llm:
        expected = {tensor.name: tensor.n_bytes for tensor in GGUFReader(model_path).tensors}
        assert llm.model._handle.weight_bytes == expected


def test_bandwidth_is_of_bytes_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that ticks once a call, every read takes one second."""
    ticks = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr("h2o_llama.bench.bandwidth._LEAST_BYTES", 2**20)
    monkeypatch.setattr("h2o_llama.bench.bandwidth._BYTES_PER_THREAD", 2**18)
    assert read_bandwidth(2) == 2**20
    assert read_bandwidth(8) == 2**21


# --- what is measured


@pytest.fixture
def bench_of(request: pytest.FixtureRequest) -> Any:
    """`Bench` of the demo model; closed at the end."""

    def make(plan: Plan, **kwargs: Any) -> Bench:
        bench = Bench(h2o_llama.demo_model_path(), plan, **kwargs)
        request.addfinalizer(bench.close)
        return bench

    return make


@pytest.mark.usefixtures("not_alone")
def test_modes_take_turns_and_every_sample_reads_and_generates_the_same(
    bench_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[bool, int, int, bool]] = []
    evaluate = Llama.eval

    def spy(llm: Llama, tokens: Any, **kwargs: Any) -> None:
        calls.append((llm.h2o is None, llm.n_tokens, len(tokens), kwargs.get("decode", False)))
        evaluate(llm, tokens, **kwargs)

    modes = [DENSE[0], SPARSE]
    bench = bench_of(Plan(modes, [64], [128], n_gen=2, repetitions=2, chunk_size=64, n_threads=1))
    monkeypatch.setattr(Llama, "eval", spy)
    progress: list[tuple[str, int, int]] = []
    bench.run(lambda *step: progress.append(step))

    def steps(is_dense: bool) -> list[tuple[bool, int, int, bool]]:
        return [(is_dense, 0, 128, False), *((is_dense, 128 + i, 1, True) for i in range(3))]

    warm = [(True, 0, 64, False), (False, 0, 64, False)]
    assert calls[:6] == 3 * warm  # the first two are warm-ups
    assert calls[6:] == [(True, 0, 128, False), (False, 0, 128, False), *2 * [*steps(True), *steps(False)]]
    assert progress[-1] == ("128 tokens", 6, 6)
    assert [(r["test"], r["n_tokens"], r["n"]) for r in bench.rows()] == [
        *2 * [("prefill", 64, 2)],
        *2 * [("generation", 128, 2)],
    ]
    assert bench.bandwidth > 0


@pytest.mark.usefixtures("not_alone")
def test_what_is_slow_is_measured_once(bench_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ONCE_ABOVE", 0.0)
    bench = bench_of(Plan([SPARSE], [64], [64], n_gen=2, repetitions=3, chunk_size=64, n_threads=1))
    progress: list[tuple[str, int, int]] = []
    bench.run(lambda *step: progress.append(step))
    assert [row["n"] for row in bench.rows()] == [1, 1]
    assert progress[-1] == ("64 tokens", 1, 1)
    report = Report.of(bench, {"cpu": "a CPU", "date": "2026-01-01T00:00:00"})
    assert all("*" in table.lines[0][1] for table in list(tables(report))[:2])


def test_modes_of_each_length() -> None:
    """Dense attention is left out of longer prompts; a mode that only generates has no prefill."""
    plan = Plan([*DENSE, SPARSE], [64, 128], [], dense_max=64)
    assert [[case.mode for case in plan.cases(n)] for n in plan.lengths] == [[*DENSE, SPARSE], [SPARSE]]
    memory = replace(SPARSE, name="memory", only_generates=True)
    plan = Plan([SPARSE, memory], [64, 128], [128])
    assert [[case.mode for case in plan.cases(n)] for n in plan.lengths] == [[SPARSE], [SPARSE, memory]]


def test_peak_memory_is_that_of_the_mode_alone() -> None:
    """Attention weights of all pairs of a chunk and the prompt, which only dense attention without flash has."""
    with Llama(h2o_llama.demo_model_path(), n_ctx=64, h2o=None) as llm:
        tokens = prompt_tokens(llm, None, 2048)
    ballast = np.ones(2**25)  # 256 MB in this process
    path = str(h2o_llama.demo_model_path())
    flash, plain = (alone.measure_alone(Case(mode, 2048, 0, 1024, 1, 0), path, tokens) for mode in DENSE[:2])
    assert flash.stats.kv_bytes == plain.stats.kv_bytes == 2048 * 2048
    assert flash.peak_rss is not None
    assert plain.peak_rss is not None
    assert plain.peak_rss - flash.peak_rss > 4 * 6 * 1024 * 2048 / 2
    assert flash.peak_rss < ballast.nbytes


def test_a_process_that_ends_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(SPARSE, 64, 0, 64, 1, 0)
    with pytest.raises(H2OError, match="measures sparse at 64 tokens ended: .*there is no file missing.gguf"):
        alone.measure_alone(case, "missing.gguf", np.zeros(64, np.int32))
    killed = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    monkeypatch.setattr(apart, "python_command", lambda module: killed)
    with pytest.raises(H2OError, match="ended: signal 9; a process that takes too much memory"):
        alone.measure_alone(case, "missing.gguf", np.zeros(64, np.int32))


def test_a_process_imports_nothing_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pickle.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert apart.call_apart("test", os.getpid) != os.getpid()


def test_tokens_are_a_texts_or_drawn_where_there_is_no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_tokenizer(llm: Llama, text: bytes) -> list[int]:
        raise H2OError("this model has no tokenizer")

    with Llama(h2o_llama.demo_model_path(), n_ctx=64, h2o=None) as llm:
        np.testing.assert_array_equal(prompt_tokens(llm, b"abcdef", 4), llm.tokenize("abcd"))
        np.testing.assert_array_equal(prompt_tokens(llm, None, 500)[:100], prompt_tokens(llm, None, 100))
        with pytest.raises(ValueError, match="the text has 6 tokens, but 7 are needed"):
            prompt_tokens(llm, b"abcdef", 7)
        monkeypatch.setattr(Llama, "tokenize", no_tokenizer)
        drawn = prompt_tokens(llm, None, 10_000)
        np.testing.assert_array_equal(drawn[:100], prompt_tokens(llm, None, 100))
        counts = np.bincount(drawn, minlength=llm.n_vocab)
        assert counts.argmax() == 0
        assert counts[0] / counts[9] == pytest.approx(10, rel=0.3)
        with pytest.raises(H2OError, match="no tokenizer"):
            prompt_tokens(llm, b"abcdef", 4)


# --- the command


def test_from_end_to_end(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out, sheet, plots = tmp_path / "bench.json", tmp_path / "bench.csv", tmp_path / "plots"
    result = succeeded(run("demo", *TINY, "--json", out, "--csv", sheet, "--plot", plots))
    assert result.stderr == ""
    report = json.loads(out.read_text())
    tests = [("prefill", 64), ("prefill", 130), ("generation", 130)]
    assert [(r["test"], r["n_tokens"], r["mode"], r["n"]) for r in report["rows"]] == [
        (*test, name, 2) for test in tests for name in (NAMES if test[0] == "prefill" else GENERATION_NAMES)
    ]
    for row in report["rows"]:
        n = row["n_tokens"] if row["test"] == "prefill" else 3
        assert row["tokens_per_s"] == pytest.approx(n / np.median(row["samples"]))
        assert row["kv_bytes"] == 256 * 2048
    assert [mode["name"] for mode in report["plan"]["modes"]] == GENERATION_NAMES
    assert [mode["products"] for mode in report["plan"]["modes"][:5]] == [*2 * ["upstream"], *2 * ["own"], "auto"]
    assert report["plan"]["modes"][6]["h2o"]["schedule"] == "two_phase"
    assert report["plan"]["modes"][7]["h2o"]["decode"] == "memory"
    assert report["bandwidth"] > 0

    lines = list(csv.DictReader(io.StringIO(sheet.read_text())))
    assert list(lines[0]) == list(COLUMNS)
    for line, row in zip(lines, report["rows"], strict=True):
        assert line == {name: "" if row[name] is None else str(row[name]) for name in COLUMNS}

    found = result.stdout.split("| Prefill, tokens/s | 64 | 130 |\n| --- | --: | --: |\n")[1].splitlines()
    for name, text in zip(GROUPS, found[:4], strict=True):
        speeds = [row for row in of_groups(report["rows"]) if row["mode"] == name and row["test"] == "prefill"]
        assert text == f"| {name} | " + " | ".join(_cell(row) for row in speeds) + " |"
    titles = (
        "Generation after N tokens, tokens/s | 130",
        "A generated token reads | MB",
        "Peak memory of a process",
    )
    assert all(f"| {title}" in result.stdout for title in titles)
    written = [out, sheet, plots / "prefill.svg", plots / "generation.svg"]
    assert result.stdout.endswith("".join(f"Written: {path}\n" for path in written))
    assert all(path.read_text().lstrip().startswith("<?xml") for path in written[2:])


def _cell(row: dict[str, Any]) -> str:
    own = "" if row["over_own_dense"] is None else f"; {row['over_own_dense']:.2f}"
    return f"{row['tokens_per_s']:,.0f} ({row['over_dense']:.2f}{own})"


@pytest.mark.usefixtures("not_alone")
def test_files_can_go_to_standard_output_alone() -> None:
    options = [*SMALL, "--schedule", "single_pass", "--n-prompt", "64", "--depth", "", "-r", "1", "--dense-max", "0"]
    (by_json,) = Report.from_json(run("demo", *options, "--json", "-").stdout).rows
    (by_csv,) = csv.DictReader(io.StringIO(run("demo", *options, "--csv", "-").stdout))
    for row in (by_json, by_csv):
        assert (row["mode"], row["over_dense"] or None) == (SPARSE_NAMES[0], None)


def test_a_busy_machine_is_told() -> None:
    report = Report({"cpu": "a CPU", "date": "2026"}, {"desc": "m", "file": "f"}, {}, None, 0.5, [])
    report.plan.update(n_threads=2, n_gpu_layers=0, chunk_size=64, repetitions=3)
    assert "other processes left as little as 50%" in facts(report)
    assert "Doubtful" not in facts(replace(report, cpu_share=0.95))


@pytest.mark.usefixtures("not_alone")
@pytest.mark.parametrize(
    ("error", "code", "message"), [(KeyboardInterrupt(), 130, ""), (H2OError("no more"), 1, "h2o-llama: no more\n")]
)
def test_what_was_measured_before_ctrl_c_or_an_error_is_printed(
    error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = []
    measure_case = Case.measure

    def fail(case: Case, *args: Any) -> Sample:
        if case.n_tokens == 130 and len(samples) == 16:
            raise error
        samples.append(measure_case(case, *args))
        return samples[-1]

    monkeypatch.setattr(Case, "measure", fail)
    result = run("demo", *TINY, "--depth", "", "--json", "-")
    assert result.exit_code == code
    assert result.stderr.removeprefix("Aborted.\n") == message
    counts = [(r["n_tokens"], r["n"]) for r in Report.from_json(result.stdout).rows]
    assert counts == [*6 * [(64, 2)], *4 * [(130, 1)]]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--n-prompt", "0"], "n_prompt must be an integer of at least 1, got 0"),
        (["--n-prompt", "", "--depth", ""], "there is nothing to measure"),
        (["--depth", "600000"], "the text has 524,288 tokens, but 600,033 are needed"),
        (["--local", "65"], "local_window must be at most chunk_size"),
        (["--schedule", "nonsense"], "schedule must be one of"),
        (["--threads", "1000"], "n_threads must be an integer from 1 to 512"),
        (["--file", "missing.txt"], "missing.txt: No such file"),
        (["--json", "missing/bench.json"], "missing: No such file"),
        (["--csv", "missing/bench.csv"], "missing: No such file"),
    ],
)
def test_errors_are_one_line_before_anything_is_measured(
    options: list[str], match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Bench, "run")
    result = run("demo", *SMALL, *options)
    assert_one_line_error(result, match)


def test_what_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "physical_memory", lambda: 3 * 2048 * 65_536)
    result = run("demo", *SMALL, "--n-prompt", "65536", "--depth", "")
    assert_one_line_error(result, "65,536 tokens in 6 modes need 0.8 GiB")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--n-prompt", "many"], "--n-prompt must be numbers"),
        (["--depth", "1k"], "--depth must be numbers"),
        (["--n-gen", "0"], "--n-gen"),
        (["--repetitions", "0"], "--repetitions"),
        (["--json", "-", "--csv", "-"], "cannot both go to standard output"),
    ],
)
def test_wrong_usage_exits_with_2(options: list[str], match: str) -> None:
    result = run("demo", *SMALL, *options)
    assert_wrong_usage(result, match)


def test_a_model_that_h2o_cannot_read_is_one_line(unsupported_memory_model: Path) -> None:
    assert_one_line_error(run(unsupported_memory_model, *TINY), "H2O")
