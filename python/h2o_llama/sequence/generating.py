"""Generating after a text, token by token."""

import collections.abc
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from h2o_llama._internal import check
from h2o_llama._internal.llama_cpp import understands
from h2o_llama._prompt import Tokens
from h2o_llama._thoughts import Thoughts
from h2o_llama.sampling import Sampler, Sampling, SamplingOptions
from h2o_llama.sequence._engine import ProgressOption
from h2o_llama.sequence._state import Drawn, HasState, State, check_progress

# Time, in units of what a token takes without drafts: a draft of k tokens takes 1 + k / 2, about what CPUs need.
_PER_DRAFT = 1.0
_PER_DRAFTED_TOKEN = 0.5

_FIRST_BUDGET = 5.0
_LARGEST_BUDGET = 16.0
_EARNED_PER_TOKEN = 0.02

_SHORTEST = 4
"""Drafts of fewer tokens cost more than they save."""


class DraftLength:
    """How many tokens to draft next, by the success of earlier drafts: at most `longest`; 0 turns drafts off.

    Drafts are paid from a budget of time: a little is earned by every generated token, and what a draft saves is earned
    too. So drafts that are right get longer, drafts that are wrong get shorter and then rare, and all that can ever be
    lost is the first budget and 2 % of the time.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._budget = _FIRST_BUDGET

    @property
    def limits(self) -> tuple[int, int]:
        """The fewest and the most tokens of the next draft. If not even the fewest can be paid, the most is 0."""
        shortest = min(_SHORTEST, self._longest)
        affordable = int((self._budget - _PER_DRAFT) / _PER_DRAFTED_TOKEN)
        return shortest, min(self._longest, affordable) if affordable >= shortest else 0

    def report(self, n_drafted: int, n_accepted: int) -> None:
        """Count a call: the tokens drafted after the first, and how many were accepted."""
        self._budget += n_accepted + _EARNED_PER_TOKEN * (1 + n_accepted)
        if n_drafted > 0:
            self._budget -= _PER_DRAFT + _PER_DRAFTED_TOKEN * n_drafted
        self._budget = min(self._budget, _LARGEST_BUDGET)


StoppingCriterion = Callable[[NDArray[np.int32], NDArray[np.float32]], bool]
Stopping = StoppingCriterion | collections.abc.Sequence[StoppingCriterion] | None

DENSE_TAIL = 128
"""Tokens at the end of a prompt that attend to everything, where text is generated: room for a question."""


@understands
def generate(
    sequence: HasState,
    tokens: Tokens,
    *,
    progress: ProgressOption = None,
    dense_tail: int = DENSE_TAIL,
    draft: int = 0,
    stopping_criteria: Stopping = None,
    **sampling: Unpack[SamplingOptions],
) -> Generator[int, None, None]:
    r"""Append tokens to the sequence, then generate more, one at a time.

    A token comes out when it is drawn, and is computed when the next one is asked for or the sequence is looked at:
    so the sequence has exactly the tokens that came out. It ends when the model ends its text (the token
    that says so does not come out), or when the sequence has n_ctx tokens.

    Parameters
    ----------
    tokens : sequence of int, or integer ndarray [n]
        Token ids; empty to continue after the last eval.
    progress, dense_tail
        As in `eval`, for the tokens given: by default the last 128 of them attend to everything.
    draft : int, default 0
        Prompt lookup decoding, for answers that quote or edit the sequence. If the last tokens occurred earlier, up
        to `draft` tokens are guessed to follow as they did there, and computed together with the next token; right
        guesses are kept. 15 is a good value, and with decode="memory" the most where attention is scored; 0 is off.
        The same tokens come out, for every kind of sampling and with the same seed, but for rounding: logits of tokens
        computed together differ a little, most with quantised weights, which can decide near ties. Needs a model
        that can take tokens back: no recurrent one. `kv.stats` counts; looking at `kv` takes back drafted tokens.
    stopping_criteria : callable, or sequence of callables, optional
        Each is called as criterion(input_ids, logits) before a token is drawn, int32 [n_tokens] and float32 [n_vocab],
        and ends the text by returning True. It must not call back into the `Llama`.
    **sampling
        The fields of `h2o_llama.sampling.Sampling`: temperature, top_k, top_p, seed, grammar and the others.
        Penalties count the tokens given and generated here, and a grammar is about the tokens generated here.

    Raises
    ------
    ValueError, H2OError
        As `eval`. H2OError too if there are neither tokens nor logits to continue from.
    Cancelled
        If the sequence was reset, rewound, restored or reused between two tokens.

    Examples
    --------
    >>> from itertools import islice
    >>> prompt = llm.tokenize("k17=4829;\n" + "# a comment\n" * 20 + "k17?")
    >>> tokens = list(islice(llm.generate(prompt, temperature=0), 5))
    >>> llm.detokenize(tokens)
    b'4829;'
    """
    state = sequence._state
    options = Sampling.of(f"{state.owner}.generate", sampling)
    return generate_by(state, options, tokens, progress, dense_tail, draft, stopping_criteria)


def generate_by(
    state: State,
    sampling: Sampling,
    tokens: Tokens,
    progress: ProgressOption,
    dense_tail: int,
    draft: int,
    stopping_criteria: Stopping,
    max_tokens: int | None = None,
    history: NDArray[np.int32] | None = None,
    thoughts: Thoughts | None = None,
) -> Generator[int, None, None]:
    """`generate` of `max_tokens` at most, with the sampling in one piece. Penalties count the tokens of `history`."""
    owner = f"{state.owner}.generate"
    progress = check_progress(owner, progress)
    prompt, tail = state.check_addition(owner, tokens, dense_tail)
    n_draft = state.check_draft(owner, draft)
    if sampling.seed is None:
        sampling = replace(sampling, seed=state.engine.seed)
    stops = check.callables(owner, "stopping_criteria", stopping_criteria)
    sampler = sampling.make_sampler(state.engine.core)
    sampler.thoughts = thoughts
    sampler.accept(prompt.tokens if history is None else history)

    def tokens_after_it() -> Generator[int, None, None]:
        if len(prompt) > 0:
            with state.changed() as context:
                state.read(context, prompt, progress, tail)
        reader = threading.current_thread()
        try:
            for token in islice(_draw(state, sampler, n_draft, stops), max_tokens):
                yield token
                reader = threading.current_thread()
        finally:
            if threading.current_thread() is reader:  # another thread may collect an abandoned stream
                state.give_away()

    return tokens_after_it()


def _draw(state: State, sampler: Sampler, draft: int, stops: list[StoppingCriterion]) -> Iterator[int]:
    """The tokens, until the text ends."""
    n_texts = state.n_texts
    length = DraftLength(draft)
    state.n_drafted = n_accepted = 0
    while True:
        with state.changed() as context:
            state.check_text(f"{state.owner}.generate", n_texts)
            n_left = state.engine.n_ctx - context.n_tokens
            if n_left <= 0:
                return
            state.warn_of_length(context.n_tokens + 1)
            logits = state.logits_to_draw_from(context)
            if any(stop(context.tokens, logits.copy()) for stop in stops):
                return
            token = sampler.sample(context, logits)
            if state.engine.core.is_eog(token):
                return
            if state.accept_draft(context, token):
                n_accepted += 1
            else:
                length.report(state.n_drafted, n_accepted)
                n_accepted = 0
                shortest, longest = length.limits
                state.waiting = Drawn(token, shortest, min(longest, n_left - 1))
        yield token
