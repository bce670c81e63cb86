"""Settings, and runs over many settings that can be continued."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from compare import case
from h2o_llama import H2OConfig, Llama
from h2o_llama.eval import Continuation, Perplexity, Ruler, Setting, evaluate, sweep
from h2o_llama.eval._tasks import append_rows, read_rows
from inputs import random_tokens
from spies import record_calls

S = 64
N = 256
PLAIN: dict[str, Any] = {"scorer": ["sum"], "lookup_budget": [0]}
SETTINGS = sweep(local_window=[8], heavy_budget=[4, 8], sink_tokens=[0], **PLAIN)
TEXT = bytes(random_tokens(N + 64, n_vocab=128))


def measure(path: Path, settings: list[Setting] = SETTINGS, **arguments: Any) -> list[dict[str, Any]]:
    given: dict[str, Any] = {"text": TEXT, "n_tokens": [N], "tasks": [Perplexity()], "chunk_size": S, "n_threads": 1}
    return evaluate(path, settings, **(given | arguments))


# --- settings


def test_names_of_a_sweep() -> None:
    """Of what there is to choose: no setting is there twice."""
    for arguments, names in [
        (
            {"scorer": ["sum", "distant"]},
            ["sum L8 H8", "distant L8 H8"],
        ),
        (
            {"lookup_budget": [0, 16], "retrieval": ["ngrams", "index"]},
            ["distant L8 H8", "distant L8 H8 B16", "distant L8 H8 B16 index"],
        ),
        (
            {"heavy_budget": [0], "scorer": ["sum", "distant"], "lookup_budget": [0, 16]},
            ["window L8", "window L8 B16 index"],
        ),
        ({"local_window": [8, 8]}, ["distant L8 H8"]),
    ]:
        with case(arguments=arguments):
            given: dict[str, Any] = {"local_window": [8], "heavy_budget": [8], "sink_tokens": [0], "lookup_budget": [0]}
            settings = sweep(**(given | arguments))
            assert [s.name for s in settings] == [f"single_pass {name}" for name in names]
            assert [s.h2o.has_key_index for s in settings if s.h2o] == ["index" in name for name in names]


# --- rows and files


def test_runs_that_add_to_one_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"

    def add(run: int) -> None:
        for i in range(20):
            append_rows(path, [{"task": "t", "run": run, "i": i}])

    threads = [threading.Thread(target=add, args=(run,)) for run in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_rows(path)) == 80


def test_a_second_run_measures_only_what_is_missing(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other options, rows are other rows."""
    path = tmp_path / "rows.json"
    settings = [Setting.of(H2OConfig(local_window=8, heavy_budget=8, dense_layers=n)) for n in (0, 1, 2)]
    first = measure(tiny_model, settings[:1], json_file=path)
    measured = record_calls(monkeypatch, Perplexity, "measure")
    rows = measure(tiny_model, settings, json_file=path)
    assert [s.name for call in measured for s in call["settings"]] == [s.name for s in settings[1:]]
    assert [row["h2o"]["dense_layers"] for row in rows] == [[], [0], [0, 1]]
    assert rows[:1] == first
    assert measure(tiny_model, settings, json_file=path) == json.loads(path.read_text()) == rows
    assert len(measured) == 1
    changes: list[dict[str, Any]] = [{"text": TEXT[1:]}, {"seed": 1}, {"chunk_size": 32}, {"n_tokens": [192]}]
    for change in (*changes, {"tasks": [Continuation(20)]}):
        with case(change=change):
            rows += measure(tiny_model, settings[:1], json_file=path, **change)
            assert json.loads(path.read_text()) == rows


def test_finished_rows_survive_a_failure(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr(Continuation, "measure", fail)
    path = tmp_path / "rows.json"
    with pytest.raises(RuntimeError, match="power cut"):
        measure(tiny_model, json_file=path, tasks=[Perplexity(), Continuation(20)])
    assert [row["task"] for row in json.loads(path.read_text())] == ["perplexity"] * 2
    assert [p.name for p in tmp_path.iterdir()] == ["rows.json"]


@pytest.mark.parametrize("content", [b" ", b'[{"name": "x"}]', b"\xff\xfe"])
def test_a_file_of_something_else_is_left_alone(content: bytes, tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="precious is not a list of rows"):
        measure(tiny_model, json_file=path)
    assert path.read_bytes() == content


def test_bad_arguments_fail_before_any_work(tiny_model: Path) -> None:
    for change, match in [
        ({"settings": []}, "at least one, each with its own name"),
        ({"settings": SETTINGS + SETTINGS}, "its own name"),
        ({"settings": [Setting("dense", None)]}, "leave it out"),
        ({"n_tokens": [100]}, "at least two chunks, got 100 with chunks of 64"),
        ({"n_tokens": [N, 2 * N]}, "the text has 320 tokens, but a window needs 512"),
        ({"tasks": [Continuation(66)]}, "the text has 320 tokens, but a window needs 322"),
        ({"chunk_size": 1}, "chunk_size"),
        ({"tasks": [Perplexity(0)]}, "windows must be an integer of at least 1"),
        ({"tasks": [Continuation(0)]}, "length must be an integer of at least 2"),
        ({"tasks": [Ruler("nonsense")]}, "ruler must be one of 'niah_single_1'"),
        ({"tasks": [Ruler("vt", samples=0)]}, "samples must be an integer of at least 1"),
        ({"tasks": [Ruler("vt", dense_tail=-1)]}, "dense_tail must be an integer of at least 0"),
        ({"tasks": [Ruler("vt")]}, "256 tokens are too short for RULER's 'vt': it takes at least"),
    ]:
        with case(change=change, match=match), pytest.raises(ValueError, match=match):
            measure(tiny_model, progress=lambda *_: pytest.fail("work"), **change)


def test_an_open_model_is_used_and_stays_open(tiny_model: Path) -> None:
    with Llama(tiny_model, n_ctx=256, h2o=None) as llm:
        rows = evaluate(llm, SETTINGS, text=TEXT, n_tokens=[N], chunk_size=S, n_threads=1, tasks=[Perplexity()])
        llm.eval([1, 2, 3])
    assert rows[0]["kld_mean"] == measure(tiny_model)[0]["kld_mean"]
