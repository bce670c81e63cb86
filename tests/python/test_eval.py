"""`h2o_llama.eval`: perplexity against single calls, sweeps, and the command."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h2o_llama
from chats import log_softmax
from command_line import h2o_set, invoke, succeeded
from compare import case
from h2o_llama import H2OConfig, Llama
from h2o_llama._demo.document import standard_library_text
from h2o_llama.eval import Setting, _losses, evaluate, sweep
from inputs import random_tokens

S = 64
N = 256
SPARSE = Setting("sparse", H2OConfig(chunk_size=S, local_window=8, heavy_budget=8, lookup_budget=0))
# 2 windows of N, and a rest between them; a token per byte.
TEXT = bytes(random_tokens(2 * N + 70, n_vocab=128))


def measure(path: Path | Llama, *settings: Setting, **arguments: Any) -> list[dict[str, Any]]:
    given: dict[str, Any] = {"text": TEXT, "n_tokens": [N], "n_threads": 1}
    return list(evaluate(path, settings, **(given | arguments)))


def open_llama(path: Path, h2o: H2OConfig | None, n_ctx: int = N) -> h2o_llama.Llama:
    return h2o_llama.Llama(path, n_ctx=n_ctx, n_ubatch=S, n_threads=1, h2o=h2o)


# --- perplexity


def test_losses_of_huge_logits_are_finite() -> None:
    dense = np.array([[3e4, -3e4, 0.0]], dtype=np.float32)
    (got,) = _losses.compare(dense, [dense[:, ::-1]], np.array([0], dtype=np.int32))
    assert got["nats"][0] == pytest.approx(3e4)
    assert got["kld"][0] == pytest.approx(3e4)


def test_perplexity_is_that_of_single_calls(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_losses, "_BLOCK", 5 * 260)  # five rows at a time
    assert _losses.pieces(19, 8, most=5) == [(0, 4), (4, 8), (8, 12), (12, 16), (16, 19)]
    (row,) = measure(tiny_model, SPARSE)
    tokens = [np.frombuffer(part, np.uint8) for part in (TEXT[:N], TEXT[-N:])]
    nats: dict[str, list[float]] = {"sparse": [], "dense": []}
    tops: dict[str, list[int]] = {"sparse": [], "dense": []}
    divergences = []
    for window in tokens:
        rows = {}
        for name, h2o in (("sparse", SPARSE.h2o), ("dense", None)):
            with open_llama(tiny_model, h2o) as llm:
                assert llm.tokenize(window.tobytes()) == window.tolist()
                llm.eval(window, logits="all")
                rows[name] = log_softmax(llm.logits)
            nats[name] += (-rows[name][np.arange(N - 1), window[1:]]).tolist()
            tops[name] += rows[name][N // 2 : -1].argmax(axis=1).tolist()
        p, q = rows["dense"][N // 2 : -1], rows["sparse"][N // 2 : -1]
        divergences += (np.exp(p) * (p - q)).sum(axis=1).tolist()
    scored = {name: np.reshape(values, (2, N - 1))[:, N // 2 :] for name, values in nats.items()}

    assert (row["windows"], row["n_scored"]) == (2, 2 * (N // 2 - 1))
    assert row["ppl"] == pytest.approx(math.exp(scored["sparse"].mean()), rel=1e-4)
    assert row["ppl_dense"] == pytest.approx(math.exp(scored["dense"].mean()), rel=1e-4)
    added = (scored["sparse"] - scored["dense"]).mean(axis=1)
    assert row["nats_added"] == pytest.approx(added.mean(), rel=1e-3)
    kld = np.reshape(divergences, (2, -1)).mean(axis=1)
    for name, of_windows in (("nats_added", added), ("kld", kld)):
        over_windows = row["over_windows"]
        assert over_windows[f"{name}_by_window"] == pytest.approx(of_windows.tolist(), abs=1e-5)
        assert over_windows[name] == pytest.approx(of_windows.mean(), abs=1e-5)
        assert over_windows[f"{name}_se"] == pytest.approx(abs(of_windows[0] - of_windows[1]) / 2, abs=1e-5)
    assert row["kld_mean"] == pytest.approx(np.mean(divergences), rel=1e-3)
    assert row["same_top"] == pytest.approx(np.mean(np.equal(tops["sparse"], tops["dense"])))
    assert row["kld_mean"] > 0.01

    assert row["first_chunk"]["kld"] < 1e-5  # it has no memory set: it is dense


# --- sweeps


def test_names_of_a_sweep() -> None:
    """Of what there is to choose: no setting is there twice."""
    base = "balanced local_window=8 heavy_budget={} sink_tokens=0 lookup_budget={}"
    few, many = base.format(8, 0), base.format(8, 16)
    for arguments, names in [
        ({"scorer": ["sum", "distant"]}, [f"{few} scorer=sum", few]),
        ({"lookup_budget": [0, 16]}, [few, many]),
        ({"heavy_budget": [0], "scorer": ["sum", "distant"]}, [base.format(0, 0).replace("heavy_budget=0 ", "")]),
        ({"local_window": [8, 8]}, [few]),
    ]:
        with case(arguments=arguments):
            given: dict[str, Any] = {"local_window": [8], "heavy_budget": [8], "sink_tokens": [0], "lookup_budget": [0]}
            settings = sweep(**(given | arguments))
            assert [sorted(s.name.split()) for s in settings] == [sorted(name.split()) for name in names]


def test_bad_arguments_fail_before_any_work(tiny_model: Path) -> None:
    for settings, change, match in [
        ([], {}, "at least one, each with its own name"),
        ([SPARSE, SPARSE], {}, "its own name"),
        ([Setting("dense", None)], {}, "leave it out"),
        ([SPARSE, Setting("other", H2OConfig())], {}, r"chunks of one size, got \[64, 1024\]"),
        ([SPARSE], {"n_tokens": [100]}, "at least two chunks, got 100 with chunks of 64"),
        ([SPARSE], {"n_tokens": [N, 4 * N]}, "the text has 582 tokens, but a window needs 1,024"),
        ([SPARSE], {"windows": 0}, "windows must be an integer of at least 1"),
    ]:
        with case(match=match), pytest.raises(ValueError, match=match):
            measure(tiny_model, *settings, progress=lambda *_: pytest.fail("work"), **change)


def test_an_open_model_is_used_and_stays_open(tiny_model: Path) -> None:
    with Llama(tiny_model, n_ctx=256, h2o=None) as llm:
        (row,) = measure(llm, SPARSE)
        llm.eval([1, 2, 3])
    assert row["kld_mean"] == measure(tiny_model, SPARSE)[0]["kld_mean"]


# --- the command

SMALL = h2o_set(chunk_size=64, local_window=16, heavy_budget=16, scorer="sum", sink_tokens=0, lookup_budget=0)
SMALL += ["--n-tokens", "256", "--threads", "1"]


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.py"
    path.write_bytes(standard_library_text(700))
    return path


def test_from_end_to_end(text_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    command = ["eval", "demo", "--file", text_file, *SMALL, *h2o_set(heavy_budget="16,32")]
    command += ["--json", out]
    result = succeeded(invoke(*command))
    assert result.stderr == ""
    rows = json.loads(out.read_text())
    base = "balanced local_window=16 heavy_budget={} sink_tokens=0 scorer=sum lookup_budget=0"
    names = [base.format(16), base.format(32)]
    assert [row["setting"] for row in rows] == names
    assert f"On this text '{names[0]}' loses" in result.stdout.replace("\n", " ")
    title = f"Perplexity of 2 × 256 tokens of {text_file}, S 64, {rows[0]['model']} ({rows[0]['file']})"
    assert title in result.stdout.replace("\n", " ")

    narrow = succeeded(invoke(*command, columns=80)).stdout
    assert max(len(line) for line in narrow.splitlines() if "Written" not in line) <= 80
    assert "…" not in narrow
