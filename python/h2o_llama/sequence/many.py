"""Several sequences generate at once."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from typing_extensions import Unpack

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.machine import core_errors
from h2o_llama._prompt import Tokens
from h2o_llama.sampling import Sampling, SamplingOptions
from h2o_llama.sequence._drawing import DENSE_TAIL, Drawing
from h2o_llama.sequence._state import HasState, State

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
