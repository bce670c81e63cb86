"""Generating after texts, token by token: one alone, or several at once."""

import collections.abc
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.llama_cpp import understands
from h2o_llama._internal.machine import core_errors
from h2o_llama._prompt import Tokens
from h2o_llama._thoughts import Thoughts
from h2o_llama.errors import Cancelled, H2OError
from h2o_llama.sampling import Sampling, SamplingOptions
from h2o_llama.sequence._engine import Progress, ProgressOption
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


class Drawing:
    """Reads a prompt, checked at once, and draws the tokens after it. `drawn` is then to be computed, if it is not yet.

    Penalties count the tokens of `history`, by default the prompt's. After `timeout` seconds, or if it is cancelled,
    it raises Cancelled.
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
        timeout: float | None = None,
    ) -> None:
        self._owner, self.state = owner, state
        self._timeout, self._begin = timeout, time.monotonic()
        state.is_cancelled = False
        self._progress: Progress | None = check_progress(owner, progress)
        with state.used() as context:
            self._prompt = state.check_prompt(owner, tokens, context.n_tokens)
        self._dense_tail = check.integer(owner, "dense_tail", dense_tail, 0)
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
                self.state.read(context, self._prompt, self._report, self._dense_tail)
            self._prompt = self._prompt[:0]
        self._n_texts = self.state.n_texts
        self.state.n_drafted = 0

    def _report(self, n_done: int, n: int) -> None:
        self._check_time()
        if self._progress is not None:
            self._progress(n_done, n)

    def _check_time(self) -> None:
        if self.state.is_cancelled:
            raise Cancelled(f"[{self._owner}] was ended by cancel()")
        if self._timeout is not None and time.monotonic() - self._begin > self._timeout:
            raise Cancelled(f"[{self._owner}] takes longer than timeout={self._timeout:g} seconds")

    def next(self) -> int | None:
        """The next token, None after the last one; for callers that have the lock."""
        state, self.drawn = self.state, None
        self._check_time()
        if state.n_texts != self._n_texts:
            raise Cancelled(
                f"[{self._owner}] the sequence now holds another text: generate again, or use a sequence for each text"
            )
        context = state.context
        n_left = state.engine.n_ctx - context.n_tokens
        if n_left <= 0:
            return None
        state.warn_of_length(context.n_tokens + 1)
        if (logits := state.last_logits) is None or context.n_tokens == 0:
            raise H2OError(f"[{self._owner}] there are no logits to sample from: pass at least one token")
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


S = TypeVar("S", bound=HasState)


class ManyGenerations(Iterator[dict[S, int]], Generic[S]):
    """What `Llama.generate_many` returns: in each step the next token of every sequence that has not ended."""

    def __init__(self, drawings: dict[S, Drawing], max_tokens: int | None) -> None:
        self._unread = list(drawings.values())
        self._drawings = drawings
        self._drawn: dict[S, int] = {}  # tokens that a step which failed has drawn: their samplers have them
        self._n_left = max_tokens

    def stop(self, sequence: S) -> None:
        """End a sequence: it gets no more tokens. The others continue."""
        drawing = self._drawings.pop(sequence, None)
        self._unread = [unread for unread in self._unread if unread is not drawing]
        self._drawn.pop(sequence, None)

    def read(self) -> None:
        """Append the prompts, before the first step."""
        while self._unread:
            self._unread[0].read()
            self._unread.pop(0)

    def __next__(self) -> dict[S, int]:
        self.read()
        if self._n_left == 0 or not self._drawings:
            raise StopIteration
        states = [drawing.state for drawing in self._drawings.values()]
        claim = states[0].claim
        with claim.held() as deadline:
            for state in states:
                state.end_stream(deadline)
            with claim, core_errors():
                for sequence, drawing in list(self._drawings.items()):
                    if sequence not in self._drawn:
                        token = drawing.next()
                        if token is None:
                            del self._drawings[sequence]
                        else:
                            self._drawn[sequence] = token
                State.append_each([(drawing.state, drawing.drawn) for drawing in self._drawings.values()])
        if not self._drawn:
            raise StopIteration
        tokens, self._drawn = self._drawn, {}
        if self._n_left is not None:
            self._n_left -= 1
        return tokens


def check_max_tokens(owner: str, max_tokens: int | None) -> int | None:
    return None if max_tokens is None else check.integer(owner, "max_tokens", max_tokens, 0)


class GenerateOptions(SamplingOptions, total=False):
    """Options of `generate`, but `progress`; see there."""

    max_tokens: int | None
    dense_tail: int
    draft: int
    stopping_criteria: Stopping


@understands
def generate(
    sequence: HasState,
    tokens: Tokens,
    *,
    max_tokens: int | None = None,
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
    max_tokens : int or None, default None
        The most tokens to generate; None: until the text ends.
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
    >>> prompt = llm.tokenize("k17=4829;\n" + "# a comment\n" * 20 + "k17?")
    >>> llm.detokenize(list(llm.generate(prompt, temperature=0, max_tokens=5)))
    b'4829;'
    """
    owner, state = f"{sequence._state.owner}.generate", sequence._state
    n_most = check_max_tokens(owner, max_tokens)
    options = Sampling.of(owner, sampling)
    drawing = Drawing(owner, state, options, tokens, progress, dense_tail, draft, stopping_criteria)
    return tokens_of(sequence, ManyGenerations({sequence: drawing}, n_most))


def tokens_of(sequence: HasState, steps: ManyGenerations[HasState]) -> Generator[int, None, None]:
    """The tokens of one sequence. Its text is added to the library at the end."""
    reader = threading.current_thread()
    try:
        for step in steps:
            yield step[sequence]
            reader = threading.current_thread()
    finally:
        if threading.current_thread() is reader:  # another thread may collect an abandoned stream
            sequence._state.give_away()


def generate_many(
    llama: HasState,
    prompts: Mapping[S, Tokens],
    *,
    max_tokens: int | None = None,
    dense_tail: int = DENSE_TAIL,
    **sampling: Unpack[SamplingOptions],
) -> ManyGenerations[S]:
    r"""Append tokens to each of several sequences, then generate more in all of them at once.

    That is faster than one after another: the weights are read once for a token of each. Texts are the same as by
    `Sequence.generate` of each sequence alone, but for rounding.

    Raises ValueError or H2OError as `generate`. If a prompt cannot be computed, those before it have been appended. If
    a step cannot, no sequence has it.

    Parameters
    ----------
    prompts : mapping from Sequence to token ids
        Sequences of this `Llama`, itself included, and the tokens to append to each; empty to continue after
        its last eval.
    max_tokens : int or None, default None
        The most tokens to generate in each; None: until it ends.
    dense_tail : int, default 128
        As in `generate`.
    **sampling
        As in `generate`. Every sequence has its own sampler; the first has this seed, the i-th after it seed + i.

    Returns
    -------
    iterator of dict
        In each step, the next token of every sequence that has not ended, which holds it already. A sequence ends
        as in `generate`, or when `stop(sequence)` of the iterator is called.

    Examples
    --------
    >>> with Llama(model, n_ctx=256, n_seq_max=2) as llm:
    ...     texts = {llm: "k17=4829;\nk17?", llm.sequence(): "k23=1357;\nk23?"}
    ...     prompts = {sequence: llm.tokenize(text) for sequence, text in texts.items()}
    ...     steps = list(llm.generate_many(prompts, temperature=0, max_tokens=5))
    ...     print([llm.detokenize([step[sequence] for step in steps]) for sequence in prompts])
    [b'4829;', b'1357;']
    """
    owner = "Llama.generate_many"
    n_most = check_max_tokens(owner, max_tokens)
    if not isinstance(prompts, Mapping) or not prompts:
        raise check.bad_argument(owner, "prompts", "a mapping from sequences to token ids, not empty", prompts)
    options, engine = Sampling.of(owner, sampling), llama._state.engine
    first_seed = engine.seed if options.seed is None else options.seed
    drawings: dict[S, Drawing] = {}
    for i, (sequence, tokens) in enumerate(prompts.items()):
        state = getattr(sequence, "_state", None)
        if not isinstance(state, State) or state.engine is not engine:
            raise check.bad_argument(owner, "prompts", "of sequences of this Llama", sequence)
        seed = None if first_seed is None else (int(first_seed) + i) % _core.RANDOM_SEED
        drawings[sequence] = Drawing(owner, state, replace(options, seed=seed), tokens, dense_tail=dense_tail)
    return ManyGenerations(drawings, n_most)
