"""Completing a text, in OpenAI's shapes."""

import collections.abc
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import chain
from typing import Any, Literal, TypedDict, overload

from typing_extensions import Unpack

from h2o_llama._internal import check
from h2o_llama._internal.llama_cpp import understands
from h2o_llama._prompt import Prompt, Tokens, shared_prefix
from h2o_llama.chat import _generation
from h2o_llama.errors import BusyError
from h2o_llama.model import Model
from h2o_llama.sequence._keeping import LEAST_NEW
from h2o_llama.sequence._state import HasState, State

Text = str | bytes | Tokens
FinishReason = Literal["stop", "length"] | None


class Choice(TypedDict):
    text: str
    index: int
    logprobs: _generation.CompletionLogprobs | None
    finish_reason: FinishReason


class CompletionChunk(_generation.AnswerHead):
    object: Literal["text_completion"]
    choices: list[Choice]


class Completion(CompletionChunk):
    usage: _generation.Usage


class CompletionOptions(_generation.GenerationOptions, total=False):
    """Keyword arguments of `create_completion`, but `stream`."""

    echo: bool | None
    logprobs: int | None


@overload
def create_completion(
    sequence: HasState, prompt: Text | list[str], *, stream: Literal[False] = ..., **options: Unpack[CompletionOptions]
) -> Completion: ...
@overload
def create_completion(
    sequence: HasState, prompt: Text, *, stream: Literal[True], **options: Unpack[CompletionOptions]
) -> Iterator[CompletionChunk]: ...
@overload
def create_completion(
    sequence: HasState, prompt: Text | list[str], *, stream: bool, **options: Unpack[CompletionOptions]
) -> Completion | Iterator[CompletionChunk]: ...


@understands
def create_completion(
    sequence: HasState,
    prompt: Text | list[str],
    *,
    stream: bool | None = False,
    **options: Unpack[CompletionOptions],
) -> Completion | Iterator[CompletionChunk]:
    r"""Complete a text, as OpenAI's completions do. The sequence becomes this text and holds nothing else.

    What the sequence shares with the prompt stays, so that only new tokens are computed:
    `usage["prompt_tokens_details"]["cached_tokens"]` says how many were known.

    Raises ValueError or H2OError as `generate`.

    Parameters
    ----------
    prompt : str, bytes, token ids, or list of str
        In text, names of special tokens count as these tokens. Several texts are completed at once, as many as
        n_seq_max has free sequences for, with a choice for each; what all of them begin with is read once. The
        sequence then becomes one of them. Not with `stream`.
    max_tokens : int or None, default 512
        The most tokens to generate; None: until the model ends, or the context is full.
    stream : bool, default False
        Return an iterator of chunks, a few characters each, instead of one dict.
    stop : str or list of str, optional
        The text ends before any of these. The name of a special token is that token.
    echo : bool, default False
        Put the prompt in front of the text; of token ids, the text without special tokens.
    progress
        As in `eval`.
    dense_tail : int, optional
        How many tokens at the end of the prompt attend to everything, as in `eval`; by default 128.
    draft : int, default 0
        As in `generate`: faster where the answer quotes or edits the prompt.
    reuse : bool, default True
        Keep what the sequence shares with the prompt, see `Llama.reuse`. False begins afresh, or from the `library` if
        there is one.
    logprobs : int, optional
        Report the log-probability of every generated token, and this many of the most probable ones. Not with
        `echo`; for a prompt use `eval(tokens, logits="all")`.
    timeout : float, optional
        Raise Cancelled after this number of seconds of reading and writing, as `cancel` does from another thread.
    stopping_criteria, **sampling
        As in `generate`; None is the default.

    Returns
    -------
    dict, or iterator of dict
        {"id", "object": "text_completion", "created", "model", "choices": [{"text", "index", "logprobs",
        "finish_reason"}], "usage"}. With `draft`, usage["completion_tokens_details"] counts
        "accepted_prediction_tokens" and "rejected_prediction_tokens"; with `reuse`, usage["prompt_tokens_details"]
        "cached_tokens". Chunks have no "usage", and only the last has
        a finish_reason ("stop" or "length").

    Examples
    --------
    >>> answer = llm("k17=4829;\nk17?", max_tokens=5, temperature=0)
    >>> answer["choices"][0]["text"], answer["usage"]["total_tokens"]
    ('4829;', 19)
    >>> [chunk["choices"][0]["text"] for chunk in llm("k17=4829;\nk17?", max_tokens=5, temperature=0, stream=True)]
    ['4', '8', '2', '9', ';', '']
    """
    state = sequence._state
    owner = f"{state.owner}.create_completion"
    is_stream = check.optional_flag(owner, "stream", stream)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        if is_stream or not all(isinstance(text, str) for text in prompt):
            raise check.bad_argument(owner, "prompt", "a list of str without stream, or one text", prompt)
        return _together(owner, state, prompt, options)
    run = _Run(owner, state, prompt, **options)  # type: ignore[arg-type]
    return run.stream() if is_stream else run.complete()


class _Run:
    """One text that is completed."""

    def __init__(
        self,
        owner: str,
        state: State,
        prompt: Text,
        echo: bool | None = False,
        logprobs: int | None = None,
        **options: Unpack[_generation.GenerationOptions],
    ) -> None:
        model = state.engine.model
        if isinstance(prompt, str):
            check.utf8(owner, "prompt", prompt)
        tokens = model.tokenize(prompt, parse_special=True) if isinstance(prompt, str | bytes) else prompt
        checked = state.check_prompt(owner, tokens, 0)
        if len(checked) == 0:
            raise ValueError(f"[{owner}] prompt must not be empty")
        if logprobs is not None:
            logprobs = check.integer(owner, "logprobs", logprobs, 0, model.n_vocab)
        if check.optional_flag(owner, "echo", echo) and logprobs is not None:
            raise ValueError(f"[{owner}] logprobs are of generated tokens: pass echo=False")
        self.generation = _generation.Generation(owner, state, checked, n_top_logprobs=logprobs, **options)
        self._model = model
        self._begin = _generation.Piece(_text_of(model, prompt) if echo else "", [])

    def _chunk(self, piece: _generation.Piece, end: FinishReason = None) -> CompletionChunk:
        known = None
        if self.generation.n_top_logprobs is not None:
            n = len(self._begin.text)
            known = _generation.completion_logprobs(self._model._handle, piece.logprobs, n)
        choice: Choice = {"text": piece.text, "index": 0, "logprobs": known, "finish_reason": end}
        return {**self.generation.head, "object": "text_completion", "choices": [choice]}

    def stream(self) -> Iterator[CompletionChunk]:
        """Chunks with text, then one without that tells the reason of the end."""
        pieces = chain([self._begin], self.generation.pieces())
        yield from (self._chunk(piece) for piece in pieces if piece.text or piece.logprobs)
        yield self._chunk(_generation.Piece("", []), self.generation.finish_reason)

    def complete(self, generated: list[_generation.Piece] | None = None) -> Completion:
        """All at once; of a generation that has ended, by its pieces."""
        pieces = [self._begin, *(self.generation.all_pieces() if generated is None else generated)]
        whole = _generation.Piece("".join(p.text for p in pieces), [t for p in pieces for t in p.logprobs])
        return {**self._chunk(whole, self.generation.finish_reason), "usage": self.generation.usage()}


def _together(owner: str, state: State, prompts: list[str], options: CompletionOptions) -> Completion:
    """Several texts, in all sequences that are free."""
    done: list[Completion] = []
    places = [state]
    with state.claim.held(), ExitStack() as stack:
        with suppress(BusyError):
            while len(places) < len(prompts):
                places.append(State(state.engine, state.owner))
                stack.callback(places[-1].close)
        for i in range(0, len(prompts), len(places)):
            group = prompts[i : i + len(places)]
            runs = [_Run(owner, place, text, **options) for place, text in zip(places, group, strict=False)]
            if len(runs) == 1 or options.get("max_tokens") == 0:
                done += [run.complete() for run in runs]
                continue
            if options.get("reuse", True):
                _share(places[: len(runs)], [run.generation.prompt for run in runs])
            pieces = dict(_generation.Generation.together([run.generation for run in runs]))
            done += [run.complete(pieces[run.generation]) for run in runs]
            for place in places[: len(runs)]:
                place.give_away()
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    usage: Any = {name: sum(dict[str, Any](each["usage"])[name] for each in done) for name in counts}
    known = [each["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0) for each in done]
    usage["prompt_tokens_details"] = {"cached_tokens": sum(known)}
    choices: list[Choice] = [{**each["choices"][0], "index": i} for i, each in enumerate(done)]
    return {**done[0], "choices": choices, "usage": usage}


def _share(places: list[State], prompts: list[Prompt]) -> None:
    """Read what all prompts begin with once, and copy it."""
    first = prompts[0].ids
    n = min(min(shared_prefix(first, other.ids) for other in prompts[1:]), *(len(each) - 1 for each in prompts))
    if n >= LEAST_NEW:
        n_kept = places[0].keep(first[:n])
        with places[0].changed() as context:
            if n_kept < n:
                places[0].read(context, prompts[0][n_kept:n], None, 0)
            for place in places[1:]:
                place.context.copy_from(context)
                place.set_logits(None)


@overload
def generate_text(  # type: ignore[overload-overlap]  # a text is a sequence of texts
    sequence: HasState, prompts: str, **options: Unpack[CompletionOptions]
) -> str: ...
@overload
def generate_text(
    sequence: HasState, prompts: collections.abc.Sequence[str], **options: Unpack[CompletionOptions]
) -> list[str]: ...
def generate_text(
    sequence: HasState, prompts: str | collections.abc.Sequence[str], **options: Unpack[CompletionOptions]
) -> str | list[str]:
    r"""The texts that `create_completion` gives for prompts, without anything around them: a list for a list.

    Several prompts are completed at once, as many as n_seq_max has sequences for.

    Examples
    --------
    >>> llm.generate_text("k17=4829;\nk17?", max_tokens=5, temperature=0)
    '4829;'
    >>> llm.generate_text(["k17=4829;\nk17?", "k23=1357;\nk23?"], max_tokens=5, temperature=0)
    ['4829;', '1357;']
    """
    asked = [prompts] if isinstance(prompts, str) else prompts
    if not isinstance(asked, list | tuple) or not all(isinstance(prompt, str) for prompt in asked):
        owner = f"{sequence._state.owner}.generate_text"
        raise check.bad_argument(owner, "prompts", "a text or a list of texts", prompts)
    if not asked:
        return []
    texts = [choice["text"] for choice in create_completion(sequence, list(asked), **options)["choices"]]
    return texts[0] if isinstance(prompts, str) else texts


def _text_of(model: Model, prompt: Text) -> str:
    if isinstance(prompt, str):
        return prompt
    return (prompt if isinstance(prompt, bytes) else model.detokenize(prompt)).decode(errors="replace")
