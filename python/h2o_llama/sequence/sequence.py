"""One text, and what is generated after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.core_errors import core_errors
from h2o_llama._internal.memory import check_all_logits_size
from h2o_llama._internal.warn import warn
from h2o_llama.chat import asking, chat_completion, completion
from h2o_llama.config import H2OConfig
from h2o_llama.errors import CancelledError, H2OError
from h2o_llama.inspect.sequence_kv import SequenceKV
from h2o_llama.library import _using as shelf
from h2o_llama.model import Model, Tokens
from h2o_llama.sequence import asynchronous, generating
from h2o_llama.sequence._engine import Engine
from h2o_llama.sequence._evaluation import Progress, evaluate, split_calls
from h2o_llama.sequence._prompt import Prompt, make_prompt, text_ids
from h2o_llama.sequence._rewinding import rewind
from h2o_llama.sequence._stream import Stream
from h2o_llama.sequence.snapshot import Snapshot, restore_snapshot, take_snapshot

if TYPE_CHECKING:
    from typing_extensions import Self


class Sequence:
    """One of the sequences of a `Llama`: a text with its own positions, scores and memory sets.

    `Llama.sequence()` and `fork()` make one. It holds one of the n_seq_max places until `close()`, or leaving a `with`
    block, or until it is garbage. Sequences of one `Llama` take turns; none sees anything of another.

    Attributes
    ----------
    n_cached : int
        How many tokens the last `eval` of a new text, `reuse` or completion did not have to compute: they were in the
        sequence, or in the `library`.
    text_name : str
        What the `library` calls the text, such as a file's name. By default it is how the text begins.
    """

    _owner = "Sequence"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._context: _core.Context | None = engine.take(self)
        self._logits: NDArray[np.float32] | None = None
        self._draft_logits = np.empty((0, 0), dtype=np.float32)  # of a call with a draft, a row for each token
        self._waiting: generating.Drawn | None = None  # it has come out, and is computed when somebody looks
        self._stream: Stream[Any] | None = None  # an answer whose end is not computed yet
        self._n_drafted = 0  # with the last token that was drawn
        self._n_texts = 0  # how often the text was replaced or cut
        self._n_kept = 0  # so many of its first tokens are in the library
        self.n_cached = 0
        self.text_name = ""

    # --- life

    def close(self) -> None:
        """Forget the sequence and free its place. Closing twice is fine, using what is closed raises ValueError."""
        if _core.is_forked():  # the end of the process frees the memory
            return
        with self._engine.claim.held() as deadline:
            self._drop_stream(deadline)
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
        """Forget the tokens, scores, memory sets and logits.

        Examples
        --------
        >>> llm.eval([1, 2, 3])
        >>> llm.reset()
        >>> llm.n_tokens
        0
        """
        with self._change():
            self._waiting = None  # it need not be computed
            self._open_context().clear()
            self._logits = None
            self._n_texts += 1
            self._n_kept = self.n_cached = 0

    def fork(self) -> Sequence:
        """A new sequence that goes on where this one is: it copies its tokens, K and V, scores and memory sets.

        Raises
        ------
        BusyError
            If all n_seq_max sequences are in use.

        Examples
        --------
        >>> llm.eval(llm.tokenize("One document. "))
        >>> with llm.fork() as fork:
        ...     fork.eval(llm.tokenize("One question?"))
        ...     print(fork.n_tokens, llm.n_tokens)
        27 14
        """
        with self._use_context() as context:
            fork = Sequence(self._engine)
            fork._open_context().copy_from(context)
            fork._logits = None if self._logits is None else self._logits.copy()
            fork._n_kept, fork.text_name = self._n_kept, self.text_name
            return fork

    @contextmanager
    def _use_context(self) -> Iterator[_core.Context]:
        """The core's context, for one call of this package's own classes."""
        with self._engine.claim, core_errors():
            yield self._open_context()

    @contextmanager
    def _change(self) -> Iterator[None]:
        """One call that changes the text. An answer that is being streamed comes to its end before."""
        with self._engine.claim.held() as deadline:
            self._end_stream(deadline)
            with self._engine.claim, core_errors():
                yield

    @contextmanager
    def _change_context(self) -> Iterator[_core.Context]:
        """The core's context, for such a call."""
        with self._change():
            yield self._open_context()

    def _end_stream(self, deadline: float) -> None:
        """Compute the rest of an answer that is being streamed, for callers that have the lock."""
        if self._stream is not None:
            self._stream.finish(deadline)
            if self._stream.has_ended:
                self._stream = None

    def _drop_stream(self, deadline: float) -> None:
        """The same before the sequence is closed: an answer that has a reader is not computed any further."""
        if self._stream is not None and self._stream.is_left:
            self._end_stream(deadline)
        self._stream = None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """`with llm.lock():` waits until no other thread uses the `Llama`, and keeps it for the calls of the block.

        It waits as long as `timeout` of the `Llama` says, also with `busy="raise"`. The block is one thread's: not for
        generators that several threads read, nor around an `await`.

        Examples
        --------
        >>> with llm.lock():
        ...     llm.reset()
        ...     llm.eval([1, 2])
        """
        with self._engine.claim.held(waits=True) as deadline:
            self._end_stream(deadline)
            yield

    def _draft_counts(self) -> tuple[int, int]:
        """How many tokens were drafted and accepted since the last reset. Computes nothing, unlike `kv.stats`."""
        with self._engine.claim:
            return (0, 0) if self._context is None else (self._context.n_drafted, self._context.n_accepted)

    def _open_context(self) -> _core.Context:
        """The same for callers that have claimed it."""
        self._engine.core  # noqa: B018 (raises if closed)
        if self._context is None:
            raise ValueError(f"[{self._owner}] this sequence is closed")
        if self._waiting is not None:
            drawn, self._waiting = self._waiting, self._waiting._replace(longest_draft=0)  # if this fails, alone
            self._n_drafted = generating.eval_with_draft(self, self._context, drawn)
            self._waiting = None
        return self._context

    # --- the sequence

    @property
    def model(self) -> Model:
        """Weights, vocabulary and chat template."""
        return self._engine.model

    @property
    def n_ctx(self) -> int:
        """How many tokens the sequence can hold; 2**31 - 1 if eviction leaves it without a limit."""
        return self._engine.n_ctx

    @property
    def n_tokens(self) -> int:
        """Tokens in the sequence."""
        with self._use_context() as context:
            return context.n_tokens

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The sequence, as token ids, int32 [n_tokens]; numbers below -1 are rows of embeddings."""
        with self._use_context() as context:
            return context.tokens

    @property
    def logits(self) -> NDArray[np.float32]:
        """Logits of the last `eval`, float32 [n_outputs, n_vocab]: of all its tokens, or of the last one.

        Examples
        --------
        >>> llm.eval(llm.tokenize("import sy"))
        >>> chr(llm.logits[-1].argmax())
        's'
        """
        with self._use_context():
            if self._logits is None:
                raise H2OError(f"[{self._owner}] there are no logits: call eval first")
            return self._logits

    @property
    def h2o(self) -> H2OConfig | None:
        """The configuration; None if H2O is off."""
        return self._engine.params.h2o

    @property
    def kv(self) -> SequenceKV:
        """A look inside the KV cache."""
        return SequenceKV(self, f"{self._owner}.kv", self._engine.params.record)

    def eval(
        self,
        tokens: Tokens | None = None,
        *,
        embeddings: ArrayLike | None = None,
        logits: Literal["last", "all"] = "last",
        progress: Progress | None = None,
        dense_tail: int = 0,
        decode: bool = False,
    ) -> None:
        """Append tokens to the sequence, or rows of embeddings in their place, and compute their logits.

        They are a prompt, of which any split into calls gives the same result, unless they are said to be generated.
        More than n_batch tokens take several calls into llama.cpp. With a `library`, an empty sequence takes from it
        what the tokens begin with, and what was read is added to it.

        Parameters
        ----------
        tokens : sequence of int, or integer ndarray [n]
            Token ids, at least one.
        embeddings : array of float32 [n, n_embd], optional
            Instead of tokens: what the model's first layer is given for each place, such as the rows of an image. They
            are a part of the text like tokens, and `tokens` has a negative number for each.
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
            If a token is no token id, embeddings have the wrong shape or are not finite, the sequence would get longer
            than n_ctx, or all logits together do not fit into memory. Nothing has changed then.
        H2OError
            If the computation fails. As after an exception from `progress`, or Ctrl-C, the unfinished call into
            llama.cpp is undone: the sequence is as it was before, plus the calls that were finished; `n_tokens` tells.

        Examples
        --------
        >>> llm.eval(llm.tokenize("import sys"), logits="all")
        >>> llm.logits.shape
        (10, 260)
        """
        owner = f"{self._owner}.eval"
        all_logits = check.choice(owner, "logits", logits, ("last", "all")) == "all"
        with self._change_context() as context:
            prompt = self._check_prompt(owner, tokens, context.n_tokens, embeddings)
            if len(prompt) == 0:
                raise ValueError(f"[{owner}] tokens must not be empty")
            tail = self._check_tail(owner, dense_tail, context.n_tokens + len(prompt))
            if check.flag(owner, "decode", decode) and (tail > 0 or embeddings is not None):
                raise ValueError(
                    f"[{owner}] dense_tail and embeddings are for a prompt: leave them out with decode=True"
                )
            progress = self._check_progress(owner, progress)
            if all_logits:
                check_all_logits_size(owner, len(prompt), self.model.n_vocab)
            if all_logits or decode:
                self._eval(context, prompt, all_logits, progress, tail, bool(decode))
            else:
                self._read(context, prompt, progress, tail)
                shelf.give(self, context)

    def _read(self, context: _core.Context, prompt: Prompt, progress: Progress | None, dense_tail: int) -> None:
        """Append a prompt, checked before. What an empty sequence can take from the library is not computed."""
        if self._engine.library is not None and context.n_tokens == 0:
            prompt = prompt[shelf.take_or_keep(self, context, prompt.ids) :]
        if len(prompt) > 0:
            self._eval(context, prompt, False, progress, dense_tail, False)

    def _give(self) -> None:
        """Add the text to the library. It is not kept if the sequence is closed, or in use."""
        if self._engine.library is not None and self._context is not None:
            with suppress(H2OError, ValueError), self._use_context() as context:
                shelf.give(self, context)

    def _eval(
        self,
        context: _core.Context,
        prompt: Prompt,
        all_logits: bool,
        progress: Progress | None,
        dense_tail: int,
        decode: bool,
    ) -> None:
        out = np.empty((len(prompt) if all_logits else 1, self.model.n_vocab), dtype=np.float32)
        self._logits = None
        calls = split_calls(self._engine.params, prompt)
        if self._engine.library and not decode and shelf.needs_marks(context):
            calls = shelf.split_at_marks(calls)
        evaluate(context, self._engine.params, prompt, calls, out, progress, dense_tail, decode)
        self._logits = out

    def _check_prompt(
        self, owner: str, tokens: Tokens | None, n_tokens: int, embeddings: ArrayLike | None = None
    ) -> Prompt:
        """What is to be read after n_tokens tokens."""
        prompt = make_prompt(owner, self.model, tokens, embeddings)
        if n_tokens + len(prompt) > self._engine.n_ctx:
            raise ValueError(
                f"[{owner}] {len(prompt)} tokens after {n_tokens} do not fit into n_ctx={self._engine.n_ctx}: "
                "use a larger n_ctx, fewer tokens, or reset()"
            )
        self._warn_of_length(n_tokens + len(prompt))
        return prompt

    def _warn_of_length(self, n_tokens: int) -> None:
        """Once, when a text gets longer than what the model knows."""
        n_trained = self.model.n_ctx_train
        if self._engine.warns_of_length and n_tokens > n_trained:
            self._engine.warns_of_length = False
            warn(
                f"[{self._owner}] this model was trained for texts of {n_trained} tokens, this one is longer: "
                "positions after that are unknown to it, and it may write nonsense",
            )

    def _check_progress(self, owner: str, progress: Progress | None) -> Progress | None:
        if progress is not None and not callable(progress):
            raise check.bad_argument(owner, "progress", "callable or None", progress)
        return progress

    def _check_tail(self, owner: str, dense_tail: int, n_tokens: int) -> int:
        return self._engine.params.check_dense_tail(self._engine.core, owner, dense_tail, n_tokens)

    def _check_draft(self, owner: str, draft: int) -> int:
        n = check.integer(owner, "draft", draft, 0)
        if n > 0 and self._engine.core.is_recurrent:
            raise check.bad_argument(owner, "draft", "0, as a recurrent model cannot take tokens back", draft)
        return n

    # --- generation: functions over a sequence, each in a file of its own

    generate = generating.generate
    aeval = asynchronous.aeval
    agenerate = asynchronous.agenerate
    create_completion = __call__ = completion.create_completion
    create_chat_completion = chat_completion.create_chat_completion
    ask = asking.ask
    acreate_completion = asynchronous.acreate_completion
    acreate_chat_completion = asynchronous.acreate_chat_completion

    def _check_text(self, owner: str, n_texts: int) -> None:
        """Raise CancelledError if the text was replaced or cut since: a generator cannot go on after it."""
        if self._n_texts != n_texts:
            raise CancelledError(
                f"[{owner}] the sequence now holds another text: generate again, or use a sequence for each text"
            )

    # --- its past

    def snapshot(self) -> Snapshot:
        """The sequence as it is now, to go back to or to go on from elsewhere.

        Raises
        ------
        H2OError
            If llama.cpp cannot save it.
        MemoryError
            If a second copy of K and V does not fit.

        Examples
        --------
        >>> llm.eval(llm.tokenize("A document. "))
        >>> read = llm.snapshot()
        >>> llm.eval(llm.tokenize("A question?"))
        >>> llm.restore(read)
        >>> llm.n_tokens
        12
        """
        with self._use_context() as context:
            return take_snapshot(context, self._engine.origin)

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot in the place of the sequence: all that follows is as if its tokens had just been evaluated.

        Bit for bit, on the same machine; `kv.stats` begins anew. `n_ctx`, `n_batch` and threads may be others. With
        `record`, `kv.history` is there if it was recorded for the snapshot, too.

        Raises
        ------
        ValueError
            If it is of another model or configuration, or does not fit into n_ctx.
        H2OError
            If llama.cpp refuses it. In either case the sequence stays as it was.
        """
        with self._change_context() as context:
            restore_snapshot(context, snapshot, self._engine.origin, self._engine.n_ctx)
            self._n_texts += 1
            self._n_kept = 0
            self._logits = None if snapshot.logits is None else snapshot.logits[np.newaxis].copy()

    def rewind(self, n_tokens: int) -> None:
        """Keep the first tokens of the sequence, as if those after them had never been there.

        With heavy_budget=0, and neither `record` nor `evict`, every place is possible; with retrieval="index" every
        `tile` tokens of a chunk. Otherwise scores cannot be undone: places are possible down to the last prompt token,
        further back only the end of the last closed chunk, with `record` of every closed chunk, and 0.
        Where layers have sliding windows or recurrent states, `record` keeps the first end and the latest seven.
        Without H2O everywhere, but for recurrent models.

        Parameters
        ----------
        n_tokens : int
            How many to keep. There are no logits then, unless it is all of them.

        Raises
        ------
        ValueError
            If the sequence has fewer.
        H2OError
            If it is not possible there; the message names the nearest positions that are. Nothing has changed then.

        Examples
        --------
        >>> llm.eval(llm.tokenize("A document. " * 20))
        >>> llm.rewind(192)  # where a chunk of 64 ends
        >>> llm.n_tokens
        192
        """
        with self._change_context() as context:
            n_before = context.n_tokens
            rewind(context, n_tokens, bool(self._engine.params.record))
            self._n_texts += context.n_tokens < n_before
            self._n_kept = min(self._n_kept, context.n_tokens)
            if not context.has_logits:
                self._logits = None

    def reuse(self, tokens: Tokens) -> int:
        """Keep what the sequence shares with a text that is to be evaluated: `n_cached = llm.reuse(tokens)`.

        Or take it from the `library`, where a text has more in common with it. The sequence goes back to where the two
        part, or as little before as `rewind` can. What is kept stays as it was computed, generated tokens as generated.
        Then `llm.eval(tokens[n_cached:])`, or `generate`, computes the rest: a
        turn of a chat costs what is new in it.

        Parameters
        ----------
        tokens : sequence of int, or integer ndarray [n]
            Token ids: the whole text, with rows of embeddings as in another sequence's `tokens`.

        Returns
        -------
        int
            How many of the tokens are in the sequence now. All only if it was this text already and has its logits;
            else at least the last one is left to be evaluated.

        Examples
        --------
        >>> llm.eval(llm.tokenize("A document. " * 20 + "Who?"))
        >>> second = llm.tokenize("A document. " * 20 + "When?")
        >>> n_cached = llm.reuse(second)  # the end of a chunk
        >>> n_cached, len(second)
        (192, 245)
        >>> llm.eval(second[n_cached:])
        """
        with self._change_context() as context:
            return shelf.take_or_keep(self, context, text_ids("Llama.reuse", tokens, self.model.n_vocab))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sequence to a file: `snapshot().save(path)`. See `Snapshot.save`.

        Examples
        --------
        >>> llm.eval(llm.tokenize("A document. "))
        >>> llm.save("document.h2o")
        >>> llm.reset()
        >>> llm.load("document.h2o")
        >>> llm.n_tokens
        12
        """
        self.snapshot().save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file that `save` has written: `restore(Snapshot.load(path))`. See there."""
        self.restore(Snapshot.load(path))
