"""The library: a text from it equals the text that was read, bit for bit. Damaged or missing texts are read again."""

import io
import itertools
import json
import multiprocessing
import os
import random
import re
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cases import SMALL, Case
from chats import CHATML, write_chat_model
from command_line import assert_one_line_error, invoke, succeeded
from compare import assert_all_equal
from full_disk import file_size_limit
from h2o_llama import H2OError, H2OWarning, Library, Llama, Model, Snapshot, document_messages, shared_prefix
from h2o_llama.batch import Answerer, BatchSettings, Question
from h2o_llama.errors import DamagedFileError, OutOfMemoryError
from h2o_llama.library import _index, _texts
from h2o_llama.library._index import Index
from h2o_llama.library._library import _SECTIONS, Found
from h2o_llama.library._serving import ServerTexts
from h2o_llama.library._texts import Contents, Text
from h2o_llama.sequence import _snapshot_file
from h2o_llama.sequence._keeping import LEAST_NEW, LEAST_TOKENS, split_at_marks
from h2o_llama.sequence.snapshot import SnapshotOrigin
from inputs import random_tokens
from llamas import open_llama, view
from pairwise import SHAPES, pairwise
from spies import record_calls

S = 64
CONFIG = SMALL.but(chunk_size=S, local_window=8, heavy_budget=12, sink_tokens=2, kv_type="f16")
CONFIGS = CONFIG.one_of_each
N = 5 * S + 41
DOCUMENT = random_tokens(N)
"""It ends inside a chunk."""


def question(seed: int, n: int = 10) -> list[int]:
    return random_tokens(n, seed=seed)


def read(
    path: Path,
    library: Library | None,
    tokens: list[int],
    config: Case | None = CONFIG,
    *,
    name: str = "",
    **kwargs: Any,
) -> int:
    """A program that reads a text. Returns how many tokens it did not have to compute."""
    with open_llama(path, config, library=library, **kwargs) as llm:
        llm.text_name = name
        llm.eval(tokens)
        return llm.n_cached


def files_of(library: Library) -> list[Path]:
    """Its blocks."""
    return [path for path in (library.folder / "blocks").rglob("*") if path.is_file()]


def stored_in(library: Library) -> list[Text]:
    library.flush()
    with library._index.reading() as connection:
        return library._index.texts(connection)[0]


def change(library: Library, command: str, *values: Any) -> None:
    """A change to the index by somebody else."""
    with sqlite3.connect(library._index.path) as connection:
        connection.execute(command, values)
    connection.close()


# --- texts that are found


@pairwise(name=list(CONFIGS), end=[N, 6 * S, 6 * S + 1], model_path=SHAPES)
def test_what_is_taken_goes_on_as_what_was_read(model_path: Path, library: Library, name: str, end: int) -> None:
    """In another context, bit for bit, with all that is known of it."""
    tokens = random_tokens(end)
    with (
        open_llama(model_path, CONFIGS[name], library=library) as llm,
        open_llama(model_path, CONFIGS[name], library=library, n_ctx=900) as other,
    ):
        llm.eval(tokens)
        library.flush()
        other.eval([*tokens, *question(1)])
        assert other.n_cached == end
        llm.eval(question(1))
        if name == "dense":  # llama.cpp leaves out cells that no window reaches, and adds up in another order
            np.testing.assert_allclose(other.logits, llm.logits, atol=1e-5)
        else:
            np.testing.assert_array_equal(other.logits, llm.logits)
        assert_all_equal(view(other), view(llm))


@pytest.mark.parametrize("name", CONFIGS)
def test_another_question_goes_on_near_the_end_of_the_document(tiny_model: Path, library: Library, name: str) -> None:
    """Document and question are one text, so where the document ends is not known when it is read."""
    config = CONFIGS[name] and CONFIGS[name].but(chunk_size=2 * S)
    first, second = [*DOCUMENT, *question(1)], [*DOCUMENT, *question(2)]
    read(tiny_model, library, first, config)
    with open_llama(tiny_model, config, library=library) as llm, open_llama(tiny_model, config) as fresh:
        llm.eval(second)
        mark = llm.n_cached
        assert mark == (N if config is None else len(first) - 64)
        calls = [(0, mark)] if config is None else split_at_marks([(0, len(first))])
        for start, stop in calls:
            if stop <= mark:
                fresh.eval(first[start:stop])
        fresh.eval(second[mark:])
        np.testing.assert_array_equal(llm.logits, fresh.logits)
        assert_all_equal(view(llm), view(fresh))


def goes_on(
    path: Path, library: Library, config: Case | None, first: list[int], second: list[int], **kwargs: Any
) -> int:
    """Who has read the first text answers the second one as a fresh sequence does. How many tokens it takes."""
    read(path, library, first, config, **kwargs)
    with open_llama(path, config, library=library, **kwargs) as llm, open_llama(path, config, **kwargs) as fresh:
        llm.eval(second)
        fresh.eval(second)
        np.testing.assert_allclose(llm.logits, fresh.logits, atol=1e-4)
        return llm.n_cached


UNSCORED = CONFIG.but(heavy_budget=0)
INDEXED = UNSCORED.but(lookup_budget=8, tile=16)


@pytest.mark.parametrize(("config", "step"), [(UNSCORED, 1), (INDEXED, 16)], ids=str)
@pytest.mark.parametrize("n", [7, 3 * S + 21, N + 3])
def test_without_heavy_hitters_it_goes_on_where_two_texts_part(
    tiny_model: Path, library: Library, config: Case, step: int, n: int
) -> None:
    """Or at the beginning of that tile; a text says so, whatever was asked at its end."""
    first = [*DOCUMENT, *question(1)]
    n_taken = goes_on(tiny_model, library, config, first, [*first[:n], *question(2, 70)], keep_history=False)
    assert n_taken == (n // step * step if n >= LEAST_NEW else 0)
    assert ((step, len(first)),) in [text.contents.points for text in stored_in(library)]


def test_models_with_other_memory(unsupported_memory_model: Path, library: Library, tmp_path: Path) -> None:
    """What a sliding window or a recurrent state has forgotten cannot be gone back to; a text's end can."""
    for second, n in (([*DOCUMENT[:-3], *question(2)], 0), ([*DOCUMENT, *question(1)], N)):
        assert goes_on(unsupported_memory_model, Library(tmp_path / str(n)), None, DOCUMENT, second) == n


def test_generated_tokens_are_kept(tiny_model: Path, library: Library) -> None:
    """When an answer ends, also one that nobody wants to the end."""
    with open_llama(tiny_model, CONFIG, library=library) as llm:
        tokens = llm.generate(DOCUMENT, temperature=0)
        drawn = [next(tokens) for _ in range(70)]
        del tokens
        text = llm.tokens.tolist()
    assert text == [*DOCUMENT, *drawn]
    assert read(tiny_model, library, [*text, 1, 2, 3]) == len(text)


def test_usage_says_how_many_tokens_were_known(tiny_model: Path, library: Library) -> None:
    """Also where the sequence has another text by then, and begins afresh."""
    with open_llama(tiny_model, CONFIG.but(chunk_size=2 * S), library=library) as llm:
        for n, reuse in ((0, True), (N + 10 - 64, True), (N + 10 - 64, False)):
            prompt = [*DOCUMENT, *question(n + reuse)]
            usage = llm(prompt, max_tokens=2, reuse=reuse)["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == n
            if n > 0:
                stop, others = usage["prompt_tokens_details"]["cache_stop"], [question(1), question(n + 1)]
                assert stop["token"] == N + shared_prefix(others[0], prompt[N:])
                assert stop["kept"] in [
                    llm.detokenize(other[:8], special=True).decode(errors="replace") for other in others
                ]
            library.flush()
            llm.eval(random_tokens(80, seed=9))


def test_a_text_that_is_removed_while_it_is_taken(
    tiny_model: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one that begins so is taken: a longer text takes a shorter one's place."""
    for seed in (1, 2):
        read(tiny_model, library, [*DOCUMENT, *random_tokens(100, seed=seed)])
        library.flush()
    load, found = Library.load, list[Found]()

    def removed_at_first(self: Library, text: Found) -> Snapshot:
        found.append(text)
        if len(found) == 1:
            raise FileNotFoundError
        return load(self, text)

    monkeypatch.setattr(Library, "load", removed_at_first)
    assert read(tiny_model, library, [*DOCUMENT, *random_tokens(100, seed=1), 1]) > 0
    assert len({text.text.id for text in found}) == 2


# --- texts that are kept


def test_other_models_settings_and_types_do_not_mix(tiny_model: Path, one_layer_model: Path, library: Library) -> None:
    read(tiny_model, library, DOCUMENT)
    assert read(tiny_model, library, DOCUMENT) == N
    for config in (None, CONFIG.but(heavy_budget=13), CONFIG.but(kv_type="f32"), CONFIGS["evict"]):
        assert read(tiny_model, library, DOCUMENT, config) == 0
        assert read(tiny_model, library, DOCUMENT, config) == N
    assert read(one_layer_model, library, DOCUMENT) == 0


def test_a_conversation_is_one_text_beside_its_document(tiny_model: Path, library: Library) -> None:
    """And a smaller context finds the document."""
    read(tiny_model, library, DOCUMENT)
    for turn in range(1, 7):
        assert read(tiny_model, library, [*DOCUMENT, *question(1, 70 * turn)]) >= N
    library.flush()
    assert [text.n_tokens for text in library.texts()] == [N + 420, N]
    assert read(tiny_model, library, [*DOCUMENT, *question(2)], n_ctx=N + 20) == N


def test_a_document_of_yesterday_is_found_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By all commands, where the template writes the day before it. A new document has today's."""
    monkeypatch.setenv("H2O_LLAMA_LIBRARY", str(tmp_path / "library"))
    dated = "Answer questions. " * 8 + "{{ strftime_now('%d %b %Y') }}\n" + CHATML
    model = write_chat_model(tmp_path / "model.gguf", dated)
    one = tmp_path / "one.txt"
    two = tmp_path / "two.txt"
    one.write_text("All about ducks. " * 300)
    two.write_text("All about geese. " * 300)
    now, n = time.time(), 5301

    def on_day(i: int, *arguments: str | Path) -> str:
        monkeypatch.setattr(time, "time", lambda: now + i * 86400)
        return succeeded(invoke(*arguments, "-n", "2", stdin="/list\n/switch x\n/switch 1\nWhat?\n")).stderr

    monkeypatch.setattr(time, "time", lambda: now)
    assert f"read {n:,} tokens in" in succeeded(invoke("read", one, "--model", model)).stderr
    assert f"one.txt: read 0 new tokens ({n:,} known)" in on_day(1, "ask", model, one, "Who?")
    assert f"({n:,} known)" in on_day(2, "run", model, "--file", one, "-p", "Who?")
    told = on_day(3, "chat", model, "--file", one)
    assert told.count(f"one.txt: read 0 new tokens ({n:,} known)") == 2
    assert f"\n  1  one.txt, {n:,} tokens\n/switch needs a number of /list.\n" in told
    assert re.search(r"\[read \d\d new tokens \(5,\d{3} known\) in ", told)
    with Answerer(model, BatchSettings(max_tokens=2), library=True) as batch:
        (answer,) = batch.answer_file("one.txt", one, [Question("q", "Where?")])
        assert batch._llm.n_cached == n
        assert f"two.txt: read {n:,} tokens in" in on_day(4, "ask", model, two, "Who?")
        assert f"two.txt: read 0 new tokens ({n:,} known)" in on_day(5, "ask", model, two, "Who?")
    with Llama(model, n_ctx=8192) as llm:  # without a library, over midnight
        for i in (6, 7):
            monkeypatch.setattr(time, "time", lambda i=i: now + i * 86400)
            answer = llm.create_chat_completion(document_messages(one.read_text(), f"Who {i}?"), max_tokens=1)
        usage = answer["usage"]
        assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] < 0.02 * n


def test_others_cannot_look_into_a_folder_that_was_there(tiny_model: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for name in ("texts", "blocks"):
        (tmp_path / name).mkdir(mode=0o755)
    library = Library(tmp_path)
    read(tiny_model, library, DOCUMENT)
    library.flush()
    private = {tmp_path / "texts", tmp_path / "blocks"}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert all({*path.parents} & private for path in files)
    assert all(path.stat().st_mode & 0o077 == 0 for path in private)
    assert tmp_path.stat().st_mode & 0o777 == 0o755  # it may hold something else


def test_short_texts_and_contexts(tiny_model: Path, library: Library) -> None:
    read(tiny_model, library, DOCUMENT[: LEAST_TOKENS - 1])
    library.flush()
    assert library.texts() == []
    read(tiny_model, library, DOCUMENT)
    assert read(tiny_model, library, DOCUMENT[:200], n_ctx=300, n_batch=300) == 0
    assert read(tiny_model, None, DOCUMENT) == 0


@pytest.mark.parametrize("name", ["key_index", "evict", "dense"])
def test_what_texts_share_is_stored_once(tiny_model: Path, library: Library, name: str) -> None:
    """Ten conversations about a document of twelve chunks; a longer version of a conversation replaces the shorter."""
    config = CONFIGS[name]
    document = random_tokens(12 * S + 41)
    read(tiny_model, library, document, config)
    blocks = {path for path in files_of(library) if path.parent.parent.name == "blocks"}
    one = library.n_bytes
    for seed in range(10):
        assert read(tiny_model, library, [*document, *question(seed, 70)], config) == len(document)
    library.flush()
    assert len(library.texts()) == 11
    again = {path for path in files_of(library) if path.parent.parent.name == "blocks"}
    assert len(blocks - again) <= 2  # the block without rows, and the document's end, which is now a mark
    per_text = (library.n_bytes - one) / 10
    assert per_text < 0.45 * one if name != "evict" else per_text < one


def written(library: Library, model: Path, n_bytes: int, seed: int = 0, begin: Sequence[int] = ()) -> SnapshotOrigin:
    """A text whose state nothing compresses."""
    with open_llama(model, None) as llm:
        origin = llm._state.engine.origin
    tokens = np.array([*begin, *random_tokens(N - len(begin), seed=seed)], dtype=np.int32)
    library.add(Snapshot(origin, tokens, None, random.Random(seed).randbytes(n_bytes)), [], [(N, N)], str(seed))
    library.flush()
    return origin


def test_twins_that_were_asked_once_go_first_then_the_least_recently_used(tiny_model: Path, tmp_path: Path) -> None:
    """A twin shares half of its tokens with a newer text."""
    library, document = Library(tmp_path, limit_bytes=199_000), random_tokens(N // 2 + 1, seed=9)
    for seed, begin in enumerate(((), document, document, document, ())):
        origin = written(library, tiny_model, 40_000, seed, begin)
        if seed == 2:
            (found, *_) = library.stored(origin)
            library.load(Found(found, N))
    assert [text.name for text in library.texts()] == ["4", "3", "2", "0"]
    written(library, tiny_model, 40_000, 5)
    assert [text.name for text in library.texts()] == ["5", "4", "3", "2"]
    assert library.n_bytes <= library.limit_bytes


def test_a_text_without_logits_is_for_longer_ones(tiny_model: Path, library: Library) -> None:
    """As a server gives it."""
    with open_llama(tiny_model, CONFIG) as llm:
        llm.eval(DOCUMENT)
        library.add(replace(llm.snapshot(), logits=None), [], [(N, N)], "")
    library.flush()
    assert [read(tiny_model, library, [*DOCUMENT, *more]) for more in ([1], [])] == [N, 0]


def test_a_text_of_almost_the_limit_stays(tiny_model: Path, tmp_path: Path) -> None:
    """Q8_0 is not compressed: such a text is as large as its state."""
    library = Library(tmp_path, limit_bytes=200_000)
    for seed in range(3):
        written(library, tiny_model, 20_000, seed)
    written(library, tiny_model, 190_000, 3)
    assert [text.name for text in library.texts()] == ["3"]


def test_a_text_given_to_a_library_makes_room(tiny_model: Path, library: Library, tmp_path: Path) -> None:
    for seed in range(3):
        written(library, tiny_model, 60_000, seed)
        library.export_text(str(seed), tmp_path / str(seed))
    small = Library(tmp_path / "small", limit_bytes=100_000)
    for seed in range(3):
        small.import_text(tmp_path / str(seed))
        assert [text.name for text in small.texts()] == [str(seed)]
    with pytest.raises(H2OError, match="60,000 bytes are more than limit_bytes=50,000"):
        Library(tmp_path / "small", limit_bytes=50_000).import_text(tmp_path / "0")


def test_a_servers_owners_share_a_writer(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the reason is given why a text cannot be kept."""
    served = ServerTexts(tmp_path, written(Library(tmp_path / "other"), tiny_model, 1000), tells_day=False)
    ids, n_threads = np.array(DOCUMENT, dtype=np.int32), threading.active_count()
    state = np.zeros(1000, dtype=np.uint8)
    for owner in range(20):
        served.write(str(owner), ids, state, [], [(N, N)], "text")
        assert json.loads(served.answer(str(owner), None)[1])["texts"]
        assert json.loads(served.answer(f"{owner}'s friend", None)[1])["texts"] == []
    assert json.loads(served.answer("0", None)[1])["texts"]  # which others have too
    assert threading.active_count() <= n_threads + 1
    monkeypatch.setenv("H2O_LLAMA_LIBRARY_BYTES", "900")
    served = ServerTexts(tmp_path / "small", served._origin, tells_day=False)
    with pytest.warns(H2OWarning, match="more than limit_bytes=900"):
        served.write("", ids, state, [], [(N, N)], "text")


def test_only_texts_that_begin_alike_are_read_for_where_they_part(
    tiny_model: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, *_ = (written(library, tiny_model, 1000, seed) for seed in range(3))
    rows = record_calls(monkeypatch, Contents, "from_json")
    asked = np.array([*random_tokens(N, seed=2)[: LEAST_NEW + 9], 1, 2, 3], dtype=np.int32)
    snapshot, near = library.take(origin, asked, N, N)
    assert snapshot is None
    assert near.tolist() == random_tokens(N, seed=2)
    assert len(rows) == 1


def test_a_question_asks_once_what_there_is(
    tiny_model: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = record_calls(monkeypatch, Library, "stored")
    for n in (1, 2):
        with open_llama(tiny_model, CONFIG, library=library, chat_template=CHATML, n_ctx=2048) as llm:
            llm.ask("All about ducks. " * 40, "Who?", max_tokens=2)
            assert len(asked) == n
            llm.ask("All about ducks. " * 40, "When?", max_tokens=2)
            assert len(asked) == n


def test_a_folder_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Library("~/texts").folder == tmp_path / "texts"
    with pytest.raises(ValueError, match=r"folder must be the path of a folder, got ''"):
        Library("")


# --- attacks


def flipped(content: bytes, at: int | None = None) -> bytes:
    at = len(content) * 2 // 3 if at is None else at
    return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]


def flip(path: Path) -> None:
    path.write_bytes(flipped(path.read_bytes()))


DAMAGES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "cut": lambda content, other: content[:-7],
    "flipped": lambda content, other: flipped(content),
    "another's": lambda content, other: other,
    "empty": lambda content, other: b"",
    "of another version": lambda content, other: flipped(content, 8),
    "gone": lambda content, other: b"gone",
}
"""What becomes of a file, by its content and that of another one."""


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.filterwarnings("ignore::h2o_llama.H2OWarning")
def test_damaged_files(tiny_model: Path, library: Library, damage: str) -> None:
    """Each file in turn: the text is read again, nothing else is computed, and afterwards all is well."""
    config = CONFIG.but(chunk_size=4 * S)  # so that there are few
    with open_llama(tiny_model, config) as llm:
        llm.eval(DOCUMENT)
        expected = llm.logits
    read(tiny_model, library, DOCUMENT, config)
    library.flush()
    for path in sorted(files_of(library)):
        other = next(other for other in sorted(files_of(library)) if other != path)
        path.write_bytes(DAMAGES[damage](path.read_bytes(), other.read_bytes()))
        if damage == "gone":
            path.unlink()
        with open_llama(tiny_model, config, library=Library(library.folder)) as llm:
            llm.eval(DOCUMENT)
            assert llm.n_cached == 0
            np.testing.assert_allclose(llm.logits, expected, atol=1e-4)
        assert read(tiny_model, Library(library.folder), DOCUMENT, config) == N
    assert library.verify() == []


def test_verify_names_what_is_damaged(tiny_model: Path, library: Library) -> None:
    read(tiny_model, library, DOCUMENT)
    read(tiny_model, library, random_tokens(N, seed=1))
    library.flush()
    assert library.verify() == []
    text, other = library.texts()
    block = library._blocks.path(other.contents.blocks[0])  # right checksums, and a name that is not its content's
    about = {"kind": "block", "sha256": block.name}
    _snapshot_file.write(block, about, {"content": _snapshot_file.Section(b"other", 1)})
    change(library, "UPDATE texts SET tokens = zeroblob(length(tokens)) WHERE id = ?", text.id)
    before = files_of(library)
    small = Library(library.folder, limit_bytes=1)
    lines = small.verify()
    assert len(lines) == 2
    assert any("its content is not what its name says" in line for line in lines)
    assert any(text.id in line for line in lines)
    assert files_of(library) == before  # nothing is removed unasked
    assert sorted(small.verify(repair=True)) == sorted(lines)
    assert files_of(library) == library.verify() == library.texts() == []


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name not in ("gone", "of another version")])
@pytest.mark.filterwarnings("ignore::h2o_llama.H2OWarning")
def test_a_damaged_index(tiny_model: Path, library: Library, damage: str) -> None:
    """A text that is found is right. The next text begins a new index."""
    read(tiny_model, library, DOCUMENT)
    library.flush()
    path = library._index.path
    path.write_bytes(DAMAGES[damage](path.read_bytes(), b"another file" * 1000))
    assert read(tiny_model, Library(library.folder), DOCUMENT) in (0, N)
    assert read(tiny_model, Library(library.folder), DOCUMENT) == N


def test_where_the_index_is_damaged_all_is_repaired(tiny_model: Path, library: Library) -> None:
    read(tiny_model, library, DOCUMENT)
    library.flush()
    block, *_ = files_of(library)
    flip(block)
    block.with_name("a.new").write_bytes(b"of a process that was killed")
    library._index.path.write_bytes(b"another file" * 1000)
    assert len(library.verify(repair=True)) == 1
    assert files_of(library) == library.verify() == []


def test_what_was_left_an_hour_ago_is_removed(
    tiny_model: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a program that writes a text, once an hour. A younger file may belong to a text that is being written."""
    left = [library.folder / "blocks" / "ab" / name for name in ("ab" * 32, "a.new")]
    left[0].parent.mkdir(parents=True)
    now = time.time()
    for hours, stay in ((0.5, True), (2, False), (2.5, True), (4, False)):
        for path in left:
            if not path.exists():
                path.write_bytes(b"of a process that was killed")
        monkeypatch.setattr(time, "time", lambda hours=hours: now + hours * 3600)
        read(tiny_model, library, random_tokens(N, seed=int(10 * hours)))
        library.flush()
        assert [path.exists() for path in left] == [stay, stay]


def test_an_index_of_a_later_version_is_refused(tiny_model: Path, library: Library) -> None:
    read(tiny_model, library, DOCUMENT)
    library.flush()
    change(library, "PRAGMA user_version = 99")
    with pytest.raises(H2OError, match=r"of format 99, this h2o-llama reads format 4: update h2o-llama"):
        library.texts()
    with pytest.warns(H2OWarning, match="of format 99"):
        assert read(tiny_model, library, DOCUMENT) == 0
    change(library, "PRAGMA user_version = 4")
    assert read(tiny_model, library, DOCUMENT) == N


def test_texts_of_an_earlier_version(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its index is taken over; they are named, and removed where somebody asks for it."""
    monkeypatch.setenv("H2O_LLAMA_LIBRARY", str(tmp_path))
    library = Library()
    earlier = (
        (_texts, "VERSION", "2 b1"),
        (_index, "VERSION", "2 b1"),
        (_texts, "FORMAT", 2),
        (_snapshot_file, "VERSION", 1),
    )
    with monkeypatch.context() as patch:
        for module, name, value in earlier:
            patch.setattr(module, name, value)
        read(tiny_model, library, DOCUMENT, name="old.txt")
        library.flush()
    for column in ("version", "n_uses"):
        change(library, f"ALTER TABLE texts DROP COLUMN {column}")
    change(library, "PRAGMA user_version = 2")
    assert read(tiny_model, Library(), DOCUMENT, name="new.txt") == 0
    assert [(text.name, text.is_old) for text in Library().texts()] == [("new.txt", False), ("old.txt", True)]
    assert "old.txt, of an earlier version: " in succeeded(invoke("library")).stdout
    assert library.verify() == []
    assert succeeded(invoke("library", "rm", "--old")).stdout == "1 text removed\n"
    assert [text.name for text in Library().texts()] == ["new.txt"]
    assert read(tiny_model, Library(), DOCUMENT) == N


@pytest.mark.parametrize("error", [MemoryError(), OSError(24, "Too many open files"), OutOfMemoryError("no memory")])
def test_a_failure_that_is_not_the_texts_removes_nothing(
    tiny_model: Path, library: Library, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    read(tiny_model, library, DOCUMENT)
    library.flush()

    def fails(self: Library, found: Found) -> Snapshot:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Library, "load", fails)
        with pytest.warns(H2OWarning, match="the text is read again"):
            assert read(tiny_model, library, DOCUMENT) == 0
    assert read(tiny_model, library, DOCUMENT) == N


def test_a_library_that_can_only_be_read(tiny_model: Path, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a read-only disk, also where a writer was killed and its log is there."""
    read(tiny_model, library, DOCUMENT)
    library.flush()
    connect = Index._connect

    def refuses(self: Index, mode: str, seconds: float) -> sqlite3.Connection:
        if mode.startswith("mode=rw"):
            raise sqlite3.OperationalError("unable to open database file")
        return connect(self, mode, seconds)

    monkeypatch.setattr(Index, "_connect", refuses)
    assert read(tiny_model, library, DOCUMENT) == N
    with pytest.warns(H2OWarning, match="cannot be written .*: this text is not kept"):
        assert read(tiny_model, library, [*DOCUMENT, *question(1, 70)]) == N
    assert len(library.texts()) == 1
    files_of(library)[0].unlink()
    loads = record_calls(monkeypatch, Library, "load")
    (text,) = stored_in(library)
    ids = np.array(DOCUMENT, dtype=np.int32)
    assert library.take(text.contents.origin, ids, N, LEAST_NEW)[0] is None  # it is not tried again
    assert len(loads) == 1


def add_and_remove(folder: Path, file: Path, n: int) -> None:
    """Add a text and remove it again. The process is killed before the n-th call that can change a file."""
    changes = {"chmod", "executemany", "execute", "executescript", "link", "mkdir", "replace", "unlink"}
    calls = itertools.count(1)

    def look(frame: object, event: str, called: Any) -> None:
        is_change = event == "c_call" and (
            called.__name__ in changes or type(getattr(called, "__self__", None)) is io.BufferedWriter
        )
        if is_change and next(calls) == n:
            os.kill(os.getpid(), signal.SIGKILL)

    library = Library(folder)
    sys.setprofile(look)
    library.remove(library.import_text(file).id)


def add(folder: Path, file: Path, barrier: Any) -> None:
    barrier.wait()
    Library(folder).import_text(file)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes processes that need not import everything again."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # where they look for this module
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@pytest.fixture
def exported(tiny_model: Path, library: Library, tmp_path: Path) -> Path:
    """A text of few blocks that was given away."""
    read(tiny_model, library, DOCUMENT, CONFIG.but(chunk_size=8 * S))
    library.export_text(library.texts()[0].id, tmp_path / "one.text")
    return tmp_path / "one.text"


def assert_only_needed_files(library: Library, n_texts: int) -> None:
    there = {path.name for path in library.folder.rglob("*") if path.is_file()}
    blocks = {block for text in stored_in(library) for block in text.contents.blocks}
    assert (len(library.texts()), there) == (n_texts, {".index.sqlite.lock", "index.sqlite", *blocks})


@pytest.mark.slow
def test_a_process_that_is_killed_at_any_call(processes: Any, exported: Path, tmp_path: Path) -> None:
    """Nothing is damaged, the next program adds its text, and `verify` leaves no file that nobody needs."""
    for n in itertools.count(1):
        other = Library(tmp_path / str(n))
        process = processes.Process(target=add_and_remove, args=(other.folder, exported, n))
        process.start()
        process.join()
        assert other.verify() == []
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        other.import_text(exported)
        assert other.verify(repair=True) == []
        assert_only_needed_files(other, 1)
    assert n > 50


@pytest.mark.slow
def test_a_library_that_several_processes_begin_at_once(processes: Any, exported: Path, tmp_path: Path) -> None:
    for i in range(5):
        other, barrier = Library(tmp_path / str(i)), processes.Barrier(8)
        started = [processes.Process(target=add, args=(other.folder, exported, barrier)) for _ in range(8)]
        for process in started:
            process.start()
        for process in started:
            process.join()
            assert process.exitcode == 0
        assert other.verify() == []
        assert_only_needed_files(other, 1)


@pytest.mark.parametrize("limit", [3000, 30_000])
def test_a_full_disk_keeps_nothing(tiny_model: Path, library: Library, limit: int) -> None:
    """The answer is the same; no block is left alone."""
    with pytest.warns(H2OWarning, match=r"cannot be written.*: this text is not kept"), file_size_limit(limit):
        assert read(tiny_model, library, DOCUMENT) == 0
    assert files_of(library) == []
    assert read(tiny_model, library, DOCUMENT) == 0
    assert read(tiny_model, library, DOCUMENT) == N


# --- the command line


def test_commands(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H2O_LLAMA_LIBRARY", str(tmp_path / "own"))
    for seed, name in enumerate(("one.txt", "/b/two.txt", "/a/two.txt")):
        with open_llama(tiny_model, CONFIG, library=True) as llm:
            llm.text_name = name
            llm.eval(random_tokens(N, seed=seed))
            llm.library.flush()
            if seed == 0:  # a question, and another one
                for question in ("Who?", "When?"):
                    llm.rewind(N)
                    llm._state.question = question
                    llm.eval(random_tokens(200, seed=len(question)))
    lines = succeeded(invoke("library")).stdout.splitlines()
    assert [line.split()[1:] for line in lines if re.match("[0-9a-f]{8} ", line)] == [
        *(["two.txt,", "in", folder] for folder in ("/a", "/b")),
        ["one.txt"],
    ]
    assert sum(f"{N:,} tokens of {tiny_model.name}" in line for line in lines) == 3
    assert [line.strip() for line in lines if ">" in line[:12]] == ["> When?", "> Who?"]
    assert "another document than" in "".join(lines)
    assert lines[-1].startswith("3 documents in 5 texts, ")
    assert_one_line_error(invoke("library", "rm", "two.txt"), "names 2 documents: choose by id: ")
    assert succeeded(invoke("library", "rm", "/a/two.txt")).stdout == "1 text removed\n"
    (tmp_path / "one.txt").write_text("Another text.")
    told = succeeded(invoke("library", "why", tmp_path / "one.txt", "--model", tiny_model)).stdout
    assert "0 of 25 tokens" in told
    assert re.search(r"one.txt \(\w{8}\) is not for it: .*its chunk_size is 64, not 1024", told)
    assert "one.txt (" in succeeded(invoke("library", "why", tmp_path / "one.txt")).stdout
    assert succeeded(invoke("library", "verify")).stdout == "nothing is damaged\n"
    assert succeeded(invoke("library", "rm", "one.txt")).stdout == "3 texts removed\n"
    assert_one_line_error(invoke("library", "rm", "one.txt"), "there is no text 'one.txt'")
    assert succeeded(invoke("library", "rm", "--all")).stdout == "1 text removed\n"
    assert files_of(Library()) == []
    assert invoke("library", "rm").exit_code == 2


def test_a_text_to_give_away(tiny_model: Path, one_layer_model: Path, library: Library, tmp_path: Path) -> None:
    """It is found in another library, by its model alone. A damaged file, or one of another version, is refused."""
    read(tiny_model, library, DOCUMENT, name="one")
    file, other = tmp_path / "one.text", Library(tmp_path / "other")
    library.export_text("one", file)
    assert (other.import_text(file).id, len(other.texts())) == (library.texts()[0].id, 1)
    assert other.import_text(file).n_tokens == N
    assert read(one_layer_model, other, DOCUMENT) == 0
    assert read(tiny_model, other, DOCUMENT) == N
    assert other.verify() == []
    with Model(one_layer_model) as model, pytest.raises(ValueError, match=f"is of {tiny_model.name} .* is loaded"):
        other.import_text(file, model)
    content = file.read_bytes()
    for damage in ("cut", "flipped", "empty", "another's"):
        file.write_bytes(DAMAGES[damage](content, b"another file"))
        with pytest.raises(DamagedFileError):
            Library(tmp_path / "third").import_text(file)
    file.write_bytes(content)
    about, sections = _snapshot_file.read(file, _SECTIONS)
    again = {name: _snapshot_file.Section(part, 1) for name, part in zip(_SECTIONS, sections, strict=True)}
    _snapshot_file.write(file, about | {"key": "another"}, again)
    with pytest.raises(ValueError, match="written by another version: export it"):
        Library(tmp_path / "third").import_text(file)
    assert Library(tmp_path / "third").texts() == []


def add_texts(model: Path, library: Library, *names: str) -> list[str]:
    """A text of each name. Returns their ids."""
    for seed, name in enumerate(names):
        read(model, library, random_tokens(N, seed=seed), name=name)
    library.flush()
    return [text.id for text in reversed(library.texts())]


def test_only_what_is_named_is_removed(tiny_model: Path, library: Library) -> None:
    first, second, _ = add_texts(tiny_model, library, "one", "two", "two")
    read(tiny_model, library, random_tokens(N, seed=7), name=second)  # a name that is another text's id
    for name, match in (
        ("", "no text"),
        (first[0], "no text"),
        (first[:5], "no text"),
        ("two", "'two' names 2 documents: choose by id: "),
    ):
        with pytest.raises(ValueError, match=match):
            library.remove("one", name)
    assert len(library.texts()) == 4
    assert library.remove(first[:6], second, "one") == 2
    assert sorted(text.name for text in library.texts()) == sorted([second, "two"])


def test_a_person_is_asked_before_a_text_is_removed(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("H2O_LLAMA_LIBRARY", str(tmp_path))
    library = Library()
    add_texts(tiny_model, library, "one", "two")
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("h2o_llama._cli.command.sys", terminal)
    for command in (["rm", "one", "two"], ["rm", "--all"]):
        result = invoke("library", *command, stdin="y\nn\n" if "one" in command else "n\n")
        assert result.exit_code == 1
        assert "Remove " in result.stderr
        assert len(library.texts()) == 2
    succeeded(invoke("library", "rm", "one", stdin="y\n"))
    assert [text.name for text in library.texts()] == ["two"]


def test_a_name_is_neither_markup_nor_obeyed(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H2O_LLAMA_LIBRARY", str(tmp_path))
    name = "[/b] x[page 1]\x1b[2Jy\x9bz"
    add_texts(tiny_model, Library(), name)
    shown = succeeded(invoke("library")).stdout
    assert "[/b] x[page 1]␛[2Jy\ufffdz" in shown
    assert not {"\x1b", "\x9b"} & {*shown}


def test_a_folder_that_cannot_be_made_stops_nobody(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("H2O_LLAMA_LIBRARY", str(tmp_path / "file" / "library"))
    command = ["run", tiny_model, "--raw", "--prompt", "a" * 300, "-n", "2"]
    assert "Not a directory: texts are not kept" in succeeded(invoke(*command)).stderr
    assert "Not a directory" not in succeeded(invoke(*command, "--no-library")).stderr
