"""Text completion, OpenAI-shaped."""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _check
from h2o_llama.sampling import Sampling

if TYPE_CHECKING:
    from h2o_llama.llama import Llama

_OWNER = "Llama.__call__"

FinishReason = Literal["stop", "length"] | None


class Choice(TypedDict):
    text: str
    index: int
    logprobs: None
    finish_reason: FinishReason


class CompletionTokensDetails(TypedDict):
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class TokenCounts(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Usage(TokenCounts, total=False):
    completion_tokens_details: CompletionTokensDetails
    prompt_tokens_details: PromptTokensDetails


class CompletionChunk(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]


class Completion(CompletionChunk):
    usage: Usage


class TextBuffer:
    """Turns the bytes of tokens into text. Keeps back what may be the beginning of a character or a stop string."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def push(self, piece: bytes) -> str:
        """The text that is certain now. After a stop string `stopped` is set and no more text may be pushed."""
        return self._release(self._decoder.decode(piece))

    def finish(self) -> str:
        """The text that was kept back until the end; a broken character becomes U+FFFD."""
        text = self._release(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _release(self, new: str) -> str:
        text = self._held + new
        found = [i for i in map(text.find, self._stop) if i >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        n_held = max((_overlap(text, stop) for stop in self._stop), default=0)
        n_certain = len(text) - n_held
        self._held = text[n_certain:]
        return text[:n_certain]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop)), 0, -1) if text.endswith(stop[:n])), 0)


def check_stop(stop: str | Sequence[str] | None) -> list[str]:
    stops = [] if stop is None else [stop] if isinstance(stop, str) else list(stop)
    if not all(isinstance(s, str) and s for s in stops):
        raise _check.bad_argument(_OWNER, "stop", "a string or a list of strings, none of them empty", stop)
    return stops


@dataclass
class CompletionRun:
    """One completion: makes the chunks of the stream, and then knows how it ended.

    Parameters
    ----------
    llm : Llama
        Its sequence becomes the prompt when the text is asked for.
    prompt : ndarray of int32 [n]
        Token ids, at least one.
    echo : str
        Text to begin with.
    max_tokens : int or None
        How many tokens to generate at most; None: as many as the context holds.
    stop : list of str
        Strings at which the text ends.
    reuse : bool
        Keep what the sequence shares with the prompt; else it begins afresh.
    """

    llm: Llama
    prompt: NDArray[np.int32]
    echo: str
    max_tokens: int | None
    stop: list[str]
    sampling: Sampling
    progress: Callable[[int, int], object] | None
    dense_tail: int
    draft: int
    reuse: bool
    n_cached: int = 0
    n_generated: int = 0
    finish_reason: FinishReason = None
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def stream(self) -> Iterator[CompletionChunk]:
        """Chunks with text, then one without that tells the reason of the end."""
        for text in self._texts():
            if text:
                yield self._chunk(text, None)
        yield self._chunk("", self.finish_reason)

    def complete(self) -> Completion:
        """All at once."""
        text = "".join(self._texts())
        usage: Usage = {
            "prompt_tokens": len(self.prompt),
            "completion_tokens": self.n_generated,
            "total_tokens": len(self.prompt) + self.n_generated,
        }
        if self.draft > 0:
            stats = self.llm.kv.stats
            usage["completion_tokens_details"] = {
                "accepted_prediction_tokens": stats.accepted_tokens,
                "rejected_prediction_tokens": stats.drafted_tokens - stats.accepted_tokens,
            }
        if self.reuse:
            usage["prompt_tokens_details"] = {"cached_tokens": self.n_cached}
        return {**self._chunk(text, self.finish_reason), "usage": usage}

    def _texts(self) -> Iterator[str]:
        yield self.echo
        if self.reuse:
            self.n_cached = self.llm.reuse(self.prompt)
        else:
            self.llm.reset()
        buffer = TextBuffer(self.stop)
        tokens = self.llm.generate(
            self.prompt[self.n_cached :],
            progress=self.progress,
            dense_tail=self.dense_tail,
            draft=self.draft,
            **asdict(self.sampling),
        )
        for token in islice(tokens, self.max_tokens):
            self.n_generated += 1
            yield buffer.push(self.llm.detokenize([token]))
            if buffer.stopped:
                self.finish_reason = "stop"
                return
        yield buffer.finish()
        is_full = self.n_generated == self.max_tokens or self.llm.n_tokens == self.llm.n_ctx
        self.finish_reason = "length" if is_full else "stop"

    def _chunk(self, text: str, finish_reason: FinishReason) -> CompletionChunk:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.llm.model_path,
            "choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": finish_reason}],
        }
