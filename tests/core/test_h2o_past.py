"""The past of a sequence: after any calls, it is as if a fresh context had read the remaining text.

One state machine over all configurations: three sequences of a context read tokens and rows of embeddings, generate
with drafts and without, are cancelled, forked, rewound, saved, restored and put together anew in any order. Its model
of a sequence is the list of calls that made the remaining text.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import h2o_llama
from cases import CASES, Case
from compare import assert_all_equal
from h2o_llama import H2OError, Snapshot
from inputs import ModelByName
from llamas import arrays, decode_each, min_position, open_llama, remove, restore, rewind_points, rows_of, state_of
from models import EOS, FIXTURE_MODELS
from pairwise import SHAPES
from spies import Stop, stop_at
from tolerances import FLASH_ATTN_DECODE, KV_CACHE

N_CTX, N_DOCUMENT = 1024, 300
PLACES, TAILS = st.integers(0, 2), st.sampled_from([0, 0, 0, 5, 40])


class Call(NamedTuple):
    tokens: list[int]
    dense_tail: int | None  # None: generated


class Move(NamedTuple):
    """Another text, `ids`: it begins as this one, and has pieces of it, which are unseen until it reaches them."""

    n_kept: int
    pieces: list[tuple[int, int, int]]  # from, n, to
    ids: list[int]

    def apply(self, sequence: h2o_llama.Sequence) -> None:
        with sequence._state.changed() as context:
            context.arrange(self.n_kept, self.pieces, np.array(self.ids, np.int32))


@dataclass
class Text:
    """A sequence and the calls that made it."""

    sequence: h2o_llama.Sequence
    calls: list[Call | Move] = field(default_factory=list)
    is_exact: bool = True  # else a fresh context computes it in other parts, and rounds otherwise
    has_history: bool = True  # it does not come back with a state
    generator: Iterator[int] | None = None  # which may be ahead of the sequence by drafted tokens

    @property
    def tokens(self) -> list[int]:
        return self.played()[0]

    def played(self) -> tuple[list[int], dict[int, list[int]], list[int]]:
        """The tokens, unseen pieces by where they begin, and the text that these are for."""
        tokens: list[int] = []
        unseen: dict[int, list[int]] = {}
        planned: list[int] = []
        for call in self.calls:
            if isinstance(call, Move):
                known = dict(enumerate(tokens)) | {p + k: t for p, piece in unseen.items() for k, t in enumerate(piece)}
                unseen = {to: [known[p] for p in range(start, start + n)] for start, n, to in call.pieces}
                tokens, planned = tokens[: call.n_kept], call.ids
            else:
                end = len(tokens) + len(call.tokens)
                rest = planned[len(tokens) : end]
                is_as_planned = bool(rest) and call.dense_tail is not None and call.tokens[: len(rest)] == rest
                unseen = {p: piece for p, piece in unseen.items() if p >= end and is_as_planned}
                tokens = tokens + call.tokens
            while len(tokens) in unseen:
                tokens = tokens + unseen.pop(len(tokens))
        return tokens, unseen, planned

    def drop_unseen(self, in_sequence: bool = False) -> None:
        tokens, unseen, _ = self.played()
        if unseen:
            self.calls.append(Move(len(tokens), [], []))
            if in_sequence:
                self.calls[-1].apply(self.sequence)  # type: ignore[union-attr]

    def copied(self, sequence: h2o_llama.Sequence) -> Text:
        text = replace(self, sequence=sequence, calls=[*self.calls])
        text.drop_unseen()
        return text

    def become(self, other: Text) -> None:
        self.calls, self.is_exact, self.has_history = [*other.calls], other.is_exact, other.has_history

    def cut(self, n: int, chunk_size: int) -> None:
        """As if only n tokens had been read."""
        if any(isinstance(call, Move) for call in self.calls):
            if n < len(self.tokens):
                self.calls.append(Move(n, [], []))
            return
        left, n_left = [], n
        for tokens, dense_tail in self.calls:  # type: ignore[misc]
            if n_left == 0:
                break
            n_cut = max(0, len(tokens) - n_left)
            tail = dense_tail if dense_tail is None else max(0, dense_tail - n_cut)
            left.append(Call(tokens[:n_left], tail))
            if n_cut and n % chunk_size:
                self.is_exact = False
            n_left = max(0, n_left - len(tokens))
        self.calls = left


def some_text(seed: int, n: int) -> list[int]:
    """60 different tokens, so that none have equal keys in a chunk, then the first of them again, and so on."""
    ids: list[int] = np.resize(np.random.default_rng(seed).permutation(256)[:60], n).tolist()
    return ids


def seen(sequence: h2o_llama.Sequence, history: bool) -> list[Any]:
    """All that can be read of it; scores only where something ranks by scores."""
    kv = sequence.kv
    if sequence.h2o is None:
        return [sequence.n_tokens]
    found: list[Any] = [sequence.n_tokens, kv.chunk_index]
    for il in kv.layers:
        found += [kv.memory_indices(il), kv.keys(il), kv.values(il)]
        if sequence.h2o.heavy_budget:
            # Only candidates for the next memory set: an undone tail has scored the other positions as well.
            scores, start = kv.scores(il), (kv.n_tokens - 1) // kv.chunk_size * kv.chunk_size
            found.append(scores[:, start:])
            found += [row[kept[kept >= 0]] for row, kept in zip(scores, kv.memory_indices(il), strict=True)]
    if history and sequence.h2o.heavy_budget:
        found += [sets[il] for sets in kv.history for il in kv.layers]
    return found


class Past(RuleBasedStateMachine):
    """Places 0 to 2 hold sequences, the first of them the `Llama`'s own."""

    case: Case | None
    llm: h2o_llama.Llama
    alone: h2o_llama.Llama  # the same with one sequence
    other: h2o_llama.Llama  # of another size
    path: Path
    folder: Path
    has_library = False
    has_windows = False
    documents: set[int]  # in the library

    def __init__(self) -> None:
        super().__init__()
        self.llm.reset()
        self.texts: dict[int, Text] = {0: Text(self.llm)}
        self.saved: list[tuple[Snapshot | Path, Text]] = []
        self.states: list[tuple[bytes, Text]] = []
        self.rows: dict[int, int] = {}  # the token whose row of embeddings an id stands for

    @property
    def chunk_size(self) -> int:
        return self.case.h2o.chunk_size if self.case else 1

    @property
    def has_index(self) -> bool:
        return self.case is not None and self.case.h2o.has_key_index

    def at(self, i: int) -> Text:
        if i not in self.texts:
            self.texts[i] = Text(self.llm.sequence())
        return self.texts[i]

    def close(self, i: int) -> None:
        if i > 0 and i in self.texts:
            self.texts.pop(i).sequence.close()

    def has_room(self) -> bool:
        return all(len(text.tokens) < N_CTX - 450 for text in self.texts.values())

    def has_room_and_few_ties(self) -> bool:
        """In 4, 8 or 16 bits, a step that computes other tokens too would decide near ties of ranks otherwise."""
        has_ranks = self.case is not None and (self.case.h2o.heavy_budget > 0 and self.case.kv_type != "f32")
        return self.has_room() and not self.has_index and not has_ranks

    # --- going on

    @precondition(has_room)
    @rule(i=PLACES, n=st.integers(1, 70), seed=st.integers(0, 3), tail=TAILS, are_rows=st.booleans())
    def eval(self, i: int, n: int, seed: int, tail: int, are_rows: bool) -> None:
        text, tokens = self.at(i), some_text(seed, n)
        n_before, (_, unseen, planned) = text.sequence.n_tokens, text.played()
        if unseen and seed > 0:
            tokens, are_rows = planned[n_before : n_before + n], False
        if are_rows:
            text.sequence.eval(embeddings=rows_of(self.path, tokens), dense_tail=tail)
            ids = text.sequence.tokens[-n:].tolist()
            self.rows.update(zip(ids, tokens, strict=True))
            tokens = ids
        else:
            text.sequence.eval(tokens, dense_tail=tail)
        text.calls.append(Call(tokens, tail))
        text.is_exact &= not self.has_library and not (are_rows and self.has_windows)  # which scale a token's row

    @precondition(has_room)
    @rule(i=PLACES, n=st.integers(1, 20), seed=st.integers(0, 3), together=st.booleans())
    def decode(self, i: int, n: int, seed: int, together: bool) -> None:
        """Generated tokens, singly or several at once."""
        text, tokens = self.at(i), some_text(seed, n)
        for call in [tokens] if together else [[token] for token in tokens]:
            text.sequence.eval(call, decode=True)
            text.calls.append(Call(call, None))

    @precondition(has_room_and_few_ties)
    @rule(i=PLACES, n=st.integers(1, 30), seed=st.integers(0, 3), repetition=st.sampled_from([0, 10]), tail=TAILS)
    def generate(self, i: int, n: int, seed: int, repetition: int, tail: int) -> None:
        """With drafts, unless layers are recurrent. The generator stays open, and others use the sequence."""
        text, prompt = self.at(i), some_text(seed, 9)
        draft = 0 if self.llm.model._handle.is_recurrent else 8
        text.generator = text.sequence.generate(
            prompt, temperature=0, draft=draft, frequency_penalty=-repetition, logit_bias={EOS: -100}, dense_tail=tail
        )
        drawn = list(islice(text.generator, n))
        text.calls += [Call(prompt, tail), *(Call([token], None) for token in drawn)]
        text.is_exact = False

    @precondition(has_room_and_few_ties)
    @rule(places=st.lists(PLACES, min_size=2, unique=True), n=st.integers(1, 20), seed=st.integers(0, 3))
    def decode_each(self, places: list[int], n: int, seed: int) -> None:
        """A token in each of several sequences, in one step."""
        texts = [self.at(i) for i in places]
        for text in texts:
            text.drop_unseen(in_sequence=True)
        for tokens in zip(*(some_text(seed + i, n) for i in range(len(texts))), strict=True):
            rows = decode_each([text.sequence for text in texts], list(tokens))
            for text, token, row in zip(texts, tokens, rows, strict=True):
                text.sequence._state.logits = row[np.newaxis]
                text.calls.append(Call([token], None))
                text.is_exact = False

    @precondition(has_room)
    @rule(i=PLACES, n=st.integers(1, 70), limit=st.integers(1, 70), tail=st.sampled_from([0, 25]))
    def cancel(self, i: int, n: int, limit: int, tail: int) -> None:
        text = self.at(i)
        n_before, is_scored = text.sequence.n_tokens, self.case is not None and self.case.h2o.heavy_budget > 0
        before = arrays(text.sequence) if is_scored else []
        text.drop_unseen()
        with pytest.raises(Stop):
            text.sequence.eval(some_text(4, n), dense_tail=tail, progress=stop_at(min(limit, n)))
        with pytest.raises(H2OError, match="no logits"):
            text.sequence.logits  # noqa: B018
        kept = text.sequence.n_tokens - n_before
        if kept == 0 and is_scored:
            assert_all_equal(arrays(text.sequence), before)
        if (self.case is None or self.has_library) and kept > 0:  # steps that were finished stay
            text.calls.append(Call(some_text(4, n)[:kept], max(0, tail - (n - kept))))
            text.is_exact &= not self.has_library

    # --- other sequences

    @rule(i=PLACES, j=st.integers(1, 2))
    def fork(self, i: int, j: int) -> None:
        if i == j:
            return
        self.close(j)
        text = self.at(i)
        self.texts[j] = text.copied(text.sequence.fork())

    @rule(i=PLACES)
    def forget(self, i: int) -> None:
        if i == 0:
            self.llm.reset()
            self.texts[0] = Text(self.llm)
        self.close(i)

    def can_move(self) -> bool:
        if self.case is None or self.case.h2o.schedule == "two_phase":
            return False
        return self.has_room() and not (self.case.h2o.evict or self.case.h2o.heavy_budget)

    @precondition(can_move)
    @rule(i=PLACES, kept=st.floats(0, 1), dropped=st.integers(0, 30), inserted=st.integers(0, 20), other=st.booleans())
    def rearrange(self, i: int, kept: float, dropped: int, inserted: int, other: bool) -> None:
        """A piece is replaced, and the two halves of what comes after it change places; the new one is read later."""
        text = self.at(i)
        tokens = text.tokens
        n_kept = round(kept * len(tokens))
        start = min(n_kept + dropped, len(tokens))
        middle = (start + len(tokens)) // 2 if other else start
        halves = [range(middle, len(tokens)), range(start, middle)]
        pieces, end = [], n_kept + inserted
        for half in halves:
            if len(half) > 0:
                pieces.append((half.start, len(half), end))
                end += len(half)
        ids = [*tokens[:n_kept], *some_text(inserted % 4, inserted), *(tokens[p] for half in halves for p in half)]
        text.calls.append(Move(n_kept, pieces, ids))
        text.calls[-1].apply(text.sequence)

    # --- going back

    @rule(i=PLACES, part=st.floats(0, 1), lower=st.booleans())
    def rewind(self, i: int, part: float, lower: bool) -> None:
        """To a place, or to one of the nearest that are possible."""
        text = self.at(i)
        n = round(part * text.sequence.n_tokens)
        failure = None
        try:
            text.sequence.rewind(n)
        except H2OError as error:
            failure = str(error)
        if failure:
            assert text.sequence.n_tokens == len(text.tokens)
            found = re.search(r"the nearest possible are (\d+) and (\d+)", failure)
            assert found is not None, failure
            before, after = int(found[1]), int(found[2])
            assert before < n < after <= len(text.tokens)
            n = before if lower else after
            text.sequence.rewind(n)
        if n < len(text.tokens):
            with pytest.raises(H2OError, match="no logits"):
                text.sequence.logits  # noqa: B018
        text.cut(n, self.chunk_size)

    @rule(i=PLACES, part=st.floats(0, 1))
    def remove(self, i: int, part: float) -> None:
        """As llama.cpp's programs do: all or nothing. All after the lowest position that they see can be removed."""
        text = self.at(i)
        n = round(part * text.sequence.n_tokens)
        lowest = min_position(text.sequence)
        assert (lowest == -1) == (text.sequence.n_tokens == 0)
        if remove(text.sequence, n):
            text.cut(n, self.chunk_size)
        else:
            assert n <= lowest

    @precondition(has_room)
    @rule(i=PLACES, part=st.floats(0, 1), seed=st.integers(0, 3))
    def reuse(self, i: int, part: float, seed: int) -> None:
        """Keeps as much as it can of the part shared with another text."""
        text = self.at(i)
        n_shared = round(part * len(text.tokens))
        tokens = text.tokens[:n_shared] + [255 - token for token in some_text(seed, 9)]
        while n_shared < len(text.tokens) and text.tokens[n_shared] == tokens[n_shared]:
            n_shared += 1
        with text.sequence._state.used() as context:
            exact_end = context.exact_end
        possible = rewind_points(text.sequence, min(n_shared, exact_end))[0]
        n = text.sequence.reuse(np.array(tokens, np.int32))
        assert n == possible or not text.has_history
        assert 0 <= n <= len(tokens)
        assert text.sequence.tokens.tolist() == tokens[:n] or not text.has_history  # a state has no text
        assert n <= n_shared
        text.cut(n, self.chunk_size)

    @precondition(lambda self: len(self.saved) < 4)
    @rule(i=PLACES, to_file=st.booleans())
    def save(self, i: int, to_file: bool) -> None:
        text = self.at(i)
        if -1 in text.sequence.tokens:  # a state has no text, and a snapshot needs it
            return
        snapshot: Snapshot | Path = self.folder / str(len(self.saved))
        if isinstance(snapshot, Path) and to_file:
            text.sequence.save(snapshot)
        else:
            snapshot = text.sequence.snapshot()
        self.saved.append((snapshot, text.copied(text.sequence)))

    @precondition(lambda self: self.saved)
    @rule(i=PLACES, which=st.integers(0, 3))
    def restore(self, i: int, which: int) -> None:
        """In any of the sequences."""
        snapshot, text = self.saved[which % len(self.saved)]
        if isinstance(snapshot, Path):
            self.at(i).sequence.load(snapshot)
        else:
            self.at(i).sequence.restore(snapshot)
        self.at(i).become(text)

    @precondition(lambda self: len(self.states) < 4)
    @rule(i=PLACES)
    def save_state(self, i: int) -> None:
        """As llama.cpp's programs do: without logits and history."""
        text = self.at(i)
        if self.case is None and not text.calls:
            return  # llama.cpp's own cache ignores an empty state: the sequence would keep its tokens
        self.states.append((state_of(text.sequence), replace(text.copied(text.sequence), has_history=False)))

    @precondition(lambda self: self.states)
    @rule(i=PLACES, which=st.integers(0, 3))
    def restore_state(self, i: int, which: int) -> None:
        state, text = self.states[which % len(self.states)]
        restore(self.at(i).sequence, state)
        self.at(i).become(text)

    @precondition(lambda self: self.has_library)
    @rule(i=PLACES, document=st.integers(0, 1), seed=st.integers(0, 3), n=st.integers(1, 70))
    def ask(self, i: int, document: int, seed: int, n: int) -> None:
        """A question after a document, which is read once: an empty sequence takes it from the library."""
        text = self.at(i)
        text.sequence.reset()
        assert self.llm._state.engine.library is not None
        self.llm._state.engine.library.flush()
        tokens = some_text(5 + document, N_DOCUMENT) + some_text(seed, n)
        text.sequence.eval(tokens)
        assert (text.sequence.n_cached > 0) == (document in self.documents)
        self.documents.add(document)
        text.become(Text(text.sequence, [Call(tokens, 0)], is_exact=False, has_history=False))

    # --- what must hold

    @invariant()
    def lengths(self) -> None:
        self.llm._state._place.check()  # before drafts that are ahead are undone
        for text in self.texts.values():
            assert text.sequence.n_tokens == len(text.tokens)

    def teardown(self) -> None:
        try:
            for text in self.texts.values():
                self.check(text)
        finally:
            for i in (1, 2):
                self.close(i)

    def check(self, text: Text) -> None:
        """A fresh context gets the same calls, tokens for their rows, another one a snapshot, and all continue alike.

        Not before they do: at the end of a chunk the memory set is there if it has been gone back to.
        """
        self.alone.reset()
        for call in text.calls:
            if isinstance(call, Move):
                call.apply(self.alone)
                continue
            tokens, dense_tail = call
            known = [self.rows.get(token, token) for token in tokens]
            self.alone.eval(known, dense_tail=dense_tail or 0, decode=dense_tail is None)
        # A state has no text; a cache of windows lies otherwise in another context, and is added up in another order.
        is_known = -1 not in text.sequence.tokens and not self.has_windows
        following = (([3], True), (some_text(7, 20), False), ([4], True), (some_text(8, 40), False))
        for n_done, (tokens, decode) in enumerate(following):
            if n_done == 1 and is_known:  # a generated token is pending
                self.other.restore(text.sequence.snapshot())
            for sequence in (text.sequence, self.alone, *([self.other] if n_done and is_known else [])):
                sequence.eval(tokens, logits="all", decode=decode)
            self.compare(text, [text.sequence.logits], [self.alone.logits], "logits")
            got, want = (seen(x, text.has_history) for x in (text.sequence, self.alone))
            self.compare(text, got, want)
            if n_done and is_known:
                np.testing.assert_array_equal(self.other.logits, text.sequence.logits, "where a snapshot was restored")
                assert_all_equal(seen(self.other, text.has_history), got)

    def compare(self, text: Text, got: list[Any], want: list[Any], what: str = "view") -> None:
        if text.is_exact:
            assert_all_equal(got, want)
            return
        if self.has_index:
            return  # another order of additions may decide a near tie
        kv_type = self.case.kv_type if self.case else "f32"
        bound = 1e-3 if kv_type == "f32" else 1e-3 + 2 * KV_CACHE[kv_type.upper()].logits + FLASH_ATTN_DECODE.logits
        for x, y in zip(got, want, strict=True):
            if kv_type == "f32" or what == "logits":
                np.testing.assert_allclose(
                    x, y, rtol=bound, atol=bound * (np.nanmax(np.abs(y), initial=1)), err_msg=what
                )


@contextmanager
def contexts(path: Path, case: Case | None, **options: Any) -> Iterator[dict[str, h2o_llama.Llama]]:
    """Contexts for three sequences, for a single one, and of another size."""
    is_recorded = case is None or case.h2o.heavy_budget > 0
    options |= {"n_ctx": N_CTX, "n_batch": 512, "keep_history": is_recorded}
    library = options.pop("library", None)
    with (
        open_llama(path, case, n_seq_max=3, library=library, **options) as llm,
        open_llama(path, case, **options) as alone,
        open_llama(path, case, n_seq_max=3, **options | {"n_ctx": N_CTX - 23}) as other,
    ):
        yield {"llm": llm, "alone": alone, "other": other}


def run(path: Path, name: str, folder: Path, library: Path | None = None, n_examples: int = 4) -> None:
    case = CASES[name]
    with contexts(path, case, library=library) as llms:
        members: dict[str, Any] = {
            "case": case,
            "path": path,
            "folder": folder,
            "has_library": library is not None,
            "has_windows": path.stem.startswith("gemma3"),
            "documents": set(),
        }
        # Hypothesis draws other examples for another name.
        machine = type(f"Past, {path.stem}, {name}, {library is not None}", (Past,), members | llms)
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=n_examples,
                stateful_step_count=16,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=[*HealthCheck],
            ),
        )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("n_examples", [4, pytest.param(10, marks=pytest.mark.slow)])
def test_any_order_of_calls(tiny_model: Path, tmp_path: Path, n_examples: int, name: str) -> None:
    run(tiny_model, name, tmp_path, n_examples=n_examples)


@pytest.mark.parametrize("name", ["sum", "cold", "unscored", "index", "dense"])
def test_any_order_of_calls_with_a_library(tiny_model: Path, tmp_path: Path, name: str) -> None:
    run(tiny_model, name, tmp_path, library=tmp_path / "library")


@pytest.mark.parametrize("name", ["evict, composed", "evict, composed, dense layer", "evict, positions"])
def test_any_order_of_calls_on_a_device(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whose memory the host cannot read: it moves evicted rows itself. Here the CPU in its place."""
    monkeypatch.setenv("H2O_NO_FUSED_ATTENTION", "1")
    run(tiny_model, name, tmp_path, n_examples=4)


@pytest.mark.parametrize("model", [name for name in SHAPES[1:] if name in FIXTURE_MODELS])
@pytest.mark.parametrize("name", ["distant", "index", "evict", "evict, dense layer"])
def test_any_order_of_calls_in_models_of_other_kinds(
    model_by_name: ModelByName, tmp_path: Path, model: str, name: str
) -> None:
    """A boundary may have windows and recurrent states. Rewinding to a boundary without them is refused."""
    run(model_by_name(model), name, tmp_path, n_examples=3)


FAILING = """
import ctypes, sys
import numpy as np
from h2o_llama import H2OConfig, H2OError, Llama

allocations = ctypes.CDLL(None)
h2o = H2OConfig(chunk_size=16, evict=sys.argv[2] == "evict")
with Llama(sys.argv[1], n_ctx=256, n_ubatch=16, n_threads=1, h2o=h2o) as llm:
    expected, context = None, llm._state._place
    for n in range(1000):
        llm.reset()
        llm.eval(range(1, 41))
        allocations.fail_allocation(n)
        try:
            llm.eval(range(50, 90))
            if n > 0 and not allocations.has_failed():
                break
        except (MemoryError, H2OError) as error:
            allocations.fail_allocation(0)
            assert llm.n_tokens == 40, error
            context.check()
            llm.eval(range(50, 90))
        context.check()
        expected = llm.logits.copy() if n == 0 else expected
        np.testing.assert_array_equal(llm.logits, expected)
    assert n > 3
    allocations.fail_allocation(0)
    context.state_layout()  # asks for sizes alone
    assert allocations.largest_allocation() < min(len(context.get_state()) / 8, 8192)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a library is preloaded as Linux does")
@pytest.mark.parametrize(("model", "layout"), [("gemma3-windows-f32", "keep"), ("lfm2-conv-f32", "evict")])
def test_a_call_that_fails_for_want_of_memory_is_undone(
    model_by_name: ModelByName, tmp_path: Path, model: str, layout: str
) -> None:
    """Wherever it fails, for the same call to succeed afterwards. And asking for a state's size takes none."""
    library, source = tmp_path / "allocations.so", Path(__file__).parents[1] / "support" / "allocations.cpp"
    subprocess.run([os.environ.get("CXX", "g++"), "-shared", "-fPIC", "-O1", source, "-o", library], check=True)
    command, env = [sys.executable, "-c", FAILING, str(model_by_name(model)), layout], {"LD_PRELOAD": str(library)}
    result = subprocess.run(command, env=os.environ | env, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
