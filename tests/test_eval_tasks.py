"""Recall tasks: what they hide, where, and how long they are."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from itertools import combinations, product
from random import Random
from typing import Any

import pytest

from compare import case
from h2o_llama.eval.tasks import KINDS, KINDS_OF_STYLE, STYLES, Item, make_item
from h2o_llama.eval.tasks.filler import hide, make_filler, spread
from h2o_llama.eval.tasks.names import ADJECTIVES, COLOURS, N_NAMES, NOUNS, name

ALL = [(style, kind) for style in STYLES for kind in KINDS_OF_STYLE[style]]
HAYSTACK = b"".join(b"line %d of the haystack\n" % i for i in range(500))


def n_words(text: bytes) -> int:
    """A tokenizer: words and single other characters."""
    return len(re.findall(rb"\w+|[^\w\s]", text))


def make(kind: str, **changes: Any) -> Item:
    arguments: dict[str, Any] = {
        "n_tokens": 1500,
        "depth": 0.5,
        "seed": 1,
        "style": "english",
        "count_tokens": n_words,
    }
    return make_item(kind, **(arguments | changes))


# --- every kind


def test_items_are_as_long_as_lines_allow() -> None:
    for (style, kind), question, count_tokens in product(ALL, ["after", "before"], [len, n_words]):
        with case(style=style, kind=kind, question=question, count_tokens=count_tokens):
            n_tokens = 4000
            item = make(kind, n_tokens=n_tokens, style=style, question=question, count_tokens=count_tokens)
            assert item.n_tokens == count_tokens(item.prompt)
            later = sum(t.n_generate for t in item.turns) + sum(count_tokens(t.question) for t in item.turns[1:])
            # No line of the standard library has 200 bytes, nor has one of the tasks' own.
            assert n_tokens - 200 < item.n_tokens + later <= n_tokens


def test_answers_are_in_the_document_and_not_in_the_question() -> None:
    for style, kind in ALL:
        with case(style=style, kind=kind):
            item = make(kind, style=style)
            for turn in item.turns:
                assert len(set(turn.answers)) == len(turn.answers)
                assert turn.n_generate >= n_words(b", ".join(turn.answers))
                for answer in turn.answers:
                    assert answer in item.context
                    assert answer not in turn.question


def test_equal_seeds_make_equal_items() -> None:
    for style, kind in ALL:
        with case(style=style, kind=kind):
            assert make(kind, style=style) == make(kind, style=style)
            assert make(kind, style=style, seed=2) != make(kind, style=style)
            assert make(kind, style=style, seed="a b") == make(kind, style=style, seed="a b")


def test_depth_moves_the_needle_and_changes_nothing_else() -> None:
    for style, kind in ALL:
        with case(style=style, kind=kind):
            items = [make(kind, style=style, depth=depth) for depth in (0.0, 0.5, 1.0)]
            assert len({item.turns for item in items}) == 1
            if kind == "words":
                assert [item.depth for item in items] == [None] * 3
                assert len({item.context for item in items}) == 1
                return
            assert [item.depth for item in items] == [0.0, 0.5, 1.0]
            for item in items:
                answers = [answer for turn in item.turns for answer in turn.answers]
                first = min(item.context.index(answer) for answer in answers) / len(item.context)
                assert first == pytest.approx(item.depth, abs=0.06)


def test_question_before_the_document_stands_there() -> None:
    for style, kind in ALL:
        with case(style=style, kind=kind):
            before, after = make(kind, style=style, question="before"), make(kind, style=style)
            assert [turn.answers for turn in before.turns] == [turn.answers for turn in after.turns]
            if style == "keys":
                assert before.context.startswith(b"".join(turn.question.lstrip() + b"\n" for turn in before.turns))
                assert [turn.question for turn in before.turns] == [turn.question for turn in after.turns]
            else:
                question, cue = after.turns[0].question.split(b"\nAnswer: ")
                assert before.context.startswith(question.lstrip() + b"\n")
                assert before.turns[0].question == b"\nAnswer: " + cue


def test_too_few_tokens_are_refused_with_the_least_number() -> None:
    for style, kind in ALL:
        with case(style=style, kind=kind):
            with pytest.raises(
                ValueError, match=f"5 tokens are too short for kind '{kind}' in style '{style}'"
            ) as error:
                make(kind, style=style, n_tokens=5)
            least = int(str(error.value).split()[-1])
            make(kind, style=style, n_tokens=least)
            with pytest.raises(ValueError, match="too short"):
                make(kind, style=style, n_tokens=least - 1)


# --- what a kind means


def _numbers(item: Item) -> dict[str, list[str]]:
    numbers = defaultdict(list)
    for subject, value in re.findall(r"^The special magic number for (\S+) is: (\d+)\.$", item.context.decode(), re.M):
        numbers[subject].append(value)
    return numbers


def test_numbers_of_names() -> None:
    for kind, n_names, n_asked, n_values in [
        ("single", 1, 1, 1),
        ("multi-key", 8, 1, 1),
        ("multi-value", 1, 1, 4),
        ("multi-query", 4, 4, 1),
    ]:
        with case(kind=kind, n_names=n_names, n_asked=n_asked, n_values=n_values):
            item = make(kind, depth=0.2)
            (turn,) = item.turns
            numbers = _numbers(item)
            asked = [subject for subject in numbers if subject.encode() in turn.question]
            assert len(numbers) == n_names
            assert len(asked) == n_asked
            assert {len(values) for values in numbers.values()} == {n_values}
            assert sorted(value.encode() for subject in asked for value in numbers[subject]) == sorted(turn.answers)


def _resolve(context: str) -> dict[str, str]:
    """Run the assignments in order."""
    values: dict[str, str] = {}
    for variable, value, source in re.findall(r"^VAR (\w+) = (?:(\d+)|VAR (\w+))$", context, re.M):
        assert variable not in values
        values[variable] = value or values[source]
    return values


def test_chains_of_variables_resolve_to_the_answers() -> None:
    for seed in range(5):
        with case(seed=seed):
            item = make("variables", depth=0.1, seed=seed)
            (turn,) = item.turns
            values = _resolve(item.context.decode())
            assert len(values) == 10
            assert set(Counter(values.values()).values()) == {5}
            question = re.search(rb"have the value (\d+),", turn.question)
            assert question is not None
            assert {x.encode() for x, value in values.items() if value.encode() == question[1]} == set(turn.answers)


def test_frequent_words_are_twice_as_frequent_as_others() -> None:
    for n_tokens in [100, 300, 1500, 20_000]:
        with case(n_tokens=n_tokens):
            item = make("words", n_tokens=n_tokens)
            ranks = Counter(item.context.split()).most_common()
            assert {word for word, _ in ranks[:5]} == set(item.turns[0].answers)
            assert ranks[4][1] >= 2 * ranks[5][1]
            assert b"5 words" in item.turns[0].question


def test_pairs_are_a_json_object() -> None:
    item = make("pairs", depth=0.25)
    pairs = json.loads(item.context)
    (turn,) = item.turns
    (key,) = (key for key in pairs if f'the key "{key}"' in turn.question.decode())
    assert turn.answers == (pairs[key].encode(),)
    assert list(pairs).index(key) == round(0.25 * (len(pairs) - 1))
    assert len(pairs) > 100


def test_keys_are_in_the_format_of_the_demo_model() -> None:
    for kind, n_keys, n_asked in [("single", 1, 1), ("multi-key", 8, 1), ("multi-query", 4, 4), ("pairs", 90, 1)]:
        with case(kind=kind, n_keys=n_keys, n_asked=n_asked):
            item = make(kind, style="keys", count_tokens=len, depth=0.0)
            assert item.context.endswith(b"\n")
            definitions = re.findall(rb"(?<=\n)k(\d\d)=(\d{4});\n", item.context)  # each after a line
            values = dict(definitions)
            assert len(definitions) == len(values)
            assert len(values) == n_keys
            assert len(item.turns) == n_asked
            for i, turn in enumerate(item.turns):
                question = re.fullmatch(rb"k(\d\d)\?", turn.question.removeprefix(b"\n"))
                assert question is not None
                assert turn.question.startswith(b"\n") == (i > 0)  # after the answer before it
                assert turn.answers == (values[question[1]] + b";",)
                assert turn.n_generate == 5


def test_first_digits_of_keys_are_all_as_likely() -> None:
    """So that a guess, always the same, is right once in nine times."""
    values = [make("pairs", style="keys", count_tokens=len, seed=seed).turns[0].answers[0] for seed in range(60)]
    assert set("123456789") == {value.decode()[0] for value in values}


# --- where and in what


def test_haystack_is_read_from_some_line_on_and_over_again() -> None:
    item = make("single", style="keys", haystack=HAYSTACK, count_tokens=len, n_tokens=30_000)
    lines = [line for line in item.context.splitlines(keepends=True) if not line.startswith(b"k")]
    all_lines = HAYSTACK.splitlines(keepends=True)
    start = all_lines.index(lines[0])
    assert lines == (all_lines * 4)[start : start + len(lines)]
    assert len(lines) > len(all_lines)


def test_line_ends_become_newlines() -> None:
    assert make_filler(b"a\r\nb\rc", _First())(4) == [b"a\n", b"b\n", b"c\n", b"a\n"]


class _First(Random):
    """Draws the first of everything."""

    def randrange(self, *args: Any) -> int:
        return 0


def test_needles_go_to_the_nearest_line_start() -> None:
    lines = [b"a\n", b"bb\n", b"ccc\n", b"d\n"]  # line starts 0, 2, 5, 9, 11
    needles = [(1.0, b"5"), (0.0, b"1"), (0.0, b"2"), (3.4 / 11, b"3"), (3.6 / 11, b"4")]
    assert hide(lines, needles) == b"12a\n3bb\n4ccc\nd\n5"


def test_spread_begins_at_the_depth_and_stays_in_order() -> None:
    assert spread(0.0, 4) == [0.0, 0.25, 0.5, 0.75]
    assert spread(0.5, 2) == [0.5, 0.75]
    assert spread(1.0, 3) == [1.0, 1.0, 1.0]


def test_names_are_distinct_and_no_word_is_part_of_another() -> None:
    words = [*ADJECTIVES, *COLOURS, *NOUNS]
    assert not [(a, b) for a, b in combinations(sorted(words, key=len), 2) if a in b]
    assert len({name(i) for i in range(N_NAMES)}) == N_NAMES


def test_bad_arguments_are_refused() -> None:
    for kind, changes, message in [
        ("needle", {}, r"kind must be one of 'single', .*, got 'needle'"),
        ("words", {"style": "keys"}, r"style 'keys' has the kinds single, multi-key, multi-query, pairs, not 'words'"),
        ("single", {"style": "french"}, r"style must be one of 'english', 'keys'"),
        ("single", {"depth": 1.5}, r"depth must be a finite number from 0 to 1"),
        ("single", {"n_tokens": 0}, r"n_tokens must be an integer of at least 1"),
        ("single", {"question": "during"}, r"question must be one of 'after', 'before'"),
        ("single", {"haystack": b" \n\n"}, r"haystack has no text"),
        ("single", {"haystack": "text"}, r"haystack must be bytes or None"),
    ]:
        with case(kind=kind, changes=changes, message=message), pytest.raises(ValueError, match=message):
            make(kind, **changes)


def test_kinds_are_those_of_the_styles() -> None:
    assert set(KINDS) == {"single", "multi-key", "multi-value", "multi-query", "variables", "words", "pairs"}
    assert set(KINDS_OF_STYLE["keys"]) == {"single", "multi-key", "multi-query", "pairs"}
