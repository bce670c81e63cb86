"""Generated tokens, and completions as OpenAI shapes them."""

import codecs
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chats import IM_START, dictate
from h2o_llama import H2OConfig, H2OError, Llama
from h2o_llama.chat._generation import TextBuffer
from h2o_llama.sequence._state import State
from inputs import random_tokens
from spies import record_calls


def test_a_criterion_ends_the_text(llm: Llama) -> None:
    """It sees the logits of the next token. The first criterion of a list that holds ends the text."""
    prompt = random_tokens(20)
    seen: list[tuple[list[int], int]] = []

    def stop_at_24(ids: Any, logits: Any) -> bool:
        seen.append((ids.tolist(), int(logits.argmax())))
        return len(ids) == 24

    tokens = list(llm.generate(prompt, temperature=0, stopping_criteria=stop_at_24))
    assert seen == [(prompt + tokens[:n], next_) for n, next_ in zip(range(5), [*tokens, seen[-1][1]], strict=True)]
    never = lambda ids, logits: False  # noqa: E731
    completion = llm(prompt, max_tokens=20, temperature=0, stopping_criteria=[never, stop_at_24])
    assert completion["choices"][0]["finish_reason"] == "stop"
    assert completion["usage"]["completion_tokens"] == 4


def test_a_stream_does_not_go_on_with_another_text(llm: Llama) -> None:
    prompt, other = random_tokens(20), random_tokens(20, seed=1)
    llm.eval(prompt)
    snapshot = llm.snapshot()
    for leave in (
        lambda: llm(other, max_tokens=2),
        lambda: llm(prompt, max_tokens=2, reuse=True),
        lambda: (llm.reset(), llm.eval(other)),
        lambda: (llm.rewind(20), llm.eval(other)),
        lambda: llm.restore(snapshot),
    ):
        stream = llm(prompt, max_tokens=10, stream=True, temperature=0)
        next(stream)
        leave()
        with pytest.raises(H2OError, match=r"\[Llama.generate\] the sequence now holds another text"):
            next(stream)


@pytest.mark.parametrize("n_seq_max", [1, 3])
def test_several_texts_are_completed_at_once(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_seq_max: int
) -> None:
    """In steps for all, after what they begin with was read once; as one after another."""
    texts = [
        "A document that all share. " * 10 + text for text in ("One?", "Another?", "A third?", "A fourth, longer?")
    ]
    options: Any = {"max_tokens": 12, "temperature": 0, "logprobs": 1, "dense_tail": 0}
    config = H2OConfig(chunk_size=64, lookup_budget=0)
    arguments: Any = {"n_ctx": 512, "n_threads": 1, "h2o": config}
    with Llama(tiny_model, **arguments) as alone:
        expected = [alone(text, **options)["choices"][0] for text in texts]
    with Llama(tiny_model, n_seq_max=n_seq_max, library=tmp_path, **arguments) as llm:
        steps = record_calls(monkeypatch, State, "append_each")
        answer = llm(texts, **options)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        for choice, other in zip(answer["choices"], expected, strict=True):
            assert (choice["text"], choice["finish_reason"]) == (other["text"], "length")
        usage = answer["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (sum(map(len, texts)), 48)
        assert usage["prompt_tokens_details"]["cached_tokens"] >= 3 * 192
        assert max([len(step["drawn"]) for step in steps], default=1) == n_seq_max
        if n_seq_max > 1:
            assert len(llm.library.texts()) >= 2
            with llm.sequence(), llm.sequence():  # their places are free again
                again = llm.generate_text(texts[:2], max_tokens=12, temperature=0, dense_tail=0)
            assert again == [choice["text"] for choice in expected[:2]]
        with pytest.raises(ValueError, match="a list of str without stream"):
            llm(texts, stream=True)


def test_completion(llm: Llama) -> None:
    answer = llm("Hello", max_tokens=8, temperature=0)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == Path(llm.model_path).stem
    counts = {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
    assert answer["usage"] == {**counts, "prompt_tokens_details": {"cached_tokens": 0}}
    choice = answer["choices"][0]
    assert choice == {"text": choice["text"], "index": 0, "logprobs": None, "finish_reason": "length"}
    llm.reset()
    tokens = list(itertools.islice(llm.generate(llm.tokenize("Hello"), temperature=0), 8))
    assert choice["text"] == llm.detokenize(tokens).decode(errors="replace")
    assert llm(b"Hello", max_tokens=8, temperature=0)["choices"] == answer["choices"]
    assert llm(llm.tokenize("Hello"), max_tokens=8, temperature=0)["choices"] == answer["choices"]
    assert llm("a<|im_start|>", max_tokens=1)["usage"]["prompt_tokens"] == 2  # names of special tokens are these


def test_echo_repeats_what_was_given(llm: Llama) -> None:
    for prompt, text in (
        ("Hello", "Hello"),
        ("<|im_start|>a", "<|im_start|>a"),
        (b"<|im_start|>\xff", "<|im_start|>\ufffd"),
        ([IM_START, 97], "a"),
    ):
        said = llm(prompt, max_tokens=4, temperature=0)["choices"][0]["text"]
        assert llm(prompt, max_tokens=4, temperature=0, echo=True)["choices"][0]["text"] == text + said


def test_completion_stops_before_a_special_token(llm: Llama) -> None:
    """Its name never appears in the text."""
    for stop in ("<|im_start|>", ["abx", "<|im_start|>"]):
        arguments: dict[str, Any] = {"stop": stop, "logits_processor": dictate("ab<", end=IM_START)}
        completion = llm("a", max_tokens=None, **arguments)
        assert completion["choices"][0]["text"] == "ab<"
        assert completion["choices"][0]["finish_reason"] == "stop"
        assert completion["usage"]["completion_tokens"] == 4
    assert (
        llm("a", max_tokens=3, stop=["<|im_start|>"], logits_processor=dictate("abc"))["choices"][0]["finish_reason"]
        == "length"
    )
    assert llm("a", max_tokens=9, stop=["b"], logits_processor=dictate("abc"))["choices"][0]["text"] == "a"


STOPS = ["a", "é", "aé", "aéa", "aaé", "aéaé", "é❤"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(STOPS), max_size=3), st.binary(max_size=3), st.data())
def test_text_buffer_does_not_mind_how_text_is_cut(stop: list[str], end: bytes, data: st.DataObject) -> None:
    """No character comes out in parts; bytes that are none are replaced, and a part of one at the end is left out."""
    whole = "".join(data.draw(st.lists(st.sampled_from([*"aé❤𝄞", *stop]), max_size=8))).encode() + end
    results = []
    for cuts in (data.draw(st.sets(st.integers(0, len(whole)))), range(len(whole)), ()):
        buffer, text = TextBuffer(stop), ""
        for piece in np.split(np.frombuffer(whole, np.uint8), sorted(cuts)):
            if not buffer.stopped:
                text += buffer.push(piece.tobytes())
        results.append((text + ("" if buffer.stopped else buffer.finish()), buffer.stopped))
    assert results[0] == results[1] == results[2]
    (text, stopped), expected = results[0], codecs.getincrementaldecoder("utf-8")("replace").decode(whole)
    assert expected.startswith(text)
    assert stopped == any(each in expected for each in stop)
    assert stopped or text == expected
