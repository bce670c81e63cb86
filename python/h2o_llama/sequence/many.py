"""Several sequences generate at once."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
from typing_extensions import Unpack

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.machine import core_errors
from h2o_llama._prompt import Prompt, Tokens
from h2o_llama._thoughts import Thoughts
from h2o_llama.sampling import Sampler, Sampling, SamplingOptions
from h2o_llama.sequence._engine import Engine
from h2o_llama.sequence._scoring import close_chunks
from h2o_llama.sequence._state import HasState, State
from h2o_llama.sequence.generating import DENSE_TAIL

S = TypeVar("S", bound=HasState)
Start = tuple[S, Prompt, int, Sampler]
"""A sequence, the checked prompt to append first, its dense tail, and the sampler that has seen the prompt."""


class ManyGenerations(Iterator[dict[S, int]], Generic[S]):
    """What `Llama.generate_many` returns: in each step the next token of every sequence that has not ended."""

    def __init__(self, engine: Engine, starts: list[Start[S]], max_tokens: int | None) -> None:
        self._engine = engine
        self._starts = starts  # prompts that are not in their sequences yet
        self._samplers: dict[S, Sampler] = {}  # of generating sequences
        self._n_texts: dict[S, int] = {}
        self._drawn: dict[S, int] = {}  # tokens that a step which failed has drawn: their samplers have them
        self._n_left = max_tokens

    def follow(self, sequence: S, thoughts: Thoughts) -> None:
        """Tell thoughts from the answer, before the first step."""
        next(sampler for start, _, _, sampler in self._starts if start is sequence).thoughts = thoughts

    def stop(self, sequence: S) -> None:
        """End a sequence: it gets no more tokens. The others continue."""
        self._starts = [start for start in self._starts if start[0] is not sequence]
        self._samplers.pop(sequence, None)
        self._drawn.pop(sequence, None)

    def __next__(self) -> dict[S, int]:
        while self._starts:
            sequence, prompt, dense_tail, sampler = self._starts[0]
            state = sequence._state
            with state.changed() as context:
                state.read(context, prompt, None, dense_tail)
            self._n_texts[sequence] = state.n_texts
            self._samplers[sequence] = sampler
            self._starts.pop(0)
        if self._n_left == 0:
            raise StopIteration
        with self._engine.claim.held() as deadline:
            for sequence in self._samplers:
                sequence._state.end_stream(deadline)
            with self._engine.claim, core_errors():
                self._draw()
                if not self._drawn:
                    raise StopIteration
                self._append(self._drawn)
        tokens, self._drawn = self._drawn, {}
        if self._n_left is not None:
            self._n_left -= 1
        return tokens

    def _draw(self) -> None:
        """The next token of each sequence that has not ended."""
        for sequence, sampler in list(self._samplers.items()):
            sequence._state.check_text("Llama.generate_many", self._n_texts[sequence])
            if sequence in self._drawn:
                continue
            context = sequence._state.context
            if context.n_tokens < self._engine.n_ctx:
                token = sampler.sample(context, sequence._state.logits_to_draw_from(context))
                if not self._engine.core.is_eog(token):
                    self._drawn[sequence] = token
                    continue
            del self._samplers[sequence]

    def _append(self, tokens: dict[S, int]) -> None:
        rows = np.empty((len(tokens), self._engine.core.n_vocab), dtype=np.float32)
        for sequence in tokens:
            sequence._state.set_logits(None)
        contexts = [sequence._state.context for sequence in tokens]
        _core.Context.decode_each(contexts, np.array(list(tokens.values()), dtype=np.int32), rows)
        try:
            close_chunks(contexts, self._engine.params.h2o)
        except BaseException:
            for sequence, context in zip(tokens, contexts, strict=True):
                sequence._state.cut(context, context.n_tokens - 1)
            raise
        for sequence, row in zip(tokens, rows, strict=True):
            sequence._state.set_logits(row[np.newaxis])


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
    if max_tokens is not None:
        max_tokens = check.integer(owner, "max_tokens", max_tokens, 0)
    if not isinstance(prompts, Mapping) or not prompts:
        raise check.bad_argument(owner, "prompts", "a mapping from sequences to token ids, not empty", prompts)
    options, engine = Sampling.of(owner, sampling), llama._state.engine
    first_seed = engine.seed if options.seed is None else options.seed
    starts: list[Start[S]] = []
    for i, (sequence, tokens) in enumerate(prompts.items()):
        state = getattr(sequence, "_state", None)
        if not isinstance(state, State) or state.engine is not engine:
            raise check.bad_argument(owner, "prompts", "of sequences of this Llama", sequence)
        prompt, tail = state.check_addition(owner, tokens, dense_tail)
        seed = None if first_seed is None else (int(first_seed) + i) % _core.RANDOM_SEED
        sampler = replace(options, seed=seed).make_sampler(engine.core)
        sampler.accept(prompt.tokens)
        starts.append((sequence, prompt, tail, sampler))
    return ManyGenerations(engine, starts, max_tokens)
