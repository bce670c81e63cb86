"""The state of one sequence: its place in the context, its logits, and pending computations."""

import os
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.lock import Lock
from h2o_llama._internal.machine import core_errors
from h2o_llama._internal.terminal import progress_bar, warn
from h2o_llama._prompt import Prompt, Tokens, make_prompt, n_reusable
from h2o_llama.errors import Cancelled, H2OError
from h2o_llama.sequence._engine import Engine, Progress, ProgressOption, split_at_chunks, split_calls
from h2o_llama.sequence._keeping import (
    LEAST_NEW,
    LEAST_TOKENS,
    NAME_TOKENS,
    About,
    name_of,
    needs_marks,
    split_at_marks,
)
from h2o_llama.sequence._moving import between_pieces, find_pieces, n_moved
from h2o_llama.sequence._scoring import close_chunks
from h2o_llama.sequence.snapshot import Snapshot, restore_snapshot, take_snapshot

T = TypeVar("T")

_NO_ROWS = np.empty((0, 0), dtype=np.float32)


class Stream(Generic[T]):
    """The pieces of an answer. The thread with the lock computes them: their reader, or a call that waits for the last.

    So a call never waits for a reader, which may itself be waiting for the thread of the call.
    """

    def __init__(self, lock: Lock, pieces: Generator[T, None, None]) -> None:
        self._lock = lock
        self._pieces = pieces
        self._unread = deque[T]()
        self._error: Exception | None = None  # for the reader, after the last piece
        self._is_computing = False
        self.has_ended = False
        self.is_left = False  # nobody will read it

    @property
    def is_ready(self) -> bool:
        """Whether the reader has nothing to wait for."""
        return bool(self._unread) or self.has_ended

    def next_piece(self) -> T | None:
        """The next piece, None after the last one; or raises what ended it."""
        if self._unread:
            return self._unread.popleft()
        if self._error is not None:
            raise self._error
        return None

    def compute(self) -> None:
        """The next piece, or the end."""
        self._is_computing = True
        try:
            if self.is_left:
                self._pieces.close()
                self.has_ended = True
            else:
                self._unread.append(next(self._pieces))
        except StopIteration:
            self.has_ended = True
        except Exception as error:
            self._error, self.has_ended = error, True
        except BaseException as error:  # Ctrl-C is for this thread
            self._error, self.has_ended = Cancelled(f"the answer was ended by {type(error).__name__}"), True
            raise
        finally:
            self._is_computing = False
            self._lock.tell()

    def finish(self, deadline: float) -> None:
        """Compute the rest, unless this is called by what computes it. Raises BusyError after the deadline."""
        while not (self.has_ended or self._is_computing):
            if not self.is_left:  # else it only ends
                self._lock.check_time(deadline)
            self.compute()


def stream(state: "State", pieces: Generator[T, None, None]) -> Iterator[T]:
    """The pieces, unchanged. Any thread may ask for the next one."""
    lock = state.claim
    own = Stream(lock, pieces)
    try:
        while True:
            while not own.is_ready:
                with lock.held_unless(lambda: own.is_ready) as deadline:
                    if not own.is_ready:
                        if state.stream is not own:
                            state.end_stream(deadline)
                            state.stream = own
                        own.compute()
            piece = own.next_piece()
            if piece is None:
                return
            yield piece
    finally:
        own.is_left = True
        # busy: the next call ends it; forked: it ends with the process
        with suppress(H2OError), lock.held(waits=False) as deadline:
            if state.stream is own:
                state.end_stream(deadline)


class Drawn(NamedTuple):
    """A token that has come out and is not computed yet, and how many tokens to draft with it."""

    token: int
    shortest_draft: int
    longest_draft: int


class State:
    """What the methods of a `Sequence`, which `owner` names in messages, read and change.

    `waiting` is computed when somebody looks; `stream` is an answer whose end is not computed yet. `n_texts` counts how
    often the text was replaced or cut, `n_shelved` how many of its first tokens are in the library. `last_logits`,
    float32 [n_vocab], is a copy of the last row of `logits`, which a user may change. `n_drafted` tokens were drafted
    with the last token that was drawn, and `draft_logits` has a row for it and for each of them; row `i_draft` is the
    last accepted token's. `drafted` and `accepted` count such tokens since the last reset.
    """

    def __init__(self, engine: Engine, owner: str) -> None:
        self.engine = engine
        self.owner = owner
        self.set_logits(None)
        self.draft_logits = np.empty((0, 0), dtype=np.float32)
        self.waiting: Drawn | None = None
        self.stream: Stream[Any] | None = None
        self.n_drafted = self.i_draft = self.drafted = self.accepted = 0
        self.n_texts = self.n_shelved = self.n_cached = self.n_moved = 0
        self.text_name = self.question = ""  # a file's name or path; the last question of a chat
        self.is_cancelled = False
        self.day: str | None = None  # that a chat template has written into the text
        self.known = self.asked = np.empty(0, dtype=np.int32)  # the text that the last prompt could continue, and it
        self._place: _core.Context | None = engine.place_for(self)

    # --- one call at a time

    @property
    def claim(self) -> Lock:
        return self.engine.claim

    @contextmanager
    def used(self) -> Iterator[_core.Context]:
        """The core's context, for one call that does not change the text."""
        with self.claim, core_errors():
            yield self.context

    @contextmanager
    def changed(self) -> Iterator[_core.Context]:
        """The same for a call that changes the text. An answer that is being streamed comes to its end before."""
        with self.changed_unseen():
            yield self.context

    @contextmanager
    def changed_unseen(self) -> Iterator[None]:
        """The same where a token that waits need not be computed."""
        with self.claim.held() as deadline:
            self.end_stream(deadline)
            with self.claim, core_errors():
                yield

    @property
    def context(self) -> _core.Context:
        """The core's context, for callers that have claimed it, with all that has come out."""
        self.engine.core  # noqa: B018 (raises if closed)
        if self._place is None:
            raise ValueError(f"[{self.owner}] this sequence is closed")
        if self.waiting is not None:
            drawn, self.waiting = self.waiting, self.waiting._replace(longest_draft=0)  # if this fails, alone
            self._append(self._place, drawn)
            self.waiting = None
        return self._place

    def end_stream(self, deadline: float) -> None:
        """Compute the rest of an answer that is being streamed, for callers that have the lock."""
        if self.stream is not None:
            self.stream.finish(deadline)
            if self.stream.has_ended:
                self.stream = None

    def drop_stream(self, deadline: float) -> None:
        """The same before the sequence is closed: an answer that has a reader is not computed any further."""
        if self.stream is not None and self.stream.is_left:
            self.end_stream(deadline)
        self.stream = None

    def close(self) -> None:
        with self.claim.held() as deadline:
            self.drop_stream(deadline)
            self.waiting = None
            self.set_logits(None)
            if self._place is not None:
                self.engine.give_back(self._place)
            self._place = None

    # --- logits

    def set_logits(self, rows: NDArray[np.float32] | None) -> None:
        """Set the logits of the last call, float32 [n, n_vocab]."""
        self.logits: NDArray[np.float32] | None = rows
        self.last_logits: NDArray[np.float32] | None = None if rows is None else rows[-1].copy()

    def accept_draft(self, context: _core.Context, token: int) -> bool:
        """Whether the draft's next token is this one, which then need not be computed."""
        if not context.accept_draft(token):
            return False
        self.accepted += 1
        self.i_draft += 1
        self.set_logits(self.draft_logits[self.i_draft, np.newaxis])
        return True

    # --- the text

    def reset(self) -> None:
        """Forget it."""
        with self.changed_unseen():
            self.waiting = None
            self.context.clear()
            self.set_logits(None)
            self.n_texts += 1
            self.n_shelved = self.n_cached = self.n_moved = self.drafted = self.accepted = 0

    def keep(self, ids: NDArray[np.int32], n_last: int = 0) -> int:
        """Make it as much of a text as is known, of its own tokens or of the library, and say how much.

        With `cache_reuse` more may come when the rest is read: pieces before the last n_last tokens, `n_moved` in all.
        """
        with self.changed() as context:
            return self._take_or_keep(context, ids, n_last)

    def read(self, context: _core.Context, prompt: Prompt, progress: Progress | None, dense_tail: int) -> None:
        """Append a prompt, checked before. What an empty sequence can take from the library is not computed."""
        is_new = self.engine.library is not None and context.n_tokens == 0
        if is_new and not np.array_equal(self.asked, prompt.ids):
            prompt = prompt[self._take_or_keep(context, prompt.ids, dense_tail) :]
        if len(prompt) > 0:
            try:
                self.eval(context, prompt, False, progress, dense_tail, False)
            except BaseException:  # its first chunks are kept
                self.give(context)
                raise

    def eval(
        self,
        context: _core.Context,
        prompt: Prompt,
        all_logits: bool,
        progress: Progress | None,
        dense_tail: int,
        decode: bool,
    ) -> None:
        """Append a prompt, checked before."""
        out = np.empty((len(prompt) if all_logits else 1, self.engine.core.n_vocab), dtype=np.float32)
        self.set_logits(None)
        params, n, n_before = self.engine.params, len(prompt), context.n_tokens
        calls = split_calls(params, prompt, context.n_tokens)
        if self.has_scorer or (self.engine.library and not decode):
            calls = split_at_chunks(params, calls, context.n_tokens)  # one that is interrupted loses a chunk at most
            if self.engine.library and needs_marks(context):
                calls = split_at_marks(calls)
        if context.unseen:
            calls = between_pieces(context, prompt[:0] if all_logits or decode else prompt, calls)
        for start, stop in calls:

            def report(n_done: int, n_before: int = start) -> None:
                if progress is not None:
                    progress(n_before + n_done, n)

            part = prompt[start:stop]
            rows = out[start:stop] if len(out) == n else out[: int(stop == n)]
            tail = max(0, dense_tail - (n - stop))
            context.decode(part.ids, part.rows, rows, tail, decode, None if progress is None else report)
            self.close_chunk(context, n_before)
            if params.h2o is None:
                report(stop - start)
        self.set_logits(out)

    @property
    def has_scorer(self) -> bool:
        """Whether memory sets are chosen in Python."""
        h2o = self.engine.params.h2o
        return h2o is not None and callable(h2o.scorer)

    def close_chunk(self, context: _core.Context, n_before: int) -> None:
        """If a chunk is complete, choose its memory sets. If that fails, the sequence has n_before tokens again."""
        try:
            close_chunks([context], self.engine.params.h2o)
        except BaseException:
            self.cut(context, n_before)
            raise

    def _append(self, context: _core.Context, drawn: Drawn) -> None:
        """Append a generated token, and compute a draft of the next ones."""
        ids = np.array([drawn.token], dtype=np.int32)
        if drawn.longest_draft > 0:
            ids = np.append(ids, context.find_draft(drawn.token, drawn.shortest_draft, drawn.longest_draft))
        rows = np.empty((len(ids), self.engine.core.n_vocab), dtype=np.float32)
        self.set_logits(None)
        self.n_drafted, self.i_draft, self.draft_logits = len(ids) - 1, 0, rows
        n_before = context.n_tokens
        context.decode(ids, _NO_ROWS, rows, 0, True, None, self.n_drafted)
        self.close_chunk(context, n_before)
        self.drafted += self.n_drafted
        self.set_logits(rows[:1])

    @staticmethod
    def append_each(drawn: "list[tuple[State, Drawn | None]]") -> None:
        """Append what several sequences have drawn, in one call. What one alone has drawn waits."""
        if len(drawn) < 2:
            for state, token in drawn:
                state.waiting = token
            return
        states, tokens = [state for state, _ in drawn], [token.token for _, token in drawn if token]
        rows = np.empty((len(tokens), states[0].engine.core.n_vocab), dtype=np.float32)
        for state in states:
            state.set_logits(None)
        contexts = [state.context for state in states]
        _core.Context.decode_each(contexts, np.array(tokens, dtype=np.int32), rows)
        try:
            close_chunks(contexts, states[0].engine.params.h2o)
        except BaseException:
            for state, context in zip(states, contexts, strict=True):
                state.cut(context, context.n_tokens - 1)
            raise
        for state, row in zip(states, rows, strict=True):
            state.n_drafted = 0
            state.set_logits(row[np.newaxis])

    def _take_or_keep(self, context: _core.Context, ids: NDArray[np.int32], n_last: int) -> int:
        n, least = n_reusable(context, ids, self.last_logits is not None), self.engine.params.cache_reuse
        if not least and n > context.exact_end:
            n = context.rewind_points(context.exact_end)[0]
        pieces = find_pieces(context.tokens, ids, n, n_last, least)
        library, origin, n_ctx = self.engine.library, self.engine.origin, self.engine.n_ctx
        self.asked, self.known = ids, context.tokens
        if library is not None and len(ids) >= n + LEAST_NEW:
            n_least = max(n, n + n_moved(pieces) - least) + LEAST_NEW
            restore = partial(restore_snapshot, "Library", context, origin=origin, n_ctx=n_ctx)
            snapshot, nearest = library.take(origin, ids, n_ctx, n_least, restore, least)
            if snapshot is not None:
                self.restored(snapshot)
                self.n_shelved = snapshot.n_tokens
                n = n_reusable(context, ids, self.last_logits is not None)
                pieces = find_pieces(context.tokens, ids, n, n_last, least)
            self.known = nearest if snapshot or len(self.known) == 0 else self.known
        if pieces:
            context.arrange(n, pieces, ids)
            self.set_logits(None)
        self.cut(context, n)
        self.n_texts += 1
        self.n_moved = n_moved(pieces)
        self.n_cached = n + self.n_moved
        return n

    def restored(self, snapshot: Snapshot) -> None:
        """The context has become the snapshot's text."""
        self.set_logits(None if snapshot.logits is None else snapshot.logits[np.newaxis].copy())
        self.drafted = self.accepted = 0

    def cut(self, context: _core.Context, n: int) -> None:
        """Keep the first n tokens."""
        if n < context.n_tokens:
            context.rewind(n)
            self.set_logits(None)
        self.n_shelved = min(self.n_shelved, n)

    def give(self, context: _core.Context, is_last: bool = False) -> None:
        """Add the text to the library, if there is enough that is new; the last time, whatever is new."""
        library, n = self.engine.library, context.n_tokens
        least, least_new = (1, 1) if is_last else (LEAST_TOKENS, LEAST_NEW)
        if library is None or n < least or n < self.n_shelved + least_new or n > context.exact_end:
            return
        self.n_shelved = n
        try:
            snapshot = take_snapshot(context, self.engine.origin, self.last_logits)
            rows, points = context.state_layout()
        except (H2OError, MemoryError) as error:
            warn(f"{error}: this text is not kept")
            return
        if (snapshot.tokens == -1).any():  # unknown tokens cannot be found again
            return
        first = snapshot.tokens[:NAME_TOKENS]
        begin = name_of(self.engine.model.detokenize(first[first >= 0]).decode(errors="replace"))
        folder, name = os.path.split(self.text_name) if os.path.isabs(self.text_name) else ("", self.text_name)
        library.add(snapshot, rows, points, name or begin, self.day, About(folder, begin, self.question[:80]))

    def give_away(self, is_last: bool = False) -> None:
        """The same after a call. It is not kept if the sequence is closed, or in use."""
        if self.engine.library is not None and self._place is not None:
            with suppress(H2OError, ValueError), self.used() as context:
                self.give(context, is_last)

    # --- checks

    def check_prompt(
        self, owner: str, tokens: Tokens | None, n_tokens: int, embeddings: ArrayLike | None = None
    ) -> Prompt:
        """Check a prompt that follows n_tokens tokens, and return it."""
        prompt = make_prompt(owner, self.engine.core, tokens, embeddings)
        if n_tokens + len(prompt) > self.engine.n_ctx:
            raise ValueError(
                f"[{owner}] {len(prompt)} tokens{f' after {n_tokens}' if n_tokens else ''} do not fit into "
                f"n_ctx={self.engine.n_ctx}: use a larger n_ctx, fewer tokens{', or reset()' if n_tokens else ''}"
            )
        self.warn_of_length(n_tokens + len(prompt))
        return prompt

    def check_draft(self, owner: str, draft: int) -> int:
        n = check.integer(owner, "draft", draft, 0)
        if n > 0 and self.engine.core.is_recurrent:
            raise check.bad_argument(owner, "draft", "0, as a recurrent model cannot take tokens back", draft)
        if n > 0 and self.has_scorer:
            raise check.bad_argument(
                owner, "draft", "0 with a scorer in Python, which each chunk calls at its end", draft
            )
        return n

    def warn_of_length(self, n_tokens: int) -> None:
        """Once, when a text gets longer than what the model knows."""
        n_trained = self.engine.model.n_ctx_train
        if self.engine.warns_of_length and n_tokens > n_trained:
            self.engine.warns_of_length = False
            warn(
                f"[{self.owner}] this model was trained for texts of {n_trained} tokens, this one is longer: "
                "output beyond that length is likely to be unusable"
            )


class HasState(Protocol):
    """A `Sequence`, for functions that are its methods."""

    @property
    def _state(self) -> State: ...


def check_progress(owner: str, progress: ProgressOption) -> Progress | None:
    """The argument `progress`, with a bar in the place of True."""
    if progress is None or isinstance(progress, bool):
        return progress_bar() if progress else None
    if not callable(progress):
        raise check.bad_argument(owner, "progress", "callable, True, False or None", progress)
    return progress
