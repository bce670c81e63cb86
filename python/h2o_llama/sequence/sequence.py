"""One text, and what is generated after it."""

from __future__ import annotations

import collections.abc
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.memory import check_all_logits_size
from h2o_llama.config import H2OConfig
from h2o_llama.errors import H2OError
from h2o_llama.grammar import LlamaGrammar
from h2o_llama.inspect.sequence_kv import LlamaKV
from h2o_llama.model import Tokens
from h2o_llama.sampling import LogitsProcessor, Sampler, Sampling
from h2o_llama.sequence.drafting import DraftLength
from h2o_llama.sequence.engine import Engine
from h2o_llama.sequence.past import Past

if TYPE_CHECKING:
    from typing_extensions import Self

Progress = Callable[[int, int], object]

DENSE_TAIL = 128
"""Tokens at the end of a prompt that attend to everything, where text is generated: room for a question."""


class Sequence(Past):
    """One of the sequences of a `Llama`: a text with its own positions, scores and memory sets.

    `Llama.sequence()` and `fork()` make one. It holds one of the n_seq_max places until `close()`, or leaving a `with`
    block, or until it is garbage. Sequences of one `Llama` take turns; none sees anything of another.
    """

    _owner = "Sequence"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._context: _core.Context | None = engine.take(self)
        self._logits: NDArray[np.float32] | None = None
        self._draft_logits = np.empty((0, 0), dtype=np.float32)  # of a call with a draft, a row for each token
        self._waiting: _Drawn | None = None  # it has come out, and is computed when somebody looks
        self._n_drafted = 0  # with the last token that was drawn

    # --- life

    def close(self) -> None:
        """Forget the sequence and free its place. Closing twice is fine, using what is closed raises ValueError."""
        with self._engine.claim:
            self._waiting = None
            if self._context is not None:
                self._engine.give_back(self._context)
            self._context = None
            self._logits = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def reset(self) -> None:
        """Forget the tokens, scores, memory sets and logits."""
        with self._engine.claim:
            self._waiting = None  # it need not be computed
            self.open_context().clear()
            self._logits = None
            self._n_texts += 1

    def fork(self) -> Sequence:
        """A new sequence that goes on where this one is: it copies its tokens, K and V, scores and memory sets.

        Raises
        ------
        H2OError
            If all n_seq_max sequences are in use.
        """
        with self.use_context() as context:
            fork = Sequence(self._engine)
            fork.open_context().copy_from(context)
            fork._logits = None if self._logits is None else self._logits.copy()
            return fork

    @contextmanager
    def use_context(self) -> Iterator[_core.Context]:
        """The core's context, for one call of this package's own classes."""
        with self._engine.claim:
            yield self.open_context()

    def _draft_counts(self) -> tuple[int, int]:
        """How many tokens were drafted and accepted since the last reset. Computes nothing, unlike `kv.stats`."""
        with self._engine.claim:
            return (0, 0) if self._context is None else (self._context.n_drafted, self._context.n_accepted)

    def open_context(self) -> _core.Context:
        """The same for callers that have claimed it."""
        self._engine.model  # noqa: B018 (raises if closed)
        if self._context is None:
            raise ValueError(f"[{self._owner}] this sequence is closed")
        if self._waiting is not None:
            drawn, self._waiting = self._waiting, self._waiting._replace(longest_draft=0)  # if this fails, alone
            self._n_drafted = self._eval_with_draft(self._context, drawn)
            self._waiting = None
        return self._context

    # --- the sequence

    @property
    def n_ctx(self) -> int:
        """How many tokens the sequence can hold; 2**31 - 1 if eviction leaves it without a limit."""
        return self._engine.n_ctx

    @property
    def n_tokens(self) -> int:
        """Tokens in the sequence."""
        with self.use_context() as context:
            return context.n_tokens

    @property
    def logits(self) -> NDArray[np.float32]:
        """Logits of the last `eval`, float32 [n_outputs, n_vocab]: of all its tokens, or of the last one."""
        with self.use_context():
            if self._logits is None:
                raise H2OError(f"[{self._owner}] there are no logits: call eval first")
            return self._logits

    @property
    def h2o(self) -> H2OConfig | None:
        """The configuration; None if H2O is off."""
        return self._engine.params.h2o

    @property
    def kv(self) -> LlamaKV:
        """A look inside the KV cache."""
        return LlamaKV(self, f"{self._owner}.kv", self._engine.params.record)

    def eval(
        self,
        tokens: Tokens,
        logits: Literal["last", "all"] = "last",
        progress: Progress | None = None,
        dense_tail: int = 0,
        decode: bool = False,
    ) -> None:
        """Append tokens to the sequence and compute their logits.

        They are a prompt, of which any split into calls gives the same result, unless they are said to be generated.
        More than n_batch tokens take several calls into llama.cpp.

        Parameters
        ----------
        tokens : sequence of int, or integer ndarray [n]
            Token ids, at least one.
        logits : {"last", "all"}
            Whether `logits` is [1, n_vocab] afterwards, or [n, n_vocab].
        progress : callable, optional
            Called as progress(n_done, n) after every chunk. What it raises ends the eval and is raised again.
        dense_tail : int, default 0
            The last so many of these tokens attend to everything in the sequence, as with h2o=None: for the question at
            the end of a prompt. Costs O(dense_tail * n_tokens). Without H2O every token does.
        decode : bool, default False
            The tokens were generated: they attend to what `H2OConfig.decode` says.
            `generate` does this by itself; it is for a sampling loop of your own. Without H2O it makes no difference.

        Raises
        ------
        ValueError
            If a token is no token id, the sequence would get longer than n_ctx, or all logits together do not fit into
            memory. Nothing has changed then.
        H2OError
            If the computation fails. As after an exception from `progress`, or Ctrl-C, the unfinished call into
            llama.cpp is undone: the sequence is as it was before, plus the calls that were finished; `n_tokens` tells.
        """
        check.choice(f"{self._owner}.eval", "logits", logits, ("last", "all"))
        with self.use_context() as context:
            ids = self._check_prompt(f"{self._owner}.eval", tokens, context.n_tokens)
            if len(ids) == 0:
                raise ValueError(f"[{self._owner}.eval] tokens must not be empty")
            tail = self._check_tail(f"{self._owner}.eval", dense_tail, context.n_tokens + len(ids))
            if check.flag(f"{self._owner}.eval", "decode", decode) and tail > 0:
                raise ValueError(f"[{self._owner}.eval] dense_tail is for a prompt: with decode=True leave it 0")
            progress = self._check_progress(f"{self._owner}.eval", progress)
            if logits == "all":
                check_all_logits_size(f"{self._owner}.eval", len(ids), self._engine.model.n_vocab)
            self._eval(context, ids, logits == "all", progress, tail, bool(decode))

    def _eval(
        self,
        context: _core.Context,
        ids: NDArray[np.int32],
        all_logits: bool,
        progress: Progress | None,
        dense_tail: int,
        decode: bool,
    ) -> None:
        out = np.empty((len(ids) if all_logits else 1, self._engine.model.n_vocab), dtype=np.float32)
        self._logits = None
        for start, stop in self._engine.params.split_calls(len(ids)):
            report = None if progress is None else _Report(progress, start, len(ids))
            rows = out[start:stop] if all_logits else out[: int(stop == len(ids))]
            context.decode(ids[start:stop], rows, max(0, dense_tail - (len(ids) - stop)), decode, report)
            if report is not None and self._engine.params.h2o is None:
                report(stop - start)
        self._logits = out

    def keep_logits(self, logits: NDArray[np.float32] | None) -> None:
        """What `logits` returns from now on, for this package's own classes."""
        self._logits = logits

    def check_prompt(self, owner: str, tokens: Tokens, dense_tail: int) -> tuple[NDArray[np.int32], int]:
        """`tokens` and `dense_tail` of a call that appends a prompt, perhaps an empty one, checked."""
        with self.use_context() as context:
            ids = self._check_prompt(owner, tokens, context.n_tokens)
            return ids, self._check_tail(owner, dense_tail, context.n_tokens + len(ids))

    def _check_prompt(self, owner: str, tokens: Tokens, n_tokens: int) -> NDArray[np.int32]:
        ids = check.token_ids(owner, tokens, self._engine.model.n_vocab)
        if n_tokens + len(ids) > self._engine.n_ctx:
            raise ValueError(
                f"[{owner}] {len(ids)} tokens after {n_tokens} do not fit into n_ctx={self._engine.n_ctx}: "
                "use a larger n_ctx, fewer tokens, or reset()"
            )
        self.warn_of_length(n_tokens + len(ids))
        return ids

    def warn_of_length(self, n_tokens: int) -> None:
        """Once, when a text gets longer than what the model knows."""
        n_trained = self._engine.model.n_ctx_train
        if self._engine.warns_of_length and n_tokens > n_trained:
            self._engine.warns_of_length = False
            warnings.warn(
                f"[{self._owner}] this model was trained for texts of {n_trained} tokens, this one is longer: "
                "positions after that are unknown to it, and it may write nonsense",
                stacklevel=4,
            )

    def _check_progress(self, owner: str, progress: Progress | None) -> Progress | None:
        if progress is not None and not callable(progress):
            raise check.bad_argument(owner, "progress", "callable or None", progress)
        return progress

    def _check_tail(self, owner: str, dense_tail: int, n_tokens: int) -> int:
        return self._engine.params.check_dense_tail(self._engine.model, owner, dense_tail, n_tokens)

    def _check_draft(self, owner: str, draft: int) -> int:
        n = check.integer(owner, "draft", draft, 0)
        if n > 0 and self._engine.model.is_recurrent:
            raise check.bad_argument(owner, "draft", "0, as a recurrent model cannot take tokens back", draft)
        return n

    # --- generation

    def generate(
        self,
        tokens: Tokens,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        seed: int | None = None,
        progress: Progress | None = None,
        dense_tail: int = DENSE_TAIL,
        draft: int = 0,
        grammar: LlamaGrammar | str | None = None,
        logit_bias: Mapping[int, float] | None = None,
        logits_processor: LogitsProcessor | collections.abc.Sequence[LogitsProcessor] | None = None,
    ) -> Iterator[int]:
        """Append tokens to the sequence, then generate more, one at a time.

        A token comes out when it is drawn, and is computed when the next one is asked for or the sequence is looked at:
        so every token that came out is in the sequence, and none else. It ends when the model ends its text (the token
        that says so does not come out), or when the sequence has n_ctx tokens.

        Parameters
        ----------
        tokens : sequence of int, or integer ndarray [n]
            Token ids; empty to go on after the last eval.
        temperature, top_k, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty, seed
            See `h2o_llama.sampling.Sampling`. Penalties count the tokens given and generated here.
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
        grammar, logit_bias, logits_processor
            See `h2o_llama.sampling.Sampling`. A grammar is about the tokens generated here.

        Raises
        ------
        ValueError, H2OError
            As `eval`. H2OError too if there are no tokens and no logits to go on from, or if the sequence was reset,
            rewound, restored or reused between two tokens.
        """
        sampling = Sampling(
            *(temperature, top_k, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty, seed),
            *(grammar, logit_bias, logits_processor),
        )
        return self.generate_by(sampling, tokens, progress, dense_tail, draft)

    def generate_by(
        self, sampling: Sampling, tokens: Tokens, progress: Progress | None, dense_tail: int, draft: int
    ) -> Iterator[int]:
        """`generate`, for this package's own classes."""
        owner = f"{self._owner}.generate"
        progress = self._check_progress(owner, progress)
        ids, tail = self.check_prompt(owner, tokens, dense_tail)
        n_draft = self._check_draft(owner, draft)
        if sampling.seed is None:
            sampling = replace(sampling, seed=self._engine.seed)
        return self._generate(ids, sampling.make_sampler(self._engine.model), progress, tail, n_draft)

    def _generate(
        self, ids: NDArray[np.int32], sampler: Sampler, progress: Progress | None, dense_tail: int, draft: int
    ) -> Iterator[int]:
        n_texts = self._n_texts
        sampler.accept(ids)
        if len(ids) > 0:
            self.eval(ids, progress=progress, dense_tail=dense_tail)
        length = DraftLength(draft)
        self._n_drafted = n_accepted = 0
        while True:
            with self.use_context() as context:
                self._check_text(f"{self._owner}.generate", n_texts)
                n_left = self._engine.n_ctx - context.n_tokens
                if n_left <= 0:
                    return
                self.warn_of_length(context.n_tokens + 1)
                token = sampler.sample(context)
                if self._engine.model.is_eog(token):
                    return
                if context.accept_draft(token):
                    n_accepted += 1
                    self._logits = self._draft_logits[context.logits_index :][:1]
                else:
                    length.report(self._n_drafted, n_accepted)
                    n_accepted = 0
                    shortest, longest = length.limits
                    self._waiting = _Drawn(token, shortest, min(longest, n_left - 1))
            yield token

    def _eval_with_draft(self, context: _core.Context, drawn: _Drawn) -> int:
        """Append a generated token, and compute a draft of what follows. Returns the number of tokens in the draft."""
        ids = np.array([drawn.token], dtype=np.int32)
        if drawn.longest_draft > 0:
            ids = np.append(ids, context.find_draft(drawn.token, drawn.shortest_draft, drawn.longest_draft))
        if len(ids) == 1:
            self._eval(context, ids, False, None, 0, True)
        else:
            rows = np.empty((len(ids), self._engine.model.n_vocab), dtype=np.float32)
            self._logits = None
            context.decode_draft(ids, rows)
            self._draft_logits, self._logits = rows, rows[:1]
        return len(ids) - 1


class _Drawn(NamedTuple):
    """A token that has come out and is not computed yet, and how many tokens to draft with it."""

    token: int
    shortest_draft: int
    longest_draft: int


class _Report:
    """Turns the progress of one call into that of the whole prompt."""

    def __init__(self, progress: Progress, n_before: int, n_total: int) -> None:
        self._progress = progress
        self._n_before = n_before
        self._n_total = n_total

    def __call__(self, n_done: int) -> None:
        self._progress(self._n_before + n_done, self._n_total)
