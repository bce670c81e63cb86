"""The tokens of one text, drawn one after another, with drafts of those to come."""

import collections.abc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from h2o_llama._internal import check
from h2o_llama._prompt import Tokens
from h2o_llama._thoughts import Thoughts
from h2o_llama.sampling import Sampling
from h2o_llama.sequence._engine import Progress, ProgressOption
from h2o_llama.sequence._state import Drawn, State, check_progress

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


class Drawing:
    """Reads a prompt, checked at once, and draws the tokens after it. `drawn` is then to be computed, if it is not yet.

    Penalties count the tokens of `history`, by default the prompt's.
    """

    def __init__(
        self,
        owner: str,
        state: State,
        sampling: Sampling,
        tokens: Tokens,
        progress: ProgressOption = None,
        dense_tail: int = DENSE_TAIL,
        draft: int = 0,
        stopping_criteria: Stopping = None,
        history: NDArray[np.int32] | None = None,
        thoughts: Thoughts | None = None,
    ) -> None:
        self._owner, self.state = owner, state
        self._progress: Progress | None = check_progress(owner, progress)
        self._prompt, self._dense_tail = state.check_addition(owner, tokens, dense_tail)
        self._draft = DraftLength(state.check_draft(owner, draft))
        self._stops = check.callables(owner, "stopping_criteria", stopping_criteria)
        if sampling.seed is None:
            sampling = replace(sampling, seed=state.engine.seed)
        self._sampler = sampling.make_sampler(state.engine.core)
        self._sampler.thoughts = thoughts
        self._sampler.accept(self._prompt.tokens if history is None else history)
        self._n_accepted = 0
        self.drawn: Drawn | None = None

    def read(self) -> None:
        """Append the prompt, if it is not there yet."""
        if len(self._prompt) > 0:
            with self.state.changed() as context:
                self.state.read(context, self._prompt, self._progress, self._dense_tail)
            self._prompt = self._prompt[:0]
        self._n_texts = self.state.n_texts
        self.state.n_drafted = 0

    def next(self) -> int | None:
        """The next token, None after the last one; for callers that have the lock."""
        state, self.drawn = self.state, None
        state.check_text(self._owner, self._n_texts)
        context = state.context
        n_left = state.engine.n_ctx - context.n_tokens
        if n_left <= 0:
            return None
        state.warn_of_length(context.n_tokens + 1)
        logits = state.logits_to_draw_from(context)
        if any(stop(context.tokens, logits.copy()) for stop in self._stops):
            return None
        token = self._sampler.sample(context, logits)
        if state.engine.core.is_eog(token):
            return None
        if state.accept_draft(context, token):
            self._n_accepted += 1
        else:
            self._draft.report(state.n_drafted, self._n_accepted)
            self._n_accepted = 0
            shortest, longest = self._draft.limits
            self.drawn = Drawn(token, shortest, min(longest, n_left - 1))
        return token
