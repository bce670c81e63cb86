"""Each program of examples/ runs unchanged, and does what its docstring says."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h2o_llama import H2OConfig, Library, Llama, demo_model_path
from h2o_llama._demo.document import standard_library_text

EXAMPLES = Path(__file__).parents[2] / "examples"
# what the demo model has learnt to find again
TEXT = standard_library_text(6000).decode()
DOCUMENT = TEXT[:3000] + "\nk17=4829;\nk23=1357;\n" + TEXT[3000:]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("documents") / "document.txt"
    path.write_text(DOCUMENT, encoding="utf-8")
    return path


def run(name: str, *arguments: str | Path, stdin: str = "") -> str:
    """What the program prints."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py", *arguments],
        input=stdin,
        capture_output=True,
        env=environment,
        text=True,
        errors="replace",
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_ask_a_document(document: Path, chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H2O_LLAMA_LIBRARY", str(tmp_path))
    with Llama(chat_model) as llm:
        answers = llm.ask(document, ["k17?", "k23?"], max_tokens=64)
    assert run("ask_a_document", document, chat_model, "k17?", "k23?") == "".join(f"{answer}\n" for answer in answers)
    assert [text.name for text in Library().texts()]


@pytest.mark.slow
def test_many_questions(document: Path) -> None:
    printed = run("many_questions", document, demo_model_path(), "k23?", "k17?")
    assert printed == "k23? 1357;\nk17? 4829;\n"


@pytest.mark.slow
def test_chat_about_a_document(tmp_path: Path, chat_model: Path) -> None:
    n = 5500  # the first answer, of random bytes, closes no chunk
    document = tmp_path / "document.txt"
    document.write_text(DOCUMENT[:n])
    printed = run("chat_about_a_document", document, chat_model, stdin="What is it?\nAnd why?\n")
    (first, n_first), (second, n_second) = re.findall(r"^\[(\d+) of (\d+) tokens were known\]$", printed, re.MULTILINE)
    assert int(first) == 0
    assert n < int(n_first) < int(n_second)
    assert int(second) >= n


@pytest.mark.slow
def test_look_inside(document: Path) -> None:
    printed = run("look_inside", document, demo_model_path())
    n_tokens = len(document.read_bytes())
    n_chunks = -(-n_tokens // 256)
    assert printed.startswith(f"{n_tokens} tokens in {n_chunks} chunks, 68 positions in a memory set\n")
    heads = re.findall(r"^layer 2, head \d: (.*)$", printed, re.MULTILINE)
    assert [len(re.findall(r"""\d+:['"]""", text)) for text in heads] == [10, 10]
    shared = re.search(r"of a memory set of head 0, (\d+)% was in the one before it\n$", printed)
    assert shared
    assert 4 / 68 < int(shared[1]) / 100 < 1  # the sinks at least, and not the local window


@pytest.mark.slow
def test_score_by_keys(document: Path) -> None:
    """Its scorer is KeyDiff: less the cosine of a key and the mean of all directions."""
    assert len({*re.findall(r"KL ([\d.]+)\n", run("score_by_keys", document, demo_model_path()))}) == 3
    program, functions = (EXAMPLES / "score_by_keys.py").read_text(), {"np": np}
    exec(program[program.index("def keydiff") : program.index("S = ")], functions)
    keys = np.random.default_rng(1).normal(size=(2, 5, 4))
    scorer: Any = functions["keydiff"]
    for head, scores in zip(keys, scorer(0, keys, keys, None), strict=True):
        unit = [key / np.sqrt(key @ key) for key in head]
        mean = sum(unit)
        np.testing.assert_allclose(scores, [-(key @ mean) / np.sqrt(mean @ mean) for key in unit])


def test_batch_of_documents(tmp_path: Path, chat_model: Path) -> None:
    for name in ("a.txt", "b.md"):
        (tmp_path / name).write_text(f"The text of {name}. " * 50)
    printed = run("batch_of_documents", tmp_path, chat_model, "What?", "Why?")
    starts = [line.split("\t")[:2] for line in printed.split("\n") if line.startswith(("a.txt\t", "b.md\t"))]
    assert starts == [["a.txt", "What?"], ["a.txt", "Why?"], ["b.md", "What?"], ["b.md", "Why?"]]


@pytest.mark.slow
def test_serve_and_ask_with_the_openai_client(document: Path, chat_model: Path) -> None:
    pytest.importorskip("openai")
    printed = run("serve_and_ask", document, "What is it?", chat_model)
    (n_first, known), (n_second, n_known) = re.findall(r"^tokens read: (\d+) known: (\d+)$", printed, re.MULTILINE)
    assert int(known) == 0
    assert int(n_first) > len(DOCUMENT)
    assert int(n_known) > len(DOCUMENT) - H2OConfig().tile
    assert int(n_second) < 200
