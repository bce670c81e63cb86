"""`python benchmarks/codec_sizes.py`: figures from given K and V, and the command from end to end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codec_sizes import app
from command_line import assert_wrong_usage, invoke, succeeded
from h2o_llama import Llama, codec, demo_model_path
from kv_codec.measure import PREDICTORS, VIEWS, CodecPlan, Tensor, measure, read_tensors
from kv_codec.tables import front, total

PLAN = CodecPlan(n_tokens=100, chunk=16, group=3, repetitions=1)
TEXT = b"def f(x):\n    return x + 1\n" * 20
CASES = Counter([*((view, "auto") for view in VIEWS), *(("groups", predictor) for predictor in PREDICTORS)])


def tensors() -> list[Tensor]:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((100, 32)).astype(np.float16)
    return [Tensor(0, "K", rows), Tensor(0, "V", rows[np.arange(100) % 10]), Tensor(3, "K", np.zeros_like(rows))]


def test_every_tensor_has_a_row_for_each_view_and_predictor() -> None:
    steps: list[tuple[str, int, int]] = []
    found = measure(tensors(), PLAN, lambda *step: steps.append(step))
    for layer, part in ((0, "K"), (0, "V"), (3, "K")):
        rows = [r for r in found if (r["layer"], r["part"]) == (layer, part)]
        assert Counter((r["view"], r["predictor"]) for r in rows) == CASES
    assert len(found) == 3 * CASES.total()
    assert steps[-1] == ("K and V", 3, 3)


def test_figures_are_those_of_the_frames() -> None:
    found = measure(tensors(), PLAN)
    for row in found:
        values = next(t.values for t in tensors() if (t.layer, t.part) == (row["layer"], row["part"]))
        n = {"aggregate": 100, "groups": 48, "chunks": 16, "rows": 48}[row["view"]]
        unit_rows = 1 if row["view"] == "rows" else None
        frames = [
            codec.encode(values[i : i + n], predictor=row["predictor"], unit_rows=unit_rows) for i in range(0, 100, n)
        ]
        assert (row["raw_bytes"], row["stored_bytes"]) == (6400, sum(map(len, frames)))
        assert row["ratio"] == 6400 / row["stored_bytes"]
        assert row["encode_per_s"] > 0 < row["decode_per_s"]
        assert row["coded_frames"] == sum(codec.inspect(frame).is_coded for frame in frames)
        assert all(sum(p["predictors"].values()) == len(frames) for p in row["planes"])
    equal = [r for r in found if (r["layer"], r["part"], r["predictor"]) == (0, "V", "auto")]
    assert {(r["view"], r["stored_rows"]) for r in equal} == {
        ("aggregate", 10),
        ("groups", 10 + 10 + 4),
        ("chunks", 64),
        ("rows", 10 + 10 + 4),
    }


def test_totals_are_of_bytes_and_the_front_is_two_layers() -> None:
    rows = [{"layer": layer, "raw_bytes": 10, "stored_bytes": n} for layer, n in ((5, 10), (2, 4), (7, 1), (2, 6))]
    assert total(rows) == 40 / 21
    assert [r["stored_bytes"] for r in front(rows)] == [10, 4, 6]


@pytest.mark.parametrize("type_", ["f16", "bf16", "f32"])
def test_tensors_are_what_the_cache_holds(type_: Any) -> None:
    """After conversion back to float32, the package's own numbers."""
    plan = CodecPlan(n_tokens=200, type=type_)
    found = read_tensors(demo_model_path(), TEXT, plan, n_threads=1, n_gpu_layers=0)
    with Llama(demo_model_path(), n_ctx=200, n_batch=4096, n_threads=1, type_k=type_, type_v=type_) as llm:
        llm.eval(llm.tokenize(TEXT)[:200])
        assert [(t.layer, t.part) for t in found] == [(layer, part) for layer in llm.kv.layers for part in "KV"]
        for layer, part, values in found:
            expected = llm.kv.keys(layer) if part == "K" else llm.kv.values(layer)
            floats = (values.astype(np.uint32) << 16).view(np.float32) if type_ == "bf16" else values.astype(np.float32)
            np.testing.assert_array_equal(floats, expected.transpose(1, 0, 2).reshape(200, -1))


def test_from_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    out = tmp_path / "codec.json"
    options = ["--file", tmp_path / "text", "--n-tokens", "160", "--chunk", "32", "--group", "2", "-r", "1"]
    result = succeeded(invoke("demo", *options, "--json", out, app=app))
    report = json.loads(out.read_text())
    assert report["plan"] == {"n_tokens": 160, "chunk": 32, "group": 2, "type": "f16", "repetitions": 1}
    rows = report["rows"]
    for view in VIEWS:
        found = [r for r in rows if (r["view"], r["predictor"]) == (view, "auto")]
        line = next(line for line in result.stdout.splitlines() if line.startswith(f"| {view} |"))
        assert line.split(" | ")[6] == f"{total(found):.3f}"
        assert line.split(" | ")[3] == f"{total(front(found)):.3f}"
        keys = [r for r in found if r["part"] == "K"]
        assert line.split(" | ")[4] == f"{total(keys):.3f}"
    titles = ("Ratio |", "Ratio of layer |", "Plane |", "Predictor |")
    assert all(f"| {title}" in result.stdout for title in titles)
    assert all(f"| {name} |" in result.stdout for name in ("auto", *PREDICTORS))
    assert result.stdout.endswith(f"Written: {out}\n")

    printed = invoke("demo", *options, "--json", "-", app=app).stdout
    assert json.loads(printed)["plan"] == report["plan"]


def test_bad_options(tmp_path: Path) -> None:
    assert_wrong_usage(invoke("demo", "--chunk", "0", app=app), "--chunk")
    assert_wrong_usage(invoke("demo", "--type", "q8_0", app=app), "--type")
    (tmp_path / "text").write_bytes(b"short")
    result = invoke("demo", "--file", tmp_path / "text", app=app)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the text has 5 tokens, but 4,096 are needed" in str(result.exception)
