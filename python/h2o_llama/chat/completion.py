"""Completing a text, in OpenAI's shapes."""

import collections.abc
from collections.abc import Iterator
from itertools import chain
from typing import Literal, TypedDict, overload

from typing_extensions import Unpack

from h2o_llama._internal import check
from h2o_llama._internal.llama_cpp import understands
from h2o_llama._prompt import Tokens
from h2o_llama.chat import _generation
from h2o_llama.model import Model
from h2o_llama.sequence._state import HasState

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
    sequence: HasState, prompt: Text, *, stream: Literal[False] = ..., **options: Unpack[CompletionOptions]
) -> Completion: ...
@overload
def create_completion(
    sequence: HasState, prompt: Text, *, stream: Literal[True], **options: Unpack[CompletionOptions]
) -> Iterator[CompletionChunk]: ...
@overload
def create_completion(
    sequence: HasState, prompt: Text, *, stream: bool, **options: Unpack[CompletionOptions]
) -> Completion | Iterator[CompletionChunk]: ...


@understands
def create_completion(
    sequence: HasState,
    prompt: Text,
    *,
    stream: bool | None = False,
    echo: bool | None = False,
    logprobs: int | None = None,
    **options: Unpack[_generation.GenerationOptions],
) -> Completion | Iterator[CompletionChunk]:
    r"""Complete a text, as OpenAI's completions do. The sequence becomes this text and holds nothing else.

    What the sequence shares with the prompt stays, so that only new tokens are computed:
    `usage["prompt_tokens_details"]["cached_tokens"]` says how many were known.

    Raises ValueError or H2OError as `generate`.

    Parameters
    ----------
    prompt : str, bytes, or token ids
        In text, names of special tokens count as these tokens.
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
        Raise Cancelled after so many seconds of reading and writing, as `cancel` does from another thread.
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
    owner, model = f"{state.owner}.create_completion", state.engine.model
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
    generation = _generation.Generation(owner, state, checked, n_top_logprobs=logprobs, **options)
    begin = _generation.Piece(_text_of(model, prompt) if echo else "", [])

    def chunk(piece: _generation.Piece, end: FinishReason = None) -> CompletionChunk:
        known = (
            None
            if logprobs is None
            else _generation.completion_logprobs(model._handle, piece.logprobs, len(begin.text))
        )
        choice: Choice = {"text": piece.text, "index": 0, "logprobs": known, "finish_reason": end}
        return {**generation.head, "object": "text_completion", "choices": [choice]}

    def streamed() -> Iterator[CompletionChunk]:
        """Chunks with text, then one without that tells the reason of the end."""
        yield from (chunk(piece) for piece in chain([begin], generation.pieces()) if piece.text or piece.logprobs)
        yield chunk(_generation.Piece("", []), generation.finish_reason)

    if check.optional_flag(owner, "stream", stream):
        return streamed()
    pieces = [begin, *generation.all_pieces()]
    whole = _generation.Piece("".join(p.text for p in pieces), [t for p in pieces for t in p.logprobs])
    return {**chunk(whole, generation.finish_reason), "usage": generation.usage()}


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

    Each prompt keeps the prefix that it shares with the one before. `generate_many` computes several at once.

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
    texts = [create_completion(sequence, prompt, **options)["choices"][0]["text"] for prompt in asked]
    return texts[0] if isinstance(prompts, str) else texts


def _text_of(model: Model, prompt: Text) -> str:
    if isinstance(prompt, str):
        return prompt
    return (prompt if isinstance(prompt, bytes) else model.detokenize(prompt)).decode(errors="replace")
