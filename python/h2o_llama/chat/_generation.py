"""A prompt and the text after it, with log-probabilities, whatever shape it is given then."""

import codecs
import collections.abc
import time
import uuid
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray
from typing_extensions import NotRequired, Unpack

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._prompt import CacheStop, Prompt, as_generated
from h2o_llama._thoughts import Thoughts, thoughts_of
from h2o_llama.chat._known import cache_stop_of
from h2o_llama.sampling import Sampling, SamplingOptions
from h2o_llama.sequence._engine import ProgressOption
from h2o_llama.sequence._state import State, check_progress, stream
from h2o_llama.sequence.generating import DENSE_TAIL, Stopping, generate_by


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

    def logprobs_of(self, token: int, offset: int) -> TokenLogprobs:
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


class TextBuffer:
    """Turns the bytes of tokens into text. Keeps back what may be the beginning of a character or a stop string."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    @property
    def n_held(self) -> int:
        """Characters that are kept back."""
        return len(self._held)

    def push(self, piece: bytes, is_thought: bool = False) -> str:
        """The text that is certain now. After a stop string `stopped` is set and no more text may be pushed.

        Thoughts are not searched for stop strings.
        """
        text = self._decoder.decode(piece)
        if is_thought:
            text, self._held = self._held + text, ""
            return text
        return self._release(text)

    def finish(self) -> str:
        """The text that was kept back until the end; a broken character becomes U+FFFD."""
        text = self._release(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _release(self, new: str) -> str:
        text = self._held + new
        # Of stop strings that overlap, the one that is complete first: so tokens do not matter.
        found = [(i + len(stop), i) for stop in self._stop if (i := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)[1]]
        n_held = max((_overlap(text, stop) for stop in self._stop), default=0)
        n_certain = len(text) - n_held
        self._held = text[n_certain:]
        return text[:n_certain]


class AnswerText(TextBuffer):
    """The text of an answer, to which each token adds its part. It ends before any of the strings `stops`.

    Special tokens that the format of a `chat` has are part of it.
    """

    def __init__(
        self,
        model: _core.Model,
        stops: list[str],
        chat: _core.ChatPrompt | None = None,
        thoughts: Thoughts | None = None,
    ) -> None:
        super().__init__(stops)
        self._model, self.thoughts, self.n_tokens = model, thoughts, 0
        self._ends = stop_tokens(model, stops)
        self._visible = frozenset(chat.preserved_tokens if chat else ())

    def add(self, token: int) -> str:
        """The text that is certain now."""
        self.n_tokens += 1
        is_thought = self.thoughts is not None and self.thoughts.is_thought
        if token in self._ends and not is_thought:
            text, self.stopped = self.finish(), True
            return text
        return self.push(self._model.detokenize([token], token in self._visible), is_thought)

    def is_full(self, max_tokens: int | None) -> bool:
        """Whether it has as many tokens, thoughts apart."""
        return max_tokens == (self.n_tokens if self.thoughts is None else self.thoughts.n_answer)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop)), 0, -1) if text.endswith(stop[:n])), 0)


MAX_TOKENS = 512
"""The most tokens of an answer, by default."""


class CompletionTokensDetails(TypedDict, total=False):
    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class PromptTokensDetails(TypedDict):
    """Of the prompt: how many tokens were known, and which known text parted from it there."""

    cached_tokens: int
    cache_stop: NotRequired[CacheStop]


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: NotRequired[CompletionTokensDetails]
    prompt_tokens_details: NotRequired[PromptTokensDetails]


class AnswerHead(TypedDict):
    id: str
    created: int
    model: str


class GenerationOptions(SamplingOptions, total=False):
    """Keyword arguments that completions of texts and of chats have in common."""

    max_tokens: int | None
    stop: str | collections.abc.Sequence[str] | None
    progress: ProgressOption
    draft: int
    dense_tail: int | None
    reuse: bool
    stopping_criteria: Stopping


@dataclass(frozen=True)
class Piece:
    """Text that is certain, and the tokens that came with it, if log-probabilities were asked for."""

    text: str
    logprobs: list[TokenLogprobs]


class Generation:
    """Makes the sequence the prompt, generates after it, and then knows how it ended.

    The keyword arguments of `owner` are checked. The answer to a `chat` has a budget of thoughts. The prompt has at
    least one token. `n_top_logprobs` is the number of most probable tokens reported with each one; None: no
    log-probabilities. `is_read`: the sequence is the prompt already.
    """

    def __init__(
        self,
        owner: str,
        state: State,
        prompt: Prompt,
        chat: _core.ChatPrompt | None = None,
        budget: int = 0,
        n_top_logprobs: int | None = None,
        is_read: bool = False,
        *,
        max_tokens: int | None = MAX_TOKENS,
        stop: str | collections.abc.Sequence[str] | None = None,
        progress: ProgressOption = None,
        dense_tail: int | None = None,
        draft: int = 0,
        reuse: bool = True,
        stopping_criteria: Stopping = None,
        **sampling: Unpack[SamplingOptions],
    ) -> None:
        options = Sampling.of(owner, sampling)
        grammar = chat.grammar() if chat else None
        if grammar is not None:
            options = replace(options, grammar=grammar)
        has_grammar = grammar is not None and not grammar.lazy
        core = state.engine.core
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4()}"
        self.created = int(time.time())
        self.state, self.prompt, self.n_top_logprobs, self.is_read = state, prompt, n_top_logprobs, is_read
        self._max_tokens = None if max_tokens is None else check.integer(owner, "max_tokens", max_tokens, 0)
        stops = check_stop(owner, stop) + (chat.stops if chat else [])
        self._sampling = options.compiled(core)
        self._progress = check_progress(owner, progress)
        self._dense_tail = state.check_tail(owner, DENSE_TAIL if dense_tail is None else dense_tail, len(prompt))
        self._draft = state.check_draft(owner, draft)
        self._reuse = check.flag(owner, "reuse", reuse)
        self._stopping_criteria = check.callables(owner, "stopping_criteria", stopping_criteria)
        self._is_chat = chat is not None
        self._thoughts = thoughts_of(core, chat, budget, has_grammar) if chat else None
        self.answer = AnswerText(core, stops, chat, self._thoughts)
        self.n_cached = self.n_drafted = self.n_accepted = 0
        self.cache_stop: CacheStop | None = None
        self.finish_reason: Literal["stop", "length"] | None = None

    @property
    def head(self) -> AnswerHead:
        """What an answer, and each chunk of it, begins with."""
        return {"id": self.id, "created": self.created, "model": self.state.engine.model._name}

    def pieces(self) -> Iterator[Piece]:
        """The text, each piece when it is certain. Generates it: call this or `all_pieces`, once."""
        return stream(self.state, self._pieces()) if self.state.claim.waits else self._pieces()

    def all_pieces(self) -> list[Piece]:
        """The text, in one call."""
        with self.state.claim.held():
            return list(self._pieces())

    def _pieces(self) -> Generator[Piece, None, None]:
        thoughts = self._thoughts
        if thoughts is not None:
            thoughts.leave_room(self.state.engine.n_ctx - len(self.prompt), self._max_tokens)
        if self.is_read:
            pass
        elif not self._reuse:
            self.state.reset()
        elif self._is_chat:
            with self.state.used() as context:
                ids = as_generated(self.state.engine.core, context.tokens, self.prompt.ids)
            self.prompt = replace(self.prompt, ids=ids)
        self.n_cached = len(self.prompt) if self.is_read else self.state.keep(self.prompt.ids)
        self.cache_stop = None if self.is_read else cache_stop_of(self.state, self.prompt.ids)
        self._counts_before = self.state.drafted, self.state.accepted
        n_chars, logprobs = 0, list[TokenLogprobs]()
        recorder, tokens = self._tokens()
        for token in tokens:
            begin = n_chars + self.answer.n_held
            text = self.answer.add(token)
            n_chars += len(text)
            if recorder is not None:
                logprobs.append(recorder.logprobs_of(token, begin))
            if self.answer.stopped:
                self._end("stop")
                yield Piece(text, [t for t in logprobs if t.offset < n_chars])
                return
            if text:
                yield Piece(text, logprobs)
                logprobs = []
            if thoughts is not None and self.answer.is_full(self._max_tokens):
                break
        is_at_end = len(self.prompt) + self.answer.n_tokens >= self.state.engine.n_ctx
        self._end("length" if is_at_end or self.answer.is_full(self._max_tokens) else "stop")
        yield Piece(self.answer.finish(), logprobs)

    def _end(self, reason: Literal["stop", "length"]) -> None:
        self.finish_reason = reason
        drafted, accepted = self._counts_before
        self.n_drafted, self.n_accepted = self.state.drafted - drafted, self.state.accepted - accepted

    def _tokens(self) -> tuple[LogprobsRecorder | None, Iterator[int]]:
        recorder, sampling = None, self._sampling
        if self.n_top_logprobs is not None:
            recorder = LogprobsRecorder(self.n_top_logprobs)
            sampling = replace(sampling, logits_processor=[recorder, *sampling.processors])
        new = self.prompt[self.n_cached :]
        return recorder, generate_by(
            self.state,
            sampling,
            new,
            self._progress,
            self._dense_tail,
            self._draft,
            self._stopping_criteria,
            self._max_tokens if self._thoughts is None or self._max_tokens == 0 else None,
            self.prompt.tokens,
            self._thoughts,
        )

    def usage(self) -> Usage:
        """How many tokens it took."""
        usage: Usage = {
            "prompt_tokens": len(self.prompt),
            "completion_tokens": self.answer.n_tokens,
            "total_tokens": len(self.prompt) + self.answer.n_tokens,
        }
        details: CompletionTokensDetails = {}
        if self._thoughts is not None:
            details["reasoning_tokens"] = self._thoughts.n
        if self._draft > 0:
            details["accepted_prediction_tokens"] = self.n_accepted
            details["rejected_prediction_tokens"] = self.n_drafted - self.n_accepted
        if details:
            usage["completion_tokens_details"] = details
        if self._reuse or self.n_cached:
            known = usage["prompt_tokens_details"] = {"cached_tokens": self.n_cached}
            if self.cache_stop is not None:
                known["cache_stop"] = self.cache_stop
        return usage


def check_stop(owner: str, stop: str | collections.abc.Sequence[str] | None) -> list[str]:
    """The strings at which a text ends."""
    if stop is None:
        return []
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list | tuple) or not all(isinstance(s, str) and s for s in stops):
        raise check.bad_argument(owner, "stop", "a string or a list of strings, none of them empty", stop)
    for text in stops:
        check.utf8(owner, "stop", text)
    return list(stops)


def stop_tokens(model: _core.Model, stop: collections.abc.Sequence[str]) -> frozenset[int]:
    """The special tokens that these strings name: such a token has no text in which the string could be found."""
    ids = [model.tokenize(text.encode(), False, True) for text in stop]
    return frozenset(some[0] for some in ids if len(some) == 1 and not model.detokenize(some, False))
