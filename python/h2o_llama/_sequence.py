"""A text, read and continued."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self, Unpack

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.machine import check_fits
from h2o_llama._prompt import Tokens, check_rewind, text_ids
from h2o_llama.chat import _asynchronous, asking, chat_completion, completion
from h2o_llama.config import H2OConfig
from h2o_llama.errors import H2OError
from h2o_llama.inspect.kv import SequenceKV
from h2o_llama.model import Model
from h2o_llama.sequence import generating
from h2o_llama.sequence._engine import Engine, ProgressOption
from h2o_llama.sequence._state import State, check_progress
from h2o_llama.sequence.snapshot import Snapshot, restore_snapshot, take_snapshot


class EvalOptions(TypedDict, total=False):
    """Options of `Sequence.eval`, but `progress`; see there."""

    embeddings: ArrayLike | None
    logits: Literal["last", "all"]
    dense_tail: int
    keep_attention: bool
    decode: bool


class Sequence:
    """One of the sequences of a `Llama`: a text with its own positions, scores and memory sets.

    `Llama.sequence()` and `fork()` make one. It holds one of the n_seq_max places until `close()`, or leaving a `with`
    block, or until it is garbage. Sequences of one `Llama` take turns; none sees anything of another.
    """

    def __init__(self, engine: Engine, owner: str = "Sequence") -> None:
        self._state = State(engine, owner)

    @property
    def n_cached(self) -> int:
        """Tokens that the last `eval` of a new text, `reuse` or completion found in the sequence or the `library`."""
        return self._state.n_cached

    @property
    def text_name(self) -> str:
        """What the `library` calls the text, such as a file's name. By default it is how the text begins."""
        return self._state.text_name

    @text_name.setter
    def text_name(self, name: str) -> None:
        self._state.text_name = name

    # --- life

    def close(self) -> None:
        """Forget the sequence and free its place. Closing twice is fine, using it then raises ValueError."""
        if not _core.is_forked():  # the end of the process frees the memory
            self._state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def reset(self) -> None:
        """Forget the tokens, scores, memory sets and logits."""
        self._state.reset()

    def cancel(self) -> None:
        """End the answer that another thread is generating here: it raises Cancelled there, after the present step.

        Nothing happens if there is none. Tokens that were read and generated stay.
        """
        self._state.is_cancelled = True

    def fork(self) -> "Sequence":
        """A copy of the sequence: its tokens, K and V, scores and memory sets.

        Raises BusyError if all n_seq_max sequences are in use.

        Examples
        --------
        >>> llm.eval(llm.tokenize("One document. "))
        >>> with llm.fork() as fork:
        ...     fork.eval(llm.tokenize("One question?"))
        ...     print(fork.n_tokens, llm.n_tokens)
        27 14
        """
        state = self._state
        with state.used() as context:
            fork = Sequence(state.engine)
            fork._state.context.copy_from(context)
            fork._state.logits = None if state.logits is None else state.logits.copy()
            fork._state.last_logits = state.last_logits
            fork._state.n_shelved, fork._state.day, fork.text_name = state.n_shelved, state.day, self.text_name
            return fork

    @contextmanager
    def lock(self) -> Iterator[None]:
        """`with llm.lock():` waits until no other thread uses the `Llama`, and keeps it for the calls of the block.

        It waits as long as `timeout` of the `Llama` says, also with `busy="raise"`. The block is one thread's: not for
        generators that several threads read, nor around an `await`.
        """
        with self._state.claim.held(waits=True) as deadline:
            self._state.end_stream(deadline)
            yield

    # --- the sequence

    @property
    def model(self) -> Model:
        """Weights, vocabulary and chat template."""
        return self._state.engine.model

    @property
    def n_ctx(self) -> int:
        """How many tokens the sequence can hold; 2**31 - 1 if eviction leaves it without a limit."""
        return self._state.engine.n_ctx

    @property
    def n_tokens(self) -> int:
        """Tokens in the sequence."""
        with self._state.used() as context:
            return context.n_tokens

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The sequence, as token ids, int32 [n_tokens]; numbers below -1 are rows of embeddings."""
        with self._state.used() as context:
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
        with self._state.used():
            if self._state.logits is None:
                raise H2OError(f"[{self._state.owner}] there are no logits: call eval first")
            return self._state.logits

    @property
    def h2o(self) -> H2OConfig | None:
        """The configuration; None if H2O is off."""
        return self._state.engine.params.h2o

    @property
    def kv(self) -> SequenceKV:
        """A look inside the KV cache."""
        return SequenceKV(self._state)

    def eval(
        self,
        tokens: Tokens | None = None,
        *,
        embeddings: ArrayLike | None = None,
        logits: Literal["last", "all"] = "last",
        progress: ProgressOption = None,
        dense_tail: int = 0,
        keep_attention: bool = False,
        decode: bool = False,
    ) -> None:
        """Append tokens to the sequence, or rows of embeddings in their place, and compute their logits.

        They are a prompt, unless `decode` is True: any split of it into calls gives the same result.
        More than n_batch tokens take several calls into llama.cpp. With a `library`, an empty sequence loads
        the beginning of the tokens from it, and the text is added to it.

        Parameters
        ----------
        tokens : sequence of int, or integer ndarray [n]
            Token ids, at least one.
        embeddings : array of float32 [n, n_embd], optional
            Instead of tokens: what the model's first layer is given for each place, such as the rows of an image. They
            are a part of the text like tokens, and `tokens` has a negative number for each.
        logits : {"last", "all"}
            Whether `logits` is [1, n_vocab] afterwards, or [n, n_vocab].
        progress : callable or bool, optional
            Called as progress(n_done, n) after every chunk; True shows a bar on standard error. An exception that it
            raises ends the eval.
        dense_tail : int, default 0
            How many of the last tokens attend to everything in the sequence, as with h2o=None: for the question at the
            end of a prompt. Costs O(dense_tail * n_tokens). Without H2O every token does.
        keep_attention : bool, default False
            Keep what the dense tail attends to, for `kv.attention`. Not with `evict`.
        decode : bool, default False
            The tokens were generated: they attend to what `H2OConfig.decode` says.
            `generate` does this by itself; it is for a sampling loop of your own. Without H2O it makes no difference.

        Raises
        ------
        ValueError
            If a token is not a token id, embeddings have the wrong shape or are not finite, the sequence would exceed
            n_ctx, or all logits together do not fit into memory. Nothing has changed then.
        H2OError
            If the computation fails. As after an exception from `progress`, or Ctrl-C, the unfinished call into
            llama.cpp is undone: the sequence is as it was before, plus the calls that were finished; `n_tokens` tells.

        Examples
        --------
        >>> llm.eval(llm.tokenize("import sys"), logits="all")
        >>> llm.logits.shape
        (10, 260)
        """
        state, owner = self._state, f"{self._state.owner}.eval"
        all_logits = check.choice(owner, "logits", logits, ("last", "all")) == "all"
        with state.changed() as context:
            prompt = state.check_prompt(owner, tokens, context.n_tokens, embeddings)
            if len(prompt) == 0:
                raise ValueError(f"[{owner}] tokens must not be empty")
            tail = check.integer(owner, "dense_tail", dense_tail, 0)
            if check.flag(owner, "decode", decode) and (tail > 0 or embeddings is not None):
                raise ValueError(
                    f"[{owner}] dense_tail and embeddings are for a prompt: leave them out with decode=True"
                )
            if check.flag(owner, "keep_attention", keep_attention) and (tail == 0 or state.engine.params.h2o is None):
                raise ValueError(f"[{owner}] keep_attention is for a dense_tail, with H2O on")
            progress = check_progress(owner, progress)
            if all_logits:
                check_fits(owner, "n_tokens", len(prompt), 4 * len(prompt) * self.model.n_vocab, "{} for logits='all'")
            with _keeping_attention(context) if keep_attention else nullcontext():
                if all_logits or decode:
                    state.eval(context, prompt, all_logits, progress, tail, bool(decode))
                else:
                    state.read(context, prompt, progress, tail)
                    state.give(context)

    async def aeval(
        self, tokens: Tokens | None = None, *, progress: ProgressOption = None, **options: Unpack[EvalOptions]
    ) -> None:
        """`eval`, awaited: the event loop is not blocked.

        Cancelling the task ends the call after the chunk that is being computed, and undoes what `eval` undoes when
        `progress` raises. `progress` is called by another thread. Not within `lock()`, which is for one thread.
        """
        shown = check_progress(f"{self._state.owner}.aeval", progress)
        await _asynchronous.in_thread(lambda report: self.eval(tokens, progress=report, **options), shown)

    # --- generation: functions over a sequence, each in a file of its own

    generate = generating.generate
    agenerate = _asynchronous.agenerate
    create_completion = __call__ = completion.create_completion
    generate_text = completion.generate_text
    create_chat_completion = chat_completion.create_chat_completion
    ask = asking.ask
    aask = _asynchronous.aask
    acreate_completion = _asynchronous.acreate_completion
    acreate_chat_completion = _asynchronous.acreate_chat_completion

    # --- its past

    def snapshot(self) -> Snapshot:
        """The present sequence, to return to, or to continue elsewhere.

        Raises H2OError if llama.cpp cannot save it, MemoryError if a second copy of K and V does not fit.

        Examples
        --------
        >>> llm.eval(llm.tokenize("A document. "))
        >>> read = llm.snapshot()
        >>> llm.eval(llm.tokenize("A question?"))
        >>> llm.restore(read)
        >>> llm.n_tokens
        12
        """
        with self._state.used() as context:
            return take_snapshot(context, self._state.engine.origin, self._state.last_logits)

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot in the place of the sequence: all that follows is as if its tokens had just been evaluated.

        Bit for bit, on the same machine; `kv.stats` begins anew. `n_ctx`, `n_batch` and threads may be others. With
        `keep_history`, `kv.history` is there if it was recorded for the snapshot, too.

        Raises ValueError if it is of another model or configuration, or does not fit into n_ctx; H2OError if llama.cpp
        refuses it. In either case the sequence stays as it was.
        """
        state = self._state
        with state.changed() as context:
            restore_snapshot(f"{state.owner}.restore", context, snapshot, state.engine.origin, state.engine.n_ctx)
            state.restored(snapshot)
            state.n_texts += 1
            state.n_shelved = 0

    def rewind(self, n_tokens: int) -> None:
        """Keep the first tokens of the sequence, as if those after them had never been there.

        docs/read-once.md tells which positions are possible: with heavy_budget=0 every `tile` tokens of a chunk,
        otherwise those back to the last prompt token, and the end of the last (with `keep_history`, each) closed chunk.
        Logits are then unknown, unless all tokens are kept.

        Raises ValueError if the sequence has fewer, H2OError if it is not possible there; the message names the nearest
        positions that are. Nothing has changed then.

        Examples
        --------
        >>> llm.eval(llm.tokenize("A document. " * 20))
        >>> llm.rewind(192)  # where a chunk of 64 ends
        >>> llm.n_tokens
        192
        """
        state = self._state
        with state.changed() as context:
            n = check_rewind(f"{state.owner}.rewind", context, n_tokens, bool(state.engine.params.keep_history))
            state.n_texts += n < context.n_tokens
            state.cut(context, n)

    def reuse(self, tokens: Tokens) -> int:
        """Keep what the sequence shares with a text that is to be evaluated: `n_cached = llm.reuse(tokens)`.

        Or take it from the `library`, where a text shares more with it. The sequence is rewound to where the two part,
        or as little before as `rewind` can. Kept tokens stay as they were computed, generated tokens as generated.
        Then `llm.eval(tokens[n_cached:])`, or `generate`, computes the rest: a turn of a chat costs its new tokens.

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
        return self._state.keep(text_ids(f"{self._state.owner}.reuse", tokens, self.model.n_vocab))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sequence to a file: `snapshot().save(path)`. See `Snapshot.save`."""
        self.snapshot().save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file that `save` has written: `restore(Snapshot.load(path))`. See there."""
        self.restore(Snapshot.load(path))


@contextmanager
def _keeping_attention(context: _core.Context) -> Iterator[None]:
    """Dense tails of the calls in the block keep their attention."""
    kv = _core.KV.of_context(context)
    assert kv is not None  # H2O is on
    kv.keep_attention(True)
    try:
        yield
    finally:
        kv.keep_attention(False)
