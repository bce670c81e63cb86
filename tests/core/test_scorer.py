"""A scorer in Python: the sums that it is given choose what the core's "sum" does; its errors undo the call."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compare import assert_all_equal
from h2o_llama import H2OConfig, Llama
from h2o_llama.eval import Setting, evaluate
from inputs import random_tokens

S = 16
SIZES: dict[str, Any] = {"chunk_size": S, "local_window": 4, "heavy_budget": 6, "sink_tokens": 1}
Array = NDArray[np.float32]


def by_sums(layer: int, keys: Array, values: Array, attention: Array) -> Array:
    return attention


def open_with(path: Path, scorer: Any, **options: Any) -> Llama:
    config = H2OConfig(**SIZES, lookup_budget=0, decode="memory", scorer=scorer, **options)
    return Llama(path, n_ctx=400, n_threads=1, h2o=config, type_k="f32", type_v="f32", n_seq_max=2)


def view(llm: Llama) -> list[Any]:
    kv, layers = llm.kv, llm.kv.layers if llm.n_tokens else []
    return [llm.tokens, *(array for il in layers for array in (kv.memory_indices(il), kv.scores(il), kv.keys(il)))]


def read(llm: Llama) -> list[Any]:
    """A prompt of several calls, and generated tokens beyond the end of a chunk. Nobody sees what was left out."""
    llm.eval(random_tokens(3 * S + 5))
    llm.eval(random_tokens(2 * S + 3, seed=1))
    other = llm.fork()
    drawn = list(islice(llm.generate([], temperature=0, dense_tail=0), 2 * S))
    prompts = {other: random_tokens(3, seed=2), llm: random_tokens(7, seed=3)}
    many = list(llm.generate_many(prompts, temperature=0, max_tokens=S, dense_tail=0))
    other.close()
    return [drawn, [list(step.values()) for step in many], *view(llm)]


@pytest.mark.parametrize("options", [{}, {"research": {"shared_heads": True}}], ids=str)
def test_sums_choose_what_the_core_chooses(tiny_model: Path, options: dict[str, Any]) -> None:
    with open_with(tiny_model, "sum", **options) as core, open_with(tiny_model, by_sums, **options) as llm:
        assert_all_equal(read(llm), read(core))


def test_what_it_is_given(tiny_model: Path) -> None:
    """Each layer, when a chunk is complete: what `kv` has then. A choice of other positions is kept."""
    seen: list[tuple[Any, ...]] = []

    def by_age(*given: Any) -> Array:
        seen.append(given)
        return np.broadcast_to(-np.arange(given[3].shape[1], dtype=np.float32), given[3].shape)

    with open_with(tiny_model, by_age) as llm:
        for n in (S, 2 * S, 3 * S):
            llm.eval(random_tokens(S, seed=n))
            layers = llm.kv.layers
            assert [given[0] for given in seen] == layers
            for layer, keys, values, attention in seen:
                assert_all_equal(
                    [keys, values, attention], [llm.kv.keys(layer), llm.kv.values(layer), llm.kv.scores(layer)]
                )
                oldest, last = range(7), range(n - 4, n)
                assert llm.kv.memory_indices(layer)[0].tolist() == [*oldest, *last]
            seen.clear()
        llm.eval([1, 2, 3])
        assert seen == []


@pytest.mark.parametrize("n_before", [0, S, S + 5])
def test_an_error_undoes_the_call(tiny_model: Path, n_before: int) -> None:
    """At its third chunk, in the second layer."""
    n_calls, fails = 0, False

    def scorer(layer: int, keys: Array, values: Array, attention: Array) -> Array:
        nonlocal n_calls
        n_calls += fails and layer > 0
        if n_calls >= 3:
            raise ZeroDivisionError("of the scorer")
        return attention

    with open_with(tiny_model, scorer) as llm, open_with(tiny_model, by_sums) as twin:
        for each in (llm, twin):
            if n_before:
                each.eval(random_tokens(n_before))
        before, fails, prompt = view(llm), True, random_tokens(4 * S, seed=1)
        with pytest.raises(ZeroDivisionError, match="of the scorer"):
            llm.eval(prompt)
        assert_all_equal(view(llm), before)
        n_calls, fails = 0, False
        for each in (llm, twin):
            each.eval(prompt)
        assert_all_equal(read(llm), read(twin))


def test_an_error_while_tokens_are_generated(tiny_model: Path) -> None:
    """No sequence has the token that completes a chunk. It is tried again."""
    fails = False

    def scorer(layer: int, keys: Array, values: Array, attention: Array) -> Array:
        if fails and layer > 0:
            raise ZeroDivisionError
        return attention

    with open_with(tiny_model, scorer) as llm, open_with(tiny_model, by_sums) as twin:
        for each in (llm, twin):
            each.eval(random_tokens(2 * S - 2))
        other, others = llm.fork(), twin.fork()
        steps = llm.generate_many({llm: [], other: []}, temperature=0)
        drawn = [next(steps)[llm]]
        fails = True
        with pytest.raises(ZeroDivisionError):
            next(steps)
        fails = False
        assert llm.n_tokens == other.n_tokens == 2 * S - 1
        drawn += [next(steps)[llm] for _ in range(3)]
        expected = twin.generate_many({twin: [], others: []}, temperature=0, max_tokens=4)
        assert drawn == [step[twin] for step in expected]
        assert_all_equal(view(llm), view(twin))


def test_what_it_must_be(tiny_model: Path, tmp_path: Path) -> None:
    for returned, expected in ((np.zeros((3, 3)), "shape"), (None, "an array of numbers"), (np.nan, "finite numbers")):

        def scorer(layer: int, keys: Array, values: Array, attention: Array, returned: Any = returned) -> Any:
            return attention * returned if returned is np.nan else returned

        with open_with(tiny_model, scorer) as llm:
            with pytest.raises(
                ValueError, match=rf"\[H2OConfig\] what scorer returns for layer 0 must be .*{expected}"
            ):
                llm.eval(random_tokens(S))
            assert llm.n_tokens == 0
    for options in ({"evict": True}, {"schedule": "two_phase"}, {"heavy_budget": 0}):
        with pytest.raises(ValueError, match="with a scorer in Python"):
            H2OConfig(**{**SIZES, **options}, scorer=by_sums)
    with pytest.raises(ValueError, match="library must be left out with a scorer"):
        Llama(tiny_model, h2o=H2OConfig(**SIZES, scorer=by_sums), library=tmp_path)
    with open_with(tiny_model, by_sums) as llm, open_with(tiny_model, by_sums) as other:
        llm.eval(random_tokens(S))
        other.restore(llm.snapshot())
        assert_all_equal(view(other), view(llm))
        with pytest.raises(ValueError, match="a scorer in Python cannot be written to a file"):
            llm.save(tmp_path / "snapshot")
        with pytest.raises(ValueError, match="draft must be 0 with a scorer"):
            llm.generate([], draft=4)


def test_it_is_measured_as_others_are(tiny_model: Path) -> None:
    settings = [Setting(str(s), H2OConfig(**SIZES, lookup_budget=0, scorer=s)) for s in ("sum", by_sums)]
    arguments: dict[str, Any] = {"text": bytes(random_tokens(300, n_vocab=128)), "n_tokens": [4 * S]}
    core, python = evaluate(tiny_model, settings, **arguments)
    assert python["ppl"] == core["ppl"]
    assert python["h2o"]["scorer"] == "by_sums"
