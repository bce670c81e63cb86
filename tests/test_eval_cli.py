"""`h2o-llama eval` from end to end."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import Result

from command_line import h2o_set, invoke, succeeded
from h2o_llama._cli import sweeps
from h2o_llama._demo.document import standard_library_text
from h2o_llama.eval._subject import halves

PLAIN = h2o_set(scorer="sum", sink_tokens=0, lookup_budget=0)
SMALL = [*h2o_set(chunk_size=64, local_window=16, heavy_budget=16), *PLAIN, "--n-tokens", "256", "--threads", "1"]


def run(*arguments: str | Path) -> Result:
    return invoke("eval", *arguments)


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.py"
    path.write_bytes(standard_library_text(700))
    return path


def test_from_end_to_end(text_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    command: list[str | Path] = ["demo", "--file", text_file, *SMALL, *h2o_set(heavy_budget="16,32"), "--window"]
    command += ["--continuation", "32", "--json", out]
    result = succeeded(run(*command))
    assert result.stderr == ""
    rows = json.loads(out.read_text())
    names = ["single_pass sum L16 H16", "single_pass sum L16 H32", "single_pass window A4 L28"]
    assert [row["setting"] for row in rows if row["task"] == "perplexity"] == names
    assert [row["setting"] for row in rows if row["task"] == "continuation"] == [n for n in names for _ in range(2)]
    for row in rows:
        assert row["setting"] in result.stdout
        assert f"{row['ppl']:.3f}" in result.stdout
        assert f"{row['ppl_dense']:.3f}" in result.stdout
        for means in (row["over_windows"], row.get("first_chunk", row["over_windows"])):
            assert (
                f"{means['nats_added']:+.4f} ± {means['nats_added_se']:.4f}".replace("-0.0000", "+0.0000")
                in result.stdout
            )
            assert f"{means['kld']:.4f} ± {means['kld_se']:.4f}" in result.stdout
    title = f"Perplexity of 2 × 256 tokens of {text_file}, S 64, {rows[0]['model']} ({rows[0]['file']})"
    assert title in result.stdout.replace("\n", " ")

    assert run(*command).stdout == result.stdout
    narrow = succeeded(invoke("eval", *command, columns=80)).stdout
    assert max(map(len, narrow.splitlines())) <= 80
    assert "…" not in narrow
    assert json.loads(out.read_text()) == rows


def test_halves_of_a_text_whose_name_looks_like_markup(text_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    (tmp_path / "[").mkdir()
    text = text_file.rename(tmp_path / "[/b]\x1b[2J[page 1].txt")
    for half in ("first", "second"):
        command = ["demo", "--file", text, *SMALL, "--half", half, "--continuation", "0", "--json", out]
        assert f"[/b]␛[2J[page 1].txt, {half} half" in succeeded(run(*command)).stdout.replace("\n", " ")
    sha256s = [hashlib.sha256(half).hexdigest() for half in halves(text.read_bytes())]
    assert [row["text_sha256"] for row in json.loads(out.read_text())] == sha256s


def test_settings_with_eviction_and_a_cold_store() -> None:
    """Without a cold store, heavy hitters replace the lookups."""
    pairs = ["chunk_size=64", "local_window=4", "heavy_budget=6", "sink_tokens=1", "lookup_budget=0,8", "scorer=sum"]
    chosen = sweeps.settings({"retrieval": "ngrams"}, preset="fast", evict=True, cold_store="memory", h2o_set=pairs)
    configs = [s.h2o for s in chosen]
    assert [(c.heavy_budget, c.lookup_budget, c.evict, c.cold_store) for c in configs if c is not None] == [
        (6, 0, False, None),
        (6, 8, False, None),
        (6, 0, True, None),
        (14, 0, True, None),
        (6, 0, True, "memory"),
        (6, 8, True, "memory"),
    ]
