"""Prompt lookup decoding: the same tokens and the same sequence as without drafts, at every token."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import models
from cases import CASES, EVICT, SMALL, Case, S
from h2o_llama import H2OError, Llama, _core
from h2o_llama.sequence.generating import DraftLength
from inputs import ModelByName, random_tokens
from llamas import open_llama

PROMPT = random_tokens(40)
# The same token again and again.
REPEAT: dict[str, Any] = {"temperature": 0, "frequency_penalty": -10.0}
# The tiny model is in float32, and so is its attention here: tokens computed together have the logits that they have
# alone, but for the last bits.
CONFIGS = {
    "dense": None,
    "h2o": CASES["composed, decode full"],
    "memory": CASES["composed"],
    "two_phase": SMALL.but(schedule="two_phase", flash_attn="off"),
}


def open_short(path: Path, h2o: Case | None = None, **kwargs: Any) -> Llama:
    return open_llama(path, h2o, **({"n_ctx": 512, "n_batch": 64, "n_ubatch": S} | kwargs))


@pytest.fixture(params=CONFIGS)
def h2o(request: pytest.FixtureRequest) -> Case | None:
    return CONFIGS[request.param]


@pytest.fixture(scope="module")
def dense(tiny_model: Path) -> Iterator[Llama]:
    with open_short(tiny_model) as llm:
        yield llm


def generate(llm: Llama, n: int, prompt: list[int] = PROMPT, **kwargs: Any) -> list[int]:
    llm.reset()
    return list(itertools.islice(llm.generate(prompt, **kwargs), n))


# --- drafts


def draft_of(text: Sequence[int], n_min: int, n_max: int) -> list[int]:
    """Definition: half of the longest match of the text's end, the newest of equally long ones."""

    def n_same(end: int) -> int:
        n = 0
        while n < min(end, 2 * n_max) and text[end - 1 - n] == text[-1 - n]:
            n += 1
        return n

    n_match, end = max(((n_same(end), end) for end in range(1, len(text))), default=(0, 0))
    n = n_match // 2
    period = len(text) - end
    return [text[end + i % period] for i in range(n)] if n >= n_min else []


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    text=st.lists(st.integers(1, 3), min_size=2, max_size=48),
    n_min=st.integers(1, 5),
    n_max=st.integers(0, 15),
)
@example(text=[1, 2, 3, 1, 2, 1, 1, 2], n_min=1, n_max=3)  # two are equally long
def test_draft_follows_the_longest_match(dense: Llama, text: list[int], n_min: int, n_max: int) -> None:
    dense.reset()
    dense.eval(text[:-1])
    with dense._state.used() as context:
        assert context.find_draft(text[-1], n_min, n_max).tolist() == draft_of(text, n_min, n_max)


@pytest.mark.parametrize("pos", [1, 4091, 8000])
def test_a_match_far_back_in_a_long_text(tiny_model: Path, pos: int) -> None:
    """Wherever it lies among the parts that are searched one after the other."""
    text = random_tokens(8190)
    text[pos : pos + 4] = [*text[-3:], 7]
    with open_llama(tiny_model, EVICT.but(chunk_size=64), n_ctx=0, n_batch=64) as llm:
        llm.eval(text[:-1])
        with llm._state.used() as context:
            assert context.find_draft(text[-1], 1, 1).tolist() == draft_of(text, 1, 1) == [7]


def test_the_end_of_a_text_is_not_drafted(dense: Llama) -> None:
    dense.reset()
    dense.eval([*range(1, 13), models.EOS, 1, 2, *range(1, 9)])
    with dense._state.used() as context:
        assert context.find_draft(9, 1, 4).tolist() == [10, 11, 12]
        assert context.find_draft(9, 4, 4).tolist() == []


# --- how long


def test_drafts_lose_no_more_than_their_budget(rng: np.random.Generator) -> None:
    """Whatever is accepted: units of time, where a call of k drafted tokens takes 2 + k / 2."""
    for p in (0.0, 0.1, 0.5, 0.8):
        length = DraftLength(15)
        time = n_tokens = 0.0
        while n_tokens < 2000:
            n = length.limits[1]
            accepted = int(rng.binomial(n, p))
            time += 2 + n / 2 if n else 1
            n_tokens += 1 + accepted
            length.report(n, accepted)
        assert time <= 5 + 1.02 * n_tokens


# --- results


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_the_same_tokens_come_out(tiny_model: Path, h2o: Case | None, temperature: float) -> None:
    """Every token is drawn from its logits as ever: with the same seed, the same token."""
    with open_short(tiny_model, h2o) as llm:
        counts = np.zeros(2, dtype=int)
        for seed in range(2):
            prompt = random_tokens(40, seed=seed)
            sampling = {"temperature": temperature, "seed": seed, "frequency_penalty": -0.2 * temperature}
            expected = generate(llm, 200, prompt, **sampling)
            n_tokens = llm.n_tokens
            assert generate(llm, 200, prompt, draft=15, **sampling) == expected
            assert llm.n_tokens == n_tokens
            counts += (llm.kv.stats.drafted_tokens, llm.kv.stats.accepted_tokens)
        assert counts[0] > counts[1] > 10  # some were right and some were not


@pytest.mark.parametrize("n_ctx", [60, 61, 70])
def test_generation_ends_where_the_context_ends(tiny_model: Path, n_ctx: int) -> None:
    with open_short(tiny_model, n_ctx=n_ctx, n_batch=16) as llm:
        llm.eval([7] * 39)
        llm.reset()
        assert len(generate(llm, 1000, draft=15, **REPEAT)) == n_ctx - len(PROMPT)
        assert llm.n_tokens == n_ctx
        assert llm.kv.stats.accepted_tokens > 0


# --- who looks, and who stops


def test_a_call_that_fails_is_undone(tiny_model: Path, h2o: Case | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came out is computed alone."""
    no_token = np.array([1, 2, 10**6], dtype=np.int32)
    with open_short(tiny_model, h2o) as llm:
        expected = generate(llm, 5, temperature=0)
        llm.reset()
        generator = llm.generate(PROMPT, temperature=0, draft=15)
        with monkeypatch.context() as patch:
            patch.setattr(_core.Context, "find_draft", lambda *_: no_token)
            assert next(generator) == expected[0]
            with pytest.raises(H2OError):
                next(generator)
            assert llm.n_tokens == len(PROMPT) + 1
        assert list(itertools.islice(llm.generate([], temperature=0), 4)) == expected[1:]


def test_usage_is_of_one_completion(dense: Llama) -> None:
    """Not of all since the sequence was reset."""
    asked = {"max_tokens": 40, "draft": 15, **REPEAT}
    first, second = (dense(PROMPT, reuse=reuse, **asked)["usage"] for reuse in (False, True))
    assert first["completion_tokens_details"] == second["completion_tokens_details"]
    assert first["completion_tokens_details"]["accepted_prediction_tokens"] > 0


# --- other models


def test_recurrent_layers_cannot_take_tokens_back(model_by_name: ModelByName) -> None:
    with open_short(model_by_name("lfm2-conv-f32")) as llm:
        for generate in (llm.generate, llm):
            with pytest.raises(ValueError, match="draft must be 0, as a recurrent model cannot take tokens back"):
                generate(PROMPT, draft=15)
