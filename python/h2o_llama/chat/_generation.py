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
from h2o_llama._prompt import CacheStop, Prompt, as_generated, where_they_part
from h2o_llama._thoughts import Thoughts
from h2o_llama.chat._question import Question
from h2o_llama.sampling import Sampling, SamplingOptions
from h2o_llama.sequence._engine import ProgressOption
from h2o_llama.sequence._state import State, check_progress, stream
from h2o_llama.sequence.generating import DENSE_TAIL, Drawing, ManyGenerations, Stopping, tokens_of


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
        logits, n = self._logits.astype(np.float64), self._n_top
        logits -= logits.max()
        logprobs = logits - np.log(np.exp(logits).sum())
        likely = np.flatnonzero(logprobs >= np.partition(logprobs, -n)[-n]) if n else np.empty(0, dtype=np.int64)
        best = likely[np.argsort(-logprobs[likely], kind="stable")][:n].tolist()
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
    """Turns the bytes of tokens into text. The part of a character, or of a possible stop string, is held back."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.held = ""
        self.stopped = False

    def push(self, piece: bytes, is_thought: bool = False) -> str:
        """The text that is certain now. After a stop string `stopped` is set and no more text may be pushed.

        Thoughts are not searched for stop strings.
        """
        text = self._decoder.decode(piece)
        if is_thought:
            text, self.held = self.held + text, ""
            return text
        return self._release(text)

    def finish(self) -> str:
        """The text that was kept back until the end, but a part of a character."""
        text = self._release("") + self.held
        self.held = ""
        return text

    def _release(self, new: str) -> str:
        text = self.held + new
        # Of stop strings that overlap, the one that is complete first: so tokens do not matter.
        found = [(i + len(stop), i) for stop in self._stop if (i := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self.held = ""
            return text[: min(found)[1]]
        n_held = max((_overlap(text, stop) for stop in self._stop), default=0)
        n_certain = len(text) - n_held
        self.held = text[n_certain:]
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
    """Of the prompt: how many tokens were known, how many of them elsewhere, and which known text parted from it."""

    cached_tokens: int
    moved_tokens: NotRequired[int]
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
    timeout: float | None
    stopping_criteria: Stopping


@dataclass(frozen=True)
class Piece:
    """Text that is certain, and the tokens that came with it, if log-probabilities were asked for."""

    text: str
    logprobs: list[TokenLogprobs]


class Generation:
    """An answer: makes the sequence its prompt, generates after it, and then knows how it ended.

    `asked` is a question, or a text to continue, of at least one token. The keyword arguments of `owner` are checked.
    `n_top_logprobs` is the number of most probable tokens reported with each one; None: no log-probabilities.
    Call `pieces` or `all_pieces`, once; `together` generates several in one step for each token.
    """

    def __init__(
        self,
        owner: str,
        state: State,
        asked: Question | Prompt,
        n_top_logprobs: int | None = None,
        *,
        max_tokens: int | None = MAX_TOKENS,
        stop: str | collections.abc.Sequence[str] | None = None,
        progress: ProgressOption = None,
        dense_tail: int | None = None,
        draft: int = 0,
        reuse: bool = True,
        timeout: float | None = None,
        stopping_criteria: Stopping = None,
        **sampling: Unpack[SamplingOptions],
    ) -> None:
        options = Sampling.of(owner, sampling)
        question, prompt = (asked, asked.prompt) if isinstance(asked, Question) else (None, asked)
        self._form = question.form if question else None
        grammar = self._form.grammar() if self._form else None
        if grammar is not None:
            options = replace(options, grammar=grammar)
        core = state.engine.core
        self.id = f"{'chatcmpl' if self._form else 'cmpl'}-{uuid.uuid4()}"
        self.created = int(time.time())
        self._state, self.n_top_logprobs = state, n_top_logprobs
        self.prompt = state.check_prompt(owner, prompt, 0)
        self._max_tokens = None if max_tokens is None else check.integer(owner, "max_tokens", max_tokens, 0)
        stops = check_stop(owner, stop) + (question.stops if question else [])
        self._sampling = options.compiled(core)
        self._progress = check_progress(owner, progress)
        if dense_tail is None:
            dense_tail = question.dense_tail if question else DENSE_TAIL
        self._dense_tail = check.integer(owner, "dense_tail", dense_tail, 0)
        self._draft = state.check_draft(owner, draft)
        self._reuse = check.flag(owner, "reuse", reuse)
        self._timeout = None if timeout is None else check.real(owner, "timeout", timeout, 0)
        self._stopping_criteria = check.callables(owner, "stopping_criteria", stopping_criteria)
        self._thoughts = None
        if question and self._form and self._form.thoughts[1]:
            has_grammar = grammar is not None and not grammar.lazy
            self._thoughts = Thoughts(core, self._form, question.budget, has_grammar)
        self.answer = AnswerText(core, stops, self._form, self._thoughts)
        self.n_cached = self._n_moved = self.n_drafted = self.n_accepted = self._n_chars = 0
        self.cache_stop: CacheStop | None = None
        self.finish_reason: Literal["stop", "length"] | None = None
        self._recorder: LogprobsRecorder | None = None
        self._logprobs = list[TokenLogprobs]()

    @property
    def head(self) -> AnswerHead:
        """What an answer, and each chunk of it, begins with."""
        return {"id": self.id, "created": self.created, "model": self._state.engine.model._name}

    def pieces(self) -> Iterator[Piece]:
        """The text, each piece when it is certain."""
        return stream(self._state, self._pieces()) if self._state.claim.waits else self._pieces()

    def all_pieces(self) -> list[Piece]:
        """The text, in one call."""
        with self._state.claim.held():
            return list(self._pieces())

    def _pieces(self) -> Generator[Piece, None, None]:
        with self._state.claim.held():  # known tokens stay known until the rest is read
            drawing = self._begin()
            drawing.read()
        for token in tokens_of(self, ManyGenerations({self: drawing}, 0 if self._max_tokens == 0 else None)):
            if (piece := self._add(token)) is not None:
                yield piece
            if self._is_over:
                break
        if (piece := self._end()) is not None:
            yield piece

    @staticmethod
    def together(generations: "Sequence[Generation]") -> "Iterator[tuple[Generation, list[Piece]]]":
        """Answers with room for a token or more, each once it is complete, and its text."""
        steps = ManyGenerations({generation: generation._begin() for generation in generations}, None)
        left = {generation: list[Piece | None]() for generation in generations}
        for tokens in steps:
            for generation, token in tokens.items():
                left[generation].append(generation._add(token))
            for generation in list(left):
                if generation not in tokens or generation._is_over:
                    steps.stop(generation)
                    pieces = [*left.pop(generation), generation._end()]
                    yield generation, [piece for piece in pieces if piece]
        for generation, some in left.items():
            yield generation, [piece for piece in [*some, generation._end()] if piece]

    def _begin(self) -> Drawing:
        """Make the sequence as much of the prompt as is known."""
        state = self._state
        if self._thoughts is not None:
            self._thoughts.leave_room(state.engine.n_ctx - len(self.prompt), self._max_tokens)
        if not self._reuse:
            state.reset()
        elif self._form is not None:
            with state.used() as context:
                ids = as_generated(state.engine.core, context.tokens, self.prompt.ids)
            self.prompt = replace(self.prompt, ids=ids)
        self.n_cached = state.keep(self.prompt.ids, self._dense_tail)
        self._n_moved = state.n_moved
        self.cache_stop = where_they_part(state.engine.core, state.known, self.prompt.ids)
        self._counts_before = state.drafted, state.accepted
        sampling = self._sampling
        if self.n_top_logprobs is not None:
            self._recorder = LogprobsRecorder(self.n_top_logprobs)
            sampling = replace(sampling, logits_processor=[self._recorder, *sampling.processors])
        return Drawing(
            f"{state.owner}.generate",
            state,
            sampling,
            self.prompt[self.n_cached :],
            self._progress,
            self._dense_tail,
            self._draft,
            self._stopping_criteria,
            self.prompt.tokens,
            self._thoughts,
            self._timeout,
        )

    @property
    def _is_over(self) -> bool:
        return self.answer.stopped or self.answer.is_full(self._max_tokens)

    def _add(self, token: int) -> Piece | None:
        """A token that was drawn, and the text that it makes certain."""
        begin = self._n_chars + len(self.answer.held)
        text = self.answer.add(token)
        self._n_chars += len(text)
        if self._recorder is not None:
            self._logprobs.append(self._recorder.logprobs_of(token, begin))
        told = [t for t in self._logprobs if t.offset < self._n_chars]
        self._logprobs = self._logprobs[len(told) :]
        return Piece(text, told) if text or self.answer.stopped else None

    def _end(self) -> Piece | None:
        """After the last token: why it is the last, and the text that was kept back."""
        is_at_end = len(self.prompt) + self.answer.n_tokens >= self._state.engine.n_ctx
        is_cut_off = not self.answer.stopped and (is_at_end or self.answer.is_full(self._max_tokens))
        self.finish_reason = "length" if is_cut_off else "stop"
        drafted, accepted = self._counts_before
        self.n_drafted, self.n_accepted = self._state.drafted - drafted, self._state.accepted - accepted
        return None if self.answer.stopped else Piece(self.answer.finish(), self._logprobs)

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
            known = usage["prompt_tokens_details"] = {"cached_tokens": self.n_cached + self._n_moved}
            if self._n_moved:
                known["moved_tokens"] = self._n_moved
            if self.cache_stop is not None:
                known["cache_stop"] = self.cache_stop
        return usage


def quotable(state: State) -> str:
    """A note about a text that was evicted in part."""
    h2o = state.engine.params.h2o
    with state.used() as context:
        kv = _core.KV.of_context(context)
    if kv is None or h2o is None or not h2o.evict or h2o.cold_store is not None or kv.info.chunk_index < 2:
        return ""
    n = kv.info.n_tokens - (kv.info.chunk_index - 1) * kv.info.chunk_size
    n_memory = kv.info.memory_size - h2o.local_window
    return (
        f" [only the last {n + h2o.local_window:,} tokens, and {n_memory:,} of the memory set, can be quoted: "
        "an answer about the rest is a guess]"
    )


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
