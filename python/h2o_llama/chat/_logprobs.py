"""Log-probabilities of generated tokens, in OpenAI's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core


class CompletionLogprobs(TypedDict):
    """Of `create_completion`. Offsets are characters of the text."""

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


class TopLogprob(TypedDict):
    token: str
    bytes: list[int]
    logprob: float


class ChatTokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Of `create_chat_completion`."""

    content: list[ChatTokenLogprob]


@dataclass(frozen=True)
class TokenLogprobs:
    """What the model thought of a token, before biases, penalties and temperature.

    `top` are the most probable tokens and their log-probabilities, in order; `offset` is where the token begins in the
    text, in characters.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]
    offset: int


class LogprobsRecorder:
    """A logits processor that changes nothing, and remembers the logits that the next token is drawn from."""

    def __init__(self, n_top: int) -> None:
        self._n_top = n_top
        self._logits = np.empty(0, dtype=np.float32)

    def __call__(self, input_ids: NDArray[np.int32], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        self._logits = logits.copy()
        return logits

    def take(self, token: int, offset: int) -> TokenLogprobs:
        """Of the token that was drawn."""
        logits = self._logits.astype(np.float64)
        logits -= logits.max()
        logprobs = logits - np.log(np.exp(logits).sum())
        best = np.argsort(-logprobs, kind="stable")[: self._n_top].tolist()
        return TokenLogprobs(token, float(logprobs[token]), [(id_, float(logprobs[id_])) for id_ in best], offset)


def completion_logprobs(model: _core.Model, tokens: Sequence[TokenLogprobs], offset: int) -> CompletionLogprobs:
    """For `create_completion`; offset is that of the generated text."""
    return {
        "text_offset": [offset + t.offset for t in tokens],
        "token_logprobs": [t.logprob for t in tokens],
        "tokens": [_text(model, t.token) for t in tokens],
        "top_logprobs": [{_text(model, id_): logprob for id_, logprob in t.top} for t in tokens],
    }


def chat_logprobs(model: _core.Model, tokens: Sequence[TokenLogprobs]) -> ChatLogprobs:
    """For `create_chat_completion`."""
    return {
        "content": [
            {
                **_top_logprob(model, t.token, t.logprob),
                "top_logprobs": [_top_logprob(model, id_, logprob) for id_, logprob in t.top],
            }
            for t in tokens
        ]
    }


def _top_logprob(model: _core.Model, token: int, logprob: float) -> TopLogprob:
    return {"token": _text(model, token), "bytes": list(model.detokenize([token], True)), "logprob": logprob}


def _text(model: _core.Model, token: int) -> str:
    return model.detokenize([token], True).decode(errors="replace")
