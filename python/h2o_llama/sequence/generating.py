"""Generating after a text, token by token."""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama.model import Tokens
from h2o_llama.sampling import Sampler, Sampling, SamplingOptions
from h2o_llama.sequence._drafting import DraftLength
from h2o_llama.sequence._evaluation import Progress
from h2o_llama.sequence._prompt import Prompt

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from h2o_llama.sequence.sequence import Sequence

StoppingCriterion = Callable[[NDArray[np.int32], NDArray[np.float32]], bool]
Stopping = StoppingCriterion | collections.abc.Sequence[StoppingCriterion] | None

DENSE_TAIL = 128
"""Tokens at the end of a prompt that attend to everything, where text is generated: room for a question."""


class Drawn(NamedTuple):
    """A token that has come out and is not computed yet, and how many tokens to draft with it."""

    token: int
    shortest_draft: int
    longest_draft: int


def generate(
    sequence: Sequence,
    tokens: Tokens,
    *,
    progress: Progress | None = None,
    dense_tail: int = DENSE_TAIL,
    draft: int = 0,
    stopping_criteria: Stopping = None,
    **sampling: Unpack[SamplingOptions],
) -> Generator[int, None, None]:
    r"""Append tokens to the sequence, then generate more, one at a time.

    A token comes out when it is drawn, and is computed when the next one is asked for or the sequence is looked at:
    so every token that came out is in the sequence, and none else. It ends when the model ends its text (the token
    that says so does not come out), or when the sequence has n_ctx tokens.

    Parameters
    ----------
    tokens : sequence of int, or integer ndarray [n]
        Token ids; empty to go on after the last eval.
    progress, dense_tail
        As in `eval`, for the tokens given: by default the last 128 of them attend to everything.
    draft : int, default 0
        Prompt lookup decoding, for answers that quote or edit what is in the sequence: where the text's end was
        there before, up to so many tokens that followed are computed together with the next token, and kept as
        far as they are what is drawn. 15 is a good value, and with decode="memory" the most where
        attention is scored; 0 is off. The same tokens come out, for every kind of
        sampling and with the same seed, but for rounding: logits of tokens computed together differ a little, most
        with quantised weights, which can decide near ties. Needs a model that can take tokens back: no recurrent
        one. `kv.stats` counts; looking at `kv` takes back what is drafted.
    stopping_criteria : callable, or sequence of callables, optional
        Each is called as criterion(input_ids, logits) before a token is drawn, int32 [n_tokens] and float32 [n_vocab],
        and ends the text by returning True. It must not call back into the `Llama`.
    **sampling
        temperature, top_k, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty, seed, grammar,
        logit_bias, logits_processor, typical_p, xtc_…, dry_…, mirostat_…: see `h2o_llama.sampling.Sampling`.
        Penalties count the tokens given and generated here, and a grammar is about the tokens generated here.

    Raises
    ------
    ValueError, H2OError
        As `eval`. H2OError too if there are no tokens and no logits to go on from.
    CancelledError
        If the sequence was reset, rewound, restored or reused between two tokens.

    Examples
    --------
    >>> from itertools import islice
    >>> prompt = llm.tokenize("k17=4829;\n" + "# a comment\n" * 20 + "k17?")
    >>> tokens = list(islice(llm.generate(prompt, temperature=0), 5))
    >>> llm.detokenize(tokens)
    b'4829;'
    """
    options = Sampling.of(f"{sequence._owner}.generate", sampling)
    return generate_by(sequence, options, tokens, progress, dense_tail, draft, stopping_criteria)


def generate_by(
    sequence: Sequence,
    sampling: Sampling,
    tokens: Tokens,
    progress: Progress | None,
    dense_tail: int,
    draft: int,
    stopping_criteria: Stopping,
    max_tokens: int | None = None,
    history: NDArray[np.int32] | None = None,
) -> Generator[int, None, None]:
    """`generate` of `max_tokens` at most, with the sampling in one piece. Penalties count the tokens of `history`."""
    owner = f"{sequence._owner}.generate"
    progress = sequence._check_progress(owner, progress)
    prompt, tail = check_prompt(sequence, owner, tokens, dense_tail)
    n_draft = sequence._check_draft(owner, draft)
    if sampling.seed is None:
        sampling = replace(sampling, seed=sequence._engine.seed)
    stops = check.callables(owner, "stopping_criteria", stopping_criteria)
    sampler = sampling.make_sampler(sequence._engine.core)
    sampler.accept(prompt.tokens if history is None else history)
    return _generate(sequence, prompt, sampler, progress, tail, n_draft, stops, max_tokens)


def check_prompt(sequence: Sequence, owner: str, tokens: Tokens, dense_tail: int) -> tuple[Prompt, int]:
    """`tokens` and `dense_tail` of a call that appends a prompt, perhaps an empty one, checked."""
    with sequence._use_context() as context:
        prompt = sequence._check_prompt(owner, tokens, context.n_tokens)
        return prompt, sequence._check_tail(owner, dense_tail, context.n_tokens + len(prompt))


def _generate(
    sequence: Sequence,
    prompt: Prompt,
    sampler: Sampler,
    progress: Progress | None,
    dense_tail: int,
    draft: int,
    stops: list[StoppingCriterion],
    max_tokens: int | None,
) -> Generator[int, None, None]:
    if len(prompt) > 0:
        with sequence._change_context() as context:
            sequence._read(context, prompt, progress, dense_tail)
    try:
        yield from islice(_draw(sequence, sampler, draft, stops), max_tokens)
    finally:
        sequence._give()


def _draw(sequence: Sequence, sampler: Sampler, draft: int, stops: list[StoppingCriterion]) -> Iterator[int]:
    """The tokens, until the text ends."""
    n_texts = sequence._n_texts
    length = DraftLength(draft)
    sequence._n_drafted = n_accepted = 0
    while True:
        with sequence._change_context() as context:
            sequence._check_text(f"{sequence._owner}.generate", n_texts)
            n_left = sequence._engine.n_ctx - context.n_tokens
            if n_left <= 0:
                return
            sequence._warn_of_length(context.n_tokens + 1)
            if stops and any(stop(context.tokens, context.last_logits) for stop in stops):
                return
            token = sampler.sample(context)
            if sequence._engine.core.is_eog(token):
                return
            if context.accept_draft(token):
                n_accepted += 1
                sequence._logits = sequence._draft_logits[context.logits_index :][:1]
            else:
                length.report(sequence._n_drafted, n_accepted)
                n_accepted = 0
                shortest, longest = length.limits
                sequence._waiting = Drawn(token, shortest, min(longest, n_left - 1))
        yield token


def eval_with_draft(sequence: Sequence, context: _core.Context, drawn: Drawn) -> int:
    """Append a generated token, and compute a draft of what follows. Returns the number of tokens in the draft."""
    ids = np.array([drawn.token], dtype=np.int32)
    if drawn.longest_draft > 0:
        ids = np.append(ids, context.find_draft(drawn.token, drawn.shortest_draft, drawn.longest_draft))
    if len(ids) == 1:
        sequence._eval(context, Prompt.of_tokens(ids), False, None, 0, True)
    else:
        rows = np.empty((len(ids), sequence._engine.core.n_vocab), dtype=np.float32)
        sequence._logits = None
        context.decode_draft(ids, rows)
        sequence._draft_logits, sequence._logits = rows, rows[:1]
    return len(ids) - 1
