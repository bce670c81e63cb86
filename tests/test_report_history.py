"""The data of the pictures: what memory sets of a history have in common, against numbers worked out by hand."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare import case
from h2o_llama import H2OError
from h2o_llama.inspect import measures
from h2o_llama.inspect.attention_mass import chunk_masses
from h2o_llama.inspect.captured import CapturedMass, captured_mass, mean_over_heads
from h2o_llama.inspect.history import MemoryHistory, count_in_bins, memory_history, stays
from inputs import random_tokens
from llamas import Config, open_llama


def history_of(*sets: list[list[int]], heads: Any = ((0, 0), (0, 1), (3, 0)), S: int = 16, H: int = 4) -> MemoryHistory:
    """Each set has a list of positions per head."""
    heavy = np.full((len(sets), len(heads), H), -1, np.int32)
    for c, rows in enumerate(sets):
        for row, positions in enumerate(rows):
            heavy[c, row, : len(positions)] = positions
    return MemoryHistory(tuple(heads), heavy, chunk_size=S, local_window=2, heavy_budget=H, sink_tokens=0)


# Three memory sets of three heads; the last head has none in the second set.
HISTORY = history_of(
    [[0, 1, 2, 3], [0, 1, 8, 9], [5, 6, 7]],
    [[0, 1, 2, 20], [8, 9, 16, 17], []],
    [[0, 1, 20, 40], [8, 16, 32, 33], [40, 41, 42]],
)


# --- a real history


@pytest.mark.parametrize("sinks", [0, 3])
def test_history_holds_the_heavy_hitters_of_every_set(tiny_model: Path, sinks: int) -> None:
    config = Config(S=32, L=8, H=12, A=sinks)
    with open_llama(tiny_model, config) as llm:
        llm.eval(random_tokens(4 * 32 + 5))
        history, recorded = memory_history(llm), llm.kv.history
        last = {(layer, head): llm.kv.heavy_hitters(layer, head) for layer in llm.kv.layers for head in range(2)}
    assert history.n_sets == 4
    assert history.heads == tuple(last)
    for c, layers in enumerate(recorded):
        end = 32 * (c + 1)
        for row, (layer, head) in enumerate(history.heads):
            want = [p for p in layers[layer][head].tolist() if sinks <= p < end - 8]
            assert history.heavy[c, row][history.heavy[c, row] >= 0].tolist() == want
    for (layer, head), heavy in last.items():
        np.testing.assert_array_equal(history.heavy[-1, history.heads.index((layer, head))], heavy)


def test_history_of_layers_with_different_heads(model_by_name: Any) -> None:
    with open_llama(model_by_name("deci-linear-f32"), Config(S=32, L=8, H=8)) as llm:
        llm.eval(random_tokens(70))
        assert memory_history(llm).heads == ((0, 0), (0, 1), (2, 0), (2, 1))
    with open_llama(model_by_name("deci-mixed-f32"), Config(S=32, L=8, H=8)) as llm:
        llm.eval(random_tokens(70))
        history = memory_history(llm)
    assert [layer for layer, _ in history.heads] == [0, 1, 1, 1, 1, 2, 2]
    assert measures.overlap_of_layers(history, measures.overlap(history)).shape == (3, 3)


def test_history_without_memory_sets_or_heavy_hitters(tiny_model: Path) -> None:
    with open_llama(tiny_model, Config(S=32, L=8, H=8)) as llm:
        llm.eval(random_tokens(20))
        assert memory_history(llm).heavy.shape == (0, 6, 0)
    with open_llama(tiny_model, Config(S=32, L=8, H=0)) as llm:
        llm.eval(random_tokens(70))
        history = memory_history(llm)
    assert history.heavy.shape == (2, 6, 0)
    for measure in (measures.stability, measures.mean_age, measures.chunk_start_share):
        assert np.isnan(measure(history)).all()


def test_history_needs_recording_and_h2o(tiny_model: Path) -> None:
    with (
        open_llama(tiny_model, Config(S=32, L=8, H=8), record=False) as llm,
        pytest.raises(H2OError, match="record=True"),
    ):
        memory_history(llm)
    with open_llama(tiny_model, None) as llm, pytest.raises(H2OError, match="H2O is off"):
        memory_history(llm)


# --- stays and bins


def test_stays_tell_the_first_and_the_last_set() -> None:
    stay = stays(HISTORY, 0)
    assert stay.positions.tolist() == [0, 1, 2, 3, 20, 40]
    assert stay.first.tolist() == [0, 0, 0, 0, 1, 2]
    assert stay.last.tolist() == [2, 2, 1, 0, 2, 2]


def test_bins_are_parts_of_chunks() -> None:
    bins = count_in_bins(HISTORY, 6)
    assert bins.sets.tolist() == [0, 1, 2]
    assert bins.edges.tolist() == [0, 8, 16, 24, 32, 40, 48]
    assert bins.counts[:, 0].tolist() == [[4, 0, 0, 0, 0, 0], [3, 0, 1, 0, 0, 0], [2, 0, 1, 0, 0, 1]]
    assert bins.counts[2, 2].tolist() == [0, 0, 0, 0, 0, 3]
    bins = count_in_bins(HISTORY, 2)  # several chunks, where there are many
    assert bins.sets.tolist() == [0, 2]
    assert bins.edges.tolist() == [0, 32, 48]
    assert bins.counts[:, 0].tolist() == [[4, 0], [3, 1]]


def test_every_heavy_hitter_is_in_the_bin_of_its_position() -> None:
    for n_max, S in product([1, 2, 3, 7, 10, 48, 1000], [5, 7, 16]):
        with case(n_max=n_max, S=S):
            rng = np.random.default_rng(n_max)
            sets = [[np.sort(rng.choice((c + 1) * S, 4, replace=False)).tolist() for _ in range(3)] for c in range(6)]
            bins = count_in_bins(history_of(*sets, S=S), n_max)
            assert (np.diff(bins.edges) > 0).all()
            assert bins.edges[0] == 0
            assert bins.edges[-1] == 6 * S
            assert bins.sets[-1] == 5
            for i, c in enumerate(bins.sets):
                for row in range(3):
                    np.testing.assert_array_equal(bins.counts[i, row], np.histogram(sets[c][row], bins.edges)[0])


# --- measures


def test_stability_is_the_mean_jaccard_of_consecutive_sets() -> None:
    # 3 of 5, 3 of 5; 2 of 6, 2 of 6; the third head has nothing to share: 0 of 3 twice.
    np.testing.assert_allclose(measures.stability(HISTORY), [3 / 5, 2 / 6, 0])


def test_overlap_is_the_mean_jaccard_of_two_heads() -> None:
    pairs = measures.overlap(HISTORY)
    np.testing.assert_allclose(np.diag(pairs), 1)
    np.testing.assert_allclose(pairs, pairs.T)
    np.testing.assert_allclose(pairs[0, 1], (2 / 6 + 0 + 0) / 3)
    np.testing.assert_allclose(pairs[0, 2], (0 + 0 + 1 / 6) / 3)
    np.testing.assert_allclose(measures.overlap_in_layer(HISTORY, pairs), [1 / 9, 1 / 9, np.nan])
    np.testing.assert_allclose(
        measures.overlap_of_layers(HISTORY, pairs), [[1 / 9, (1 / 18 + 0) / 2], [(1 / 18 + 0) / 2, np.nan]]
    )


def test_overlap_of_many_sets_is_the_mean_of_some() -> None:
    sets = [[[0, 1], [0, 1] if c % 2 else [2, 3]] for c in range(64)]
    assert measures.overlap(history_of(*sets, heads=((0, 0), (0, 1))))[0, 1] == 1  # every fourth, the last among them
    assert measures.overlap(history_of(*sets[:31], heads=((0, 0), (0, 1))))[0, 1] == pytest.approx(15 / 31)


def test_age_counts_chunks_back_from_the_last_set() -> None:
    np.testing.assert_allclose(measures.mean_age(HISTORY), [(2 + 2 + 1 + 0) / 4, (2 + 1 + 0 + 0) / 4, 0])


def test_share_of_chunk_beginnings() -> None:
    # Positions 0-7, 16-23 and 32-39 are among the first eight of a chunk of 16.
    np.testing.assert_allclose(measures.chunk_start_share(HISTORY), [11 / 12, 7 / 12, 3 / 6])
    assert measures.chance_of_chunk_start(HISTORY) == 0.5


def test_one_set_or_one_head_is_too_few_to_compare() -> None:
    history = history_of([[0, 1]], heads=((0, 0),))
    assert np.isnan(measures.stability(history)).all()
    assert np.isnan(measures.mean_age(history)).all()
    assert np.isnan(measures.overlap_in_layer(history, measures.overlap(history))).all()


# --- captured mass


@pytest.mark.parametrize("sinks", [0, 3])
def test_captured_mass_by_hand(tiny_model: Path, sinks: int) -> None:
    S, L, H = 32, 8, 12
    tokens = random_tokens(3 * S + 10)
    with open_llama(tiny_model, Config(S=S, L=L, H=H, A=sinks, kv_type="f16")) as llm:
        llm.eval(tokens)
        progress: list[tuple[int, int]] = []
        result = captured_mass(
            llm, tokens, memory_history(llm), n_threads=1, progress=lambda *call: progress.append(call)
        )
        masses = list(chunk_masses(llm, tokens, chunk_size=S, n_threads=1))
        sets = llm.kv.history
    assert progress == [(32, 106), (64, 106), (96, 106), (106, 106)]
    assert result.captured.shape == result.best.shape == (3, 6)
    for c in range(3):
        for row, (layer, head) in enumerate(result.heads):
            mass = masses[c + 1][layer][head, : (c + 1) * S].astype(np.float64)
            held = sets[c][layer][head]
            always = [p for p in range(len(mass)) if p < sinks or p >= len(mass) - L]
            rest = np.sort(np.delete(mass, always))[::-1]
            np.testing.assert_allclose(result.captured[c, row], mass[held[held >= 0]].sum() / mass.sum(), rtol=1e-4)
            np.testing.assert_allclose(
                result.best[c, row], (mass[always].sum() + rest[:H].sum()) / mass.sum(), rtol=1e-4
            )
    assert (result.captured <= result.best + 1e-6).all()


def test_a_memory_set_of_everything_holds_everything(tiny_model: Path) -> None:
    tokens = random_tokens(80)
    with open_llama(tiny_model, Config(S=32, L=8, H=80)) as llm:
        llm.eval(tokens)
        result = captured_mass(llm, tokens, memory_history(llm), n_threads=1)
    np.testing.assert_allclose(result.captured, 1, rtol=1e-5)
    np.testing.assert_allclose(result.best, 1, rtol=1e-5)


def test_mass_of_one_chunk_is_empty(tiny_model: Path) -> None:
    with open_llama(tiny_model, Config(S=32, L=8, H=8)) as llm:
        llm.eval(random_tokens(20))
        result = captured_mass(llm, random_tokens(20), memory_history(llm), n_threads=1)
    assert result.captured.shape == (0, 6)
    assert mean_over_heads(result) == []


def test_means_over_heads_begin_with_the_second_chunk() -> None:
    captured = CapturedMass(((0, 0), (0, 1)), np.array([[0.5, 0.7], [0.2, np.nan]]), np.array([[0.8, 1.0], [0.4, 0.6]]))
    np.testing.assert_allclose(mean_over_heads(captured), [(1, 0.6, 0.9), (2, 0.2, 0.5)])
