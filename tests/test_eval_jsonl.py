"""Questions from JSONL files, and the metrics of their answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compare import case
from h2o_llama import H2OConfig, Llama, demo_model_path
from h2o_llama.demo.document import standard_library_text
from h2o_llama.eval import metrics
from h2o_llama.eval.jsonl import Record, cut_middle, measure_jsonl, read_jsonl
from h2o_llama.eval.metrics import METRICS, check_metrics, contains, contains_all, exact_match, normalised

N_CTX = 700
FILLER = standard_library_text(400).decode() + "\n"
# The demo model's format, in the fields of LongBench.
LINES = [
    {"context": f"{FILLER}k{key}={value};\n", "input": f"k{key}?", "answers": [str(value)], "length": 1, "_id": "x"}
    for key, value in ((17, 4829), (42, 5308), (63, 1958))
]
TEMPLATE = "{context}{input}"


@pytest.fixture(scope="module")
def llms() -> Iterator[dict[str, Llama]]:
    options: dict[str, Any] = {"n_ctx": N_CTX, "n_ubatch": 128, "n_threads": 1}
    with (
        Llama(demo_model_path(), h2o=None, **options) as dense,
        Llama(demo_model_path(), h2o=H2OConfig(16, 16), **options) as h2o,
    ):
        yield {"dense": dense, "h2o": h2o}


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


# --- the file


def test_longbench_and_ruler_are_read_as_published(tmp_path: Path) -> None:
    longbench = {
        "input": "Who?",
        "context": "A text.",
        "answers": ["A", "B"],
        "length": 2,
        "dataset": "qasper",
        "language": "en",
        "all_classes": None,
        "_id": "0",
    }
    ruler = {"index": 0, "input": "Text. What is it?", "outputs": ["1", "2"], "length": 9, "answer_prefix": " It is"}
    own = {"context": "A text.", "question": "Who?", "answers": "A"}
    summary = {"context": "A text.", "input": "", "answers": ["A"]}
    assert read_jsonl(write(tmp_path, longbench, "", ruler, own, "  ", summary)) == [
        Record("A text.", "Who?", ("A", "B")),
        Record("", "Text. What is it?", ("1", "2"), " It is"),
        Record("A text.", "Who?", ("A",)),
        Record("A text.", "", ("A",)),
    ]


def test_limit_counts_lines_and_does_not_read_on(tmp_path: Path) -> None:
    assert len(read_jsonl(write(tmp_path, "", LINES[0], LINES[1], "no JSON"), limit=2)) == 2


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    for line, message in [
        ("{", "not JSON"),
        ("[1]", "must be an object, got list"),
        ({"answers": ["a"]}, "needs a 'context', or a 'question'"),
        ({"context": "", "input": "", "answers": ["a"]}, "needs a 'context', or a 'question'"),
        ({"context": 3, "answers": ["a"]}, "'context' must be a text, got int"),
        ({"context": "c", "question": "q"}, "needs 'answers'"),
        ({"context": "c", "question": "q", "answers": []}, "needs 'answers'"),
        ({"context": "c", "question": "q", "outputs": [""]}, "needs 'answers'"),
        ({"context": "c", "question": "q", "answers": [1]}, "needs 'answers'"),
    ]:
        path = write(tmp_path, LINES[0], "", line)
        with case(line=line), pytest.raises(ValueError, match=f"questions.jsonl, line 3: {message}"):
            read_jsonl(path)


def test_a_line_that_is_no_utf_8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"context": "\xe9"}\n')
    with pytest.raises(ValueError, match=r"latin.jsonl, line 1: not JSON in UTF-8"):
        read_jsonl(path)


def test_no_lines_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no lines"):
        read_jsonl(write(tmp_path, ""))
    with pytest.raises(FileNotFoundError):
        read_jsonl(tmp_path / "missing.jsonl")


@pytest.mark.parametrize(
    ("record", "template", "prompt"),
    [
        (Record("Text {x}.", "Who?", ("A",)), None, "Text {x}.\n\nQuestion: Who?\nAnswer:"),
        (Record("", "Text. Who?", ("A",), " It is"), None, "Text. Who? It is"),
        (Record("Text.", "Who?", ("A",)), "{{Q}} {input}|{question}|{context}", "{Q} Who?|Who?|Text."),
    ],
)
def test_prompts(record: Record, template: str | None, prompt: str) -> None:
    assert record.prompt(template) == prompt


# --- measuring


def test_every_model_reads_every_line(tmp_path: Path, llms: dict[str, Llama]) -> None:
    calls: list[tuple[int, int]] = []
    scores = measure_jsonl(
        llms,
        write(tmp_path, *LINES),
        metrics=["exact-match", "contains-all"],
        max_tokens=4,
        dense_tail=16,
        template=TEMPLATE,
        progress=lambda n_done, n: calls.append((n_done, n)),
    )
    assert scores == {name: {"exact-match": 1.0, "contains-all": 1.0, "n": 3, "n_cut": 0} for name in llms}
    assert calls == [(i, 6) for i in range(1, 7)]


def test_long_prompts_lose_their_middle(tmp_path: Path, llms: dict[str, Llama]) -> None:
    needle, question = "k17=4829;\n", "k17?"
    at_end = {"context": FILLER * 3 + needle, "input": question, "answers": ["4829"]}
    in_the_middle = {"context": FILLER * 2 + needle + FILLER * 2, "input": question, "answers": ["4829"]}
    scores = measure_jsonl(
        {"dense": llms["dense"]},
        write(tmp_path, at_end, LINES[0], in_the_middle),
        metrics=["exact-match"],
        max_tokens=4,
        template=TEMPLATE,
    )
    assert scores["dense"]["n_cut"] == 2
    assert scores["dense"]["exact-match"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(("most", "kept"), [(6, [0, 1, 2, 3, 4, 5]), (5, [0, 1, 2, 4, 5]), (4, [0, 1, 4, 5])])
def test_cutting_keeps_both_ends(most: int, kept: list[int]) -> None:
    assert cut_middle([0, 1, 2, 3, 4, 5], most) == kept


def test_bad_arguments_are_refused(tmp_path: Path, llms: dict[str, Llama]) -> None:
    for changes, message in [
        ({"metrics": ["bleu"]}, "metric must be one of 'exact-match', 'contains', 'contains-all', 'f1', 'rouge-l'"),
        ({"metrics": []}, "metrics must be one or more of exact-match"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"max_tokens": N_CTX - 1}, "no room for a prompt"),
        ({"dense_tail": -1}, "dense_tail must be"),
        ({"limit": 0}, "limit must be"),
        ({"template": "{contxt}"}, "template must be a text with {context}"),
        ({"template": "{"}, "template must be a text with {context}"),
        ({"template": 3}, "template must be a text with {context}"),
    ]:
        with case(changes=changes, message=message):
            arguments: dict[str, Any] = {"metrics": ["contains"]} | changes
            with pytest.raises(ValueError, match=message):
                measure_jsonl(llms, write(tmp_path, *LINES), **arguments)


def test_no_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="llms must be at least one model"):
        measure_jsonl({}, write(tmp_path, *LINES), metrics=["contains"])


# --- metrics


def test_normalised_text_has_words_only() -> None:
    assert normalised("  The  1,234\tCats'\n mats. ") == "the 1234 cats mats"


@pytest.mark.parametrize(
    ("text", "answers", "exact", "any_in", "all_in"),
    [
        ("Paris.", ["paris"], 1, 1, 1),
        ("In Paris, of course", ["Lyon", "Paris"], 0, 1, 0.5),
        ("Lyon and PARIS", ["Lyon", "Paris"], 0, 1, 1),
        ("", ["Paris"], 0, 0, 0),
    ],
)
def test_matches(text: str, answers: list[str], exact: float, any_in: float, all_in: float) -> None:
    assert (exact_match(text, answers), contains(text, answers), contains_all(text, answers)) == (exact, any_in, all_in)


def test_f1_of_words() -> None:
    """The articles do not count: 2 of 3 words of the text are among the 4 of the best answer."""
    pytest.importorskip("lm_eval")
    assert METRICS["f1"]("The red cat, sat!", ["a dog", "a red cat was here"]) == pytest.approx(2 * 2 / (3 + 4))
    assert METRICS["f1"]("dog", ["cat"]) == 0


def test_rouge_l_is_the_longest_common_subsequence() -> None:
    """ "red sat here" of 4 and 5 words."""
    pytest.importorskip("rouge_score")
    assert METRICS["rouge-l"]("Red cat sat here", ["dog", "the red dog sat here"]) == pytest.approx(2 * 3 / (4 + 5))


@pytest.mark.parametrize(
    ("metric", "module"), [("f1", "lm_eval.tasks.qasper.metrics"), ("rouge-l", "rouge_score.rouge_scorer")]
)
def test_a_missing_library_is_named_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch, metric: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    metrics._rouge_scorer.cache_clear()
    with pytest.raises(ImportError, match=rf'"{metric}" needs pip install "h2o-llama\[eval\]"'):
        check_metrics("owner", [metric])
