"""RULER: needles, lengths and scores of the tasks, and a run on the demo model."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from chats import open_chat, write_chat_model
from command_line import h2o_set, invoke, succeeded
from compare import case
from h2o_llama import Llama, demo_model_path
from h2o_llama.eval._ruler_task import ESSAYS, WORDS, Item, Sources, make_item, score
from h2o_llama.models import _named

N = 4200
N_CWE = 9000  # of bytes, for the worked example
ESSAY = " ".join(f'He said "thing {i} is so." Then "(It was) no. {i}!" A sentence, number {i}.' for i in range(40))
LISTS = (
    "\n\n".join(
        "\n".join(f"{kind}{c}{d}{e}" for c in "bcdfgh" for d in "klmnpr" for e in "stvwxz") for kind in ("a", "o", "i")
    )
    + "\n"
)
SOURCES = Sources({ESSAYS: ESSAY, WORDS: LISTS}.__getitem__)


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    """A token is a byte, and no chat template exists."""
    with Llama(demo_model_path(), n_ctx=256, h2o=None) as model:
        yield model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr("h2o_llama.models._named.cache_folder", lambda: folder)
    return folder


def make(llm: Llama, kind: str, n_tokens: int | None = None, seed: int = 0) -> tuple[Item, str]:
    item = make_item(kind, n_tokens or (N_CWE if kind == "cwe" else N), seed, llm, SOURCES)
    return item, llm.detokenize(list(item.tokens)).decode()


# --- needles


def test_needles(llm: Llama) -> None:
    """Each needle is in the text once; the answers are the values of the keys in the question."""
    for kind, n_needles, n_asked in [
        ("niah_single_1", 1, 1),
        ("niah_single_2", 1, 1),
        ("niah_single_3", 1, 1),
        ("niah_multikey_1", 4, 1),
        ("niah_multivalue", 4, 4),
        ("niah_multiquery", 4, 4),
    ]:
        with case(kind=kind):
            item, text = make(llm, kind)
            needles = re.findall(r"One of the special magic (?:numbers|uuids) for (\S+) is: (\S+)\.", text)
            assert len(needles) == n_needles
            assert all(text.count(value) == 1 for _, value in needles)
            question = text[text.rindex("\nWhat") :]
            asked = [value for key, value in needles if key in question]
            assert sorted(asked) == sorted(item.answers)
            assert len(asked) == n_asked
            assert item.n_generate == 128


# --- the others


def test_variables_that_resolve_to_the_value_are_the_answers(llm: Llama) -> None:
    for seed in range(5):
        with case(seed=seed):
            item, text = make(llm, "vt", seed=seed)
            example, text = text.split("\n\n\n\n")
            for part, n_letters in ((example, 3), (text, 5)):
                values: dict[str, str] = {}
                for name, value, source in re.findall(r"VAR (\w+) = (?:VAR (\w+)|(\d+))", part):
                    assert len(name) == n_letters
                    values[name] = source or values[value]
                asked = re.search(r"assigned the value (\d+) in", part)
                assert asked is not None
                assert list(values.values()) == [asked[1]] * 5
            assert item.answers == tuple(values)
            assert example.endswith("they are:  " + " ".join(re.findall(r"VAR (\w{3}) =", example)))


def test_common_words_are_ten_times_as_common(llm: Llama) -> None:
    for n_tokens, often, seldom in [(N_CWE, 30, 3), (4000, 6, 1)]:
        with case(n_tokens=n_tokens):
            item, text = make(llm, "cwe", n_tokens)
            example, text = re.split(r"(?<=\d)\n|(?<=\w)\n(?=Below)", text, maxsplit=1)[0], text[text.rindex("Below") :]
            counts = Counter(re.findall(r"\d+\. (\w+)", text))
            assert {word for word, n in counts.items() if n == often} == set(item.answers)
            assert set(counts.values()) == {often, seldom}
            numbers = [int(n) for n in re.findall(r"(\d+)\. \w", text)]
            assert numbers == list(range(1, len(numbers) + 1))
            assert "1. " in example


def test_the_three_most_frequent_words(llm: Llama) -> None:
    for seed in range(5):
        with case(seed=seed):
            item, text = make(llm, "fwe", seed=seed)
            context = text[text.index("coded words. ") + 13 : text.index("\nQuestion")]
            ranks = Counter(context.split()).most_common(5)
            assert ranks[0][0] == "..."
            assert tuple(word for word, _ in ranks[1:4]) == item.answers
            counts = [n for _, n in ranks]
            assert counts == sorted(set(counts), reverse=True)  # no ties
            assert item.n_generate == 50


def test_the_question_is_a_users_message_and_the_prefix_begins_the_answer(tmp_path: Path) -> None:
    chat_llm = open_chat(write_chat_model(tmp_path / "chat.gguf"), None)
    item = make_item("vt", 8000, 0, chat_llm, SOURCES)
    mark = "THE MESSAGE"
    before, after = chat_llm.apply_chat_template([{"role": "user", "content": mark}]).split(mark)

    def at(text: str) -> int:
        tokens = chat_llm.tokenize(text, add_special=False, parse_special=True)
        return next(i for i in range(len(item.tokens)) if list(item.tokens[i : i + len(tokens)]) == tokens)

    assert at(before + "Memorize and track") <= 1
    assert at("in the text above." + after + " Answer: According to") > at(before)


def test_scores() -> None:
    """By the definition: sum(r.lower() in pred.lower() for r in ref) / len(ref)."""
    for said, answers, expected in [
        (" 12 and 345.", ("12", "345"), 1.0),
        ("1234512", ("12", "345"), 1.0),  # as a part of something else, too
        ("the OTTER\x00", ("otter", "anchor"), 0.5),
        ("", ("otter",), 0.0),
        ("ot\tter", ("otter", "ot\nter"), 0.5),  # what cannot be printed is a newline
    ]:
        with case(said=said, answers=answers):
            assert score(said, answers) == expected


# --- runs


def test_the_command_prints_each_task_and_the_mean(cache: Path, tmp_path: Path) -> None:
    for name, text in ((ESSAYS, ESSAY), (WORDS, LISTS)):
        path = _named.NAMED_FILES[name].path
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    out = tmp_path / "rows.json"
    command = ["eval", "demo", "--ruler-task", "niah_single_2,niah_multikey_1", "--n-tokens", "1200", "-t", "1"]
    command += ["--samples", "1", *h2o_set(chunk_size=256, local_window=32, heavy_budget=32), "--json", str(out)]
    result = succeeded(invoke(*command))
    rows = json.loads(out.read_text())
    assert [row["kind"] for row in rows] == ["niah_single_2", "niah_multikey_1"]
    assert "RULER, 1,200 tokens, 1 prompts each, dense tail 128, " in result.stdout
    for word in ("niah_single_2", "niah_multikey_1", "mean", "over dense"):
        assert word in result.stdout
    assert invoke(*command).stdout == result.stdout
    assert json.loads(out.read_text()) == rows
