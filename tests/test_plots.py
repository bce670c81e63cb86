"""The plots: what they draw, read back from the figures; pyplot is left alone."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spies import record_calls

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from h2o_llama.inspect import plots
from h2o_llama.inspect.plots.style import line_style


def perplexity_row(
    setting: str, *, scorer: str = "sum", H: int = 64, B: int = 0, memory: str | None = None, n: int = 512
) -> Any:
    edges = [0, 128, 256, n]
    h2o: dict[str, Any] = {"local_window": 64, "heavy_budget": H, "sink_tokens": 0, "lookup_budget": B}
    h2o |= {"schedule": "single_pass", "scorer": scorer}
    return {
        "task": "perplexity",
        "setting": setting,
        "model": "m",
        "n_tokens": n,
        "h2o": h2o,
        "memory": memory,
        "nats_added": 4 / (64 + H + B),
        "over_windows": {"nats_added_se": 0.001},
        "buckets": [
            {"start": a, "stop": b, "ppl": 5.0 + i, "ppl_dense": 4.0 + i, "kld_mean": 0.1 * i}
            for i, (a, b) in enumerate(pairwise(edges))
        ],
    }


def drawn(monkeypatch: pytest.MonkeyPatch, rows: list[Any], directory: Path) -> dict[str, Figure]:
    """The figures of `eval_plots`, by file name."""
    saved = record_calls(monkeypatch, Figure, "savefig")
    paths = plots.eval_plots(rows, directory)
    figures = {call["fname"].name: call["self"] for call in saved}
    assert [path.name for path in paths] == list(figures)
    assert all(path.read_text().lstrip().startswith("<?xml") for path in paths)
    return figures


# --- rows of a benchmark


def test_speed_has_a_line_per_mode_and_a_file_per_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def row(test: str, mode: str, n: int, speed: float) -> dict[str, Any]:
        return {"test": test, "mode": mode, "n_tokens": n, "tokens_per_s": speed}

    saved = record_calls(monkeypatch, Figure, "savefig")
    prefill = [row("prefill", "a", 8192, 50.0), row("prefill", "a", 1024, 70.0), row("prefill", "b", 1024, 90.0)]
    paths = plots.bench_plots([*prefill, row("generation", "a", 1024, 7.0)], tmp_path / "new")
    assert [path.name for path in paths] == ["prefill.svg", "generation.svg"]
    assert [_points(call["self"]) for call in saved] == [
        {"a": [(1024, 70.0), (8192, 50.0)], "b": [(1024, 90.0)]},
        {"a": [(1024, 7.0)]},
    ]
    assert [path.name for path in plots.bench_plots(prefill, tmp_path)] == ["prefill.svg"]


def _points(figure: Figure) -> dict[str, list[tuple[float, float]]]:
    lines = figure.axes[0].lines
    return {str(line.get_label()): list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in lines}


# --- rows of an evaluation


def test_perplexity_has_a_line_per_setting_beside_dense(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [perplexity_row("a"), perplexity_row("b", scorer="distant")]
    figures = drawn(monkeypatch, rows, tmp_path / "new" / "folder")
    assert list(figures) == ["perplexity-512.svg"]  # one memory size is no sweep
    top, bottom = figures["perplexity-512.svg"].axes
    assert {str(line.get_label()): line.get_ydata().tolist() for line in top.lines} == {
        "dense": [4, 5, 6],
        "a": [5, 6, 7],
        "b": [5, 6, 7],
    }
    assert [label.get_text() for label in top.get_xticklabels()] == ["0", "128", "256", "512"]
    assert len(bottom.lines) == 2


def test_sweep_is_against_the_number_of_positions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [
        perplexity_row("a", H=192),
        perplexity_row("b", H=64),
        perplexity_row("c", H=64, scorer="distant"),
        perplexity_row("d", H=64, memory="upper_bound"),
        perplexity_row("e", H=0),
        perplexity_row("f", H=64, n=1024),
        perplexity_row("g", H=64, B=128),
        perplexity_row("h", H=64, B=64),
    ]
    figures = drawn(monkeypatch, rows, tmp_path)
    assert list(figures) == ["perplexity-512.svg", "sweep-512.svg", "perplexity-1024.svg"]
    (axes,) = figures["sweep-512.svg"].axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == [
        "single pass sum",
        "single pass distant",
        "single pass upper bound",
        "single pass window",
        "single pass sum, lookup",
    ]
    for container, sizes in ((axes.containers[0], [128, 256]), (axes.containers[-1], [192, 256])):
        line = container.lines[0]
        assert line.get_xdata().tolist() == sizes
        np.testing.assert_allclose(line.get_ydata().astype(float), [4 / size for size in sizes])


def test_other_rows_draw_nothing(tmp_path: Path) -> None:
    assert plots.eval_plots([{"task": "other", "setting": "a", "model": "m"}], tmp_path) == []


def test_rows_of_two_models_are_refused(tmp_path: Path) -> None:
    rows = [perplexity_row("a"), perplexity_row("a") | {"model": "other"}]
    with pytest.raises(ValueError, match="one model, got m, other"):
        plots.eval_plots(rows, tmp_path)


# --- matplotlib


def test_lines_differ_without_colour() -> None:
    styles = [line_style(i) for i in range(42)]
    assert len({(str(style["linestyle"]), style["marker"]) for style in styles}) == 42


def test_pyplot_is_left_alone_and_a_missing_matplotlib_is_named() -> None:
    run = [sys.executable, "-c"]
    used = "import h2o_llama.inspect.plots, sys; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([*run, used], check=True)
    without = "import sys; sys.modules['matplotlib'] = None\nimport h2o_llama.inspect.plots"
    done = subprocess.run([*run, without], capture_output=True, text=True)
    assert 'pip install "h2o-llama[plot]"' in done.stderr.splitlines()[-1]
