"""`python benchmarks/gate.py`: figures of a small model, and what the command makes of those that do not hold."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

import h2o_llama
from acceptance import figures, stored
from acceptance.bounds import BOUNDS
from acceptance.figures import N_AFTER, Figure, Gate
from acceptance.prompts import LENGTHS, PLACES, TURNS, prompts
from command_line import invoke
from gate import app

TEXT = b" ".join(b"%d squared is %d." % (i, i * i) for i in range(2_000))


@pytest.fixture(scope="module")
def gate(tiny_model: Path) -> Iterator[Gate]:
    with h2o_llama.Model(tiny_model) as weights:
        yield Gate(weights, TEXT, threads=1, long=65_536)


def test_prompts(gate: Gate) -> None:
    found = dict(prompts(gate.weights, TEXT, gate.tokens, N_AFTER))
    sizes = {name: [len(tokens) - N_AFTER for tokens in parts] for name, parts in found.items()}
    assert sizes == {name: [n] * PLACES[name] for name, n in {**LENGTHS, "turns": TURNS}.items()}
    for parts in found.values():
        assert len({tokens.tobytes() for tokens in parts}) == len(parts)
    with pytest.raises(ValueError, match="the text must have at least 7,756 tokens"):
        list(prompts(gate.weights, TEXT, gate.tokens[:7_000], N_AFTER))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the long prompts find, short ones do."""
    monkeypatch.setitem(LENGTHS, "long", 2_000)
    for name in PLACES:
        monkeypatch.setitem(PLACES, name, 1)
    monkeypatch.setattr(figures, "_PLACES", range(1_100, 1_300, 100))


@pytest.mark.usefixtures("short")
def test_lossy(gate: Gate) -> None:
    """The ratio is exact: a chunk over it is a whole number. What is predicted is not what dense attention predicts."""
    found = list(gate.lossy())
    assert [value for name, _, value in found if name == "lossy"] == [3.2] * 5
    ratios = [value for name, _, value in found if name == "lossy_ppl"]
    assert len(set(ratios)) == len(ratios) == 4
    assert all(0.5 < ratio < 2 for ratio in ratios)


def test_repetitions(gate: Gate) -> None:
    assert [value for _, _, value in gate.repetitions()] == [4]


def test_lossless(gate: Gate) -> None:
    found = {name: value for name, _, value in gate.lossless()}
    assert found["front"] > 1
    assert found["all"] > 1
    assert found["fallbacks"] == 0
    assert min(found["encode"], found["decode"]) > 0


@pytest.mark.usefixtures("short")
def test_cold_store(gate: Gate) -> None:
    found = [*gate.cold(), *gate.speed()]
    assert [name for name, _, _ in found] == ["cold_ppl", "cold_ppl_double", "cold_speed"]
    assert found[0][1] == "prompts of 1,100 to 1,200"
    assert all(0.5 < value < 2 for name, _, value in found if name != "cold_speed")


@pytest.mark.usefixtures("short")
def test_stored(gate: Gate) -> None:
    """Each case has all its figures, which are of what was really encoded, decoded and the same."""
    found = {(name, case): value for name, case, value in gate.stored()}
    json.dumps([BOUNDS[name].holds(value) for (name, _), value in found.items()])  # not NumPy's bool
    assert len(found) == 3 * 5 + (("store_rss", "long") in found)
    assert {case for name, case in found if name == "full_speed"} == {"full"}
    for case in stored.CASES:
        assert found["store_same", case] == 4
        assert found["fallbacks", case] == 0
        assert 0 < found["queue_peak", case] <= 8
        assert found["decode_us", case] > 0


@pytest.mark.parametrize(
    ("name", "good", "bad"), [("lossy", 3.2, 3.19), ("lossy_ppl", 1.02, 1.03), ("fallbacks", 0, 1)]
)
def test_bounds(name: str, good: float, bad: float) -> None:
    assert BOUNDS[name].holds(good)
    assert not BOUNDS[name].holds(bad)
    assert not BOUNDS[name].holds(math.nan)


@pytest.mark.parametrize(("ppl", "status"), [(1.01, 0), (1.05, 1)])
def test_command(ppl: float, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Figure] = [("lossy", "short", 3.3), ("lossy_ppl", "short", ppl)]
    monkeypatch.setattr(Gate, "figures", lambda self: iter(found))
    file = tmp_path / "gate.json"
    result = invoke("demo", "--json", file, app=app)
    assert result.exit_code == status
    assert f"| {ppl:.3f} | ≤ 1.020 | {'yes' if status == 0 else 'NO'} |" in result.stdout
    assert ("All 2 hold." if status == 0 else "1 of 2 do not hold.") in result.stdout
    rows = json.loads(file.read_text())["figures"]
    assert [row["holds"] for row in rows] == [True, status == 0]
