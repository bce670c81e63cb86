"""The benchmarks: a template gets what it uses from its script, and the race does its sums."""

from __future__ import annotations

import ast
import importlib
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, meta

from h2o_llama import demo_model_path
from h2o_llama.demo.document import standard_library_text

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_the_template_gets_what_it_uses() -> None:
    calls = (
        node for node in ast.walk(ast.parse((BENCHMARKS / "performance.py").read_text())) if isinstance(node, ast.Call)
    )
    renders = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "render"]
    (given,) = ({keyword.arg for keyword in call.keywords} for call in renders)
    environment = Environment()
    environment.filters |= dict.fromkeys(("thousands", "nats"), str)
    used = meta.find_undeclared_variables(environment.parse((BENCHMARKS / "performance.md.j2").read_text()))
    assert used == given


# --- the race


FAKE = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS / "race")!r})
import numpy as np
from worker import main

class Fake:
    version = "fake 1"

    def __init__(self, job):
        self.options = job["options"]
        if self.options.get("fails"):
            raise RuntimeError("no such weights")

    def speed(self, ids, n_gen):
        return self.options["s"] * len(ids), self.options["token_s"] * n_gen

    def logprobs(self, ids, job):
        logprobs = np.log(np.full((len(ids), 4), self.options["p"]))
        logprobs[np.arange(len(ids) - 1), ids[1:]] = np.log(1 - 3 * self.options["p"])
        np.save(job["logprobs"], logprobs[job["first"] : job["stop"]])

main(Fake)
"""


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module benchmarks/peers.py."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("peers")


def test_the_race_takes_the_faster_variant_and_tells_why_a_peer_is_missing(peers: Any, tmp_path: Path) -> None:
    program = tmp_path / "fake.py"
    program.write_text(FAKE)
    modes = {"on": {"s": 0.5, "token_s": 1, "p": 0.1}, "off": {"s": 0.25, "token_s": 2, "p": 0.2}}
    sparse = {"": {"s": 0.125, "token_s": 0.5, "p": 0.2}}
    python = sys.executable
    everyone = [
        peers.Peer("dense", program, python, modes),
        peers.Peer("sparse", program, python, sparse, dense="dense"),
        peers.Peer("unread", program, python, {"": {"fails": True}}),
        peers.Peer("not there", program, str(tmp_path / "python")),
        peers.Peer("left out", program, None),
    ]
    ids = [i % 4 for i in range(300)]
    race = peers.Race("model.gguf", ids, [200, 300], n_gen=8, n_threads=1, repetitions=2, n_positions=50)
    rows = list(race.run(everyone))
    assert [(row["n_tokens"], row["peer"]) for row in rows] == [(n, peer.name) for n in (200, 300) for peer in everyone]
    found = {row["peer"]: row for row in rows[5:]}
    dense, sparse_row = found["dense"], found["sparse"]
    assert (dense["variant"], dense["first_s"], dense["tokens_per_s"], dense["token_s"]) == ("off", 75.0, 4.0, 8)
    assert (len(dense["samples"]["on"]), dense["version"], dense["reason"]) == (2, "fake 1", None)
    assert dense["kl"] is None
    # 0.7, 0.1, 0.1, 0.1 against 0.4, 0.2, 0.2, 0.2
    assert sparse_row["kl"] == pytest.approx(0.7 * math.log(7 / 4) - 0.3 * math.log(2))
    assert sparse_row["loss"] == pytest.approx(math.log(7 / 4))
    assert sparse_row["dense_nats"] == pytest.approx(-math.log(0.7))
    assert [found[name]["first_s"] for name in ("unread", "not there", "left out")] == 3 * [None]
    machine = {"cpu": "a CPU", "date": "2026-01-01T00:00:00"}
    text = peers.report({"machine": machine, **race.settings, "rows": rows})
    assert "| dense, off | 75.00 | 4 | 8000.0 |" in text
    assert "- unread: RuntimeError: no such weights\n- not there: " in text
    assert text.endswith("- left out: not asked for")


def test_h2o_takes_part_in_the_race(peers: Any) -> None:
    """Of the demo model, in chunks of 64: what is generated is timed, and what is lost is little but not nothing."""
    program = peers.PROGRAMS / "run_h2o.py"
    h2o = {"": {"h2o": {"chunk_size": 64}}}
    entrants = [
        peers.Peer("dense", program, sys.executable, peers.OWN),
        peers.Peer("H2O", program, sys.executable, h2o, "dense"),
    ]
    ids = list(standard_library_text(600))
    rows = list(peers.Race(str(demo_model_path()), ids, [500], 2, 1, 1, 200).run(entrants))
    assert all(row["first_s"] > 0 and row["token_s"] > 0 and row["reason"] is None for row in rows)
    assert 1e-5 < rows[1]["kl"] < 0.5
