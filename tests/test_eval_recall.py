"""Recall: what is found of what was hidden, on the demo model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from compare import case
from h2o_llama import H2OConfig, Llama, demo_model_path
from h2o_llama.eval.answering import answer
from h2o_llama.eval.recall import RecallCell, count_found, measure_recall, share_found
from h2o_llama.eval.tasks import Item, Turn
from h2o_llama.eval.tasks.keys import MODEL_NAME

N = 1000
S = 256
# A window that is far too short for what lies in an older chunk, and nothing else.
WINDOW = H2OConfig(local_window=64, heavy_budget=0, lookup_budget=0, chunk_size=S)


@pytest.fixture(scope="module")
def llms() -> Iterator[dict[str, Llama]]:
    """The demo model, dense and with H2O."""
    options: dict[str, Any] = {"n_ctx": N, "n_ubatch": S, "n_threads": 1}
    with Llama(demo_model_path(), h2o=None, **options) as dense, Llama(demo_model_path(), h2o=WINDOW, **options) as h2o:
        yield {"dense": dense, "h2o": h2o}


def measure(llms: dict[str, Llama], **changes: Any) -> dict[str, list[RecallCell]]:
    arguments: dict[str, Any] = {"kinds": ["single"], "n_tokens": N, "depths": [0.0], "samples": 1}
    return measure_recall(llms, **(arguments | changes))


def test_dense_and_a_dense_tail_find_everything(llms: dict[str, Llama]) -> None:
    cells = measure(llms, kinds=["single", "multi-key", "multi-query", "pairs"], depths=[0.0, 0.5, 1.0], dense_tail=64)
    for name in llms:
        assert [(cell.kind, cell.depth) for cell in cells[name]] == [
            (kind, depth) for kind in ("single", "multi-key", "multi-query", "pairs") for depth in (0.0, 0.5, 1.0)
        ]
        assert sum(cell.recall for cell in cells[name]) >= 11.5  # of 12; a seed may have one answer wrong


def test_the_prompts_end_finds_only_what_its_memory_holds(llms: dict[str, Llama]) -> None:
    cells = measure(llms, depths=[0.3, 1.0], samples=4, dense_tail=0)
    assert [cell.recall for cell in cells["dense"]] == [1.0, 1.0]
    far, near = cells["h2o"]
    assert near.recall == 1.0  # in the question's own chunk
    assert far.recall <= 0.5  # lucky first digits
    assert (far.n, far.n_tokens, far.question) == (4, N, "after")


def test_the_default_finds_it_without_a_dense_tail(llms: dict[str, Llama]) -> None:
    with Llama(llms["dense"], n_ctx=N, n_threads=1, h2o=H2OConfig(60, 320, 4, lookup_budget=128, chunk_size=S)) as llm:
        cells = measure({"default": llm}, depths=[0.3, 1.0], samples=4, dense_tail=0)["default"]
    assert [cell.recall for cell in cells] == [1.0, 1.0]


def test_question_before_the_document(llms: dict[str, Llama]) -> None:
    (cell,) = measure({"dense": llms["dense"]}, depths=[0.5], question="before")["dense"]
    assert (cell.recall, cell.question) == (1.0, "before")


def test_kinds_without_depth_have_one_cell_and_progress_ends_at_the_total(llms: dict[str, Llama]) -> None:
    calls: list[tuple[int, int]] = []
    cells = measure(
        {"dense": llms["dense"]},
        kinds=["words", "single"],
        depths=[0.0, 1.0],
        style="english",
        n_tokens=700,
        progress=lambda n_done, n: calls.append((n_done, n)),
    )["dense"]
    assert [(cell.kind, cell.depth) for cell in cells] == [("words", None), ("single", 0.0), ("single", 1.0)]
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_equal_seeds_measure_the_same(llms: dict[str, Llama]) -> None:
    arguments: dict[str, Any] = {"depths": [0.5], "dense_tail": 0, "seed": 3}
    assert measure(llms, **arguments) == measure(llms, **arguments)


def test_bad_arguments_are_refused(llms: dict[str, Llama]) -> None:
    for changes, message in [
        ({"n_tokens": N + 1}, f"{N + 1} tokens do not fit into n_ctx={N} of 'dense'"),
        ({"samples": 0}, "samples must be an integer of at least 1"),
        ({"dense_tail": -1}, "dense_tail must be an integer of at least 0"),
        ({"kinds": ["needle"]}, "kind must be one of"),
        ({"depths": [2]}, "depth must be"),
        ({"style": "keyss"}, "style must be one of"),
    ]:
        with case(changes=changes, message=message), pytest.raises(ValueError, match=message):
            measure(llms, **changes)


def test_what_is_wrong_shows_before_anything_is_computed(llms: dict[str, Llama]) -> None:
    """The style follows the model."""
    assert llms["dense"].metadata["general.name"] == MODEL_NAME
    calls: list[tuple[int, int]] = []
    with pytest.raises(ValueError, match="style 'keys' has the kinds"):
        measure(llms, kinds=["single", "words"], progress=lambda n_done, n: calls.append((n_done, n)))
    assert calls == []


def test_no_models_are_refused() -> None:
    with pytest.raises(ValueError, match="llms must be at least one model"):
        measure({})


def test_answers_count_as_whole_words_in_either_case() -> None:
    for text, n_found in [
        (b" 12 and 345.", 2),
        (b"345", 1),
        (b"1234512", 0),
        (b"12x x12 345_", 0),
        (b"", 0),
    ]:
        with case(text=text, n_found=n_found):
            assert count_found(text, Turn(b"?", (b"12", b"345"), 9)) == n_found
    assert count_found(b"The Otter, an ANCHOR", Turn(b"?", (b"otter", b"anchor", b"temple"), 9)) == 2


class Scripted:
    """A model that says what it was told to, a token per byte, and writes down what it read."""

    def __init__(self, texts: list[bytes]) -> None:
        self.texts = iter(texts)
        self.read: list[tuple[bytes, int]] = []

    def reset(self) -> None:
        self.read = []

    def tokenize(self, text: bytes, add_special: bool = True) -> list[int]:
        return list(b"<" + text if add_special else text)

    def detokenize(self, tokens: list[int]) -> bytes:
        return bytes(tokens)

    def eval(self, tokens: list[int], dense_tail: int) -> None:
        self.read.append((bytes(tokens), dense_tail))

    def generate(self, tokens: list[int], temperature: float) -> Iterator[int]:
        assert (tokens, temperature) == ([], 0)
        return iter(next(self.texts))


def test_turns_are_asked_one_after_the_other() -> None:
    item = Item("multi-query", 0, 0.0, b"document\n", (Turn(b"a?", (b"12",), 2), Turn(b"\nb?", (b"34", b"5"), 4)))
    llm: Any = Scripted([b"12 never said", b"5 34 too late"])
    assert share_found(llm, item, dense_tail=7) == 1.0
    assert llm.read == [(b"<document\na?", 7), (b"\nb?", 7)]
    llm = Scripted([b" 12", b"54 5"])
    assert share_found(llm, item, dense_tail=7) == pytest.approx(1 / 3)


def test_a_model_may_end_its_text() -> None:
    llm: Any = Scripted([b"ab"])
    assert answer(llm, [1, 2], 5, dense_tail=0) == b"ab"
