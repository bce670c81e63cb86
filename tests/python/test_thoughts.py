"""Thoughts: apart from answers in Python, in every command, and in the server."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from chats import THINKERS, dictate, open_chat, upstream_template, user, write_chat_model
from command_line import invoke, succeeded
from compare import case
from doors import told
from h2o_llama.sampling import Sampling
from servers import ServerOf


@pytest.mark.parametrize("name", THINKERS)
def test_thoughts_are_not_the_answer(tiny_model: Path, name: str) -> None:
    """They end at their budget, and where the model would end its text. Tokens of the answer are counted apart."""
    form = THINKERS[name]
    begin = form[: form.index("{}")]
    is_open, is_closed = name == "DeepSeek-R1", name in ("DeepSeek-R1", "Qwen3")  # by the prompt, and without thoughts
    cases: list[tuple[str, Any, tuple[str, str, str]]] = [
        (form.format("Hm, hm. " * 9, "Four."), {}, ("Four.", ("Hm, hm. " * 9).strip(), "stop")),
        (form.format("Hm", "Four."), {"max_tokens": 4 + form.count("\n\n") * 2}, ("Four", "Hm", "length")),
        (form.format("or", "Four."), {"stop": "r"}, ("Fou", "or", "stop")),
        (begin.strip() + "ää" * 99, {"think": 3, "max_tokens": 4}, ("ää", "ää", "length")),
        (begin + "Hm\0Four.", {"think": True}, ("Four.", "Hm", "stop")),
        (("" if is_closed else begin) + "Four.", {"think": False}, ("Four.", "", "stop")),
        ("Four. <think>", {"think": False}, ("Four. <think>", "", "stop")),
    ]
    if is_open:
        cases.append(("Hm\0" + "4", {"grammar": 'root ::= "4"'}, ("4", "Hm", "stop")))
    with open_chat(tiny_model, upstream_template(name)) as llm:
        for (text, options, expected), stream in itertools.product(cases, (False, True)):
            asked: Any = {"messages": [user("2 + 2?")], "stream": stream, **options}
            with case(text=text, options=options, stream=stream):
                found: Any = llm.create_chat_completion(**asked, logits_processor=dictate(text))
                choices = [chunk["choices"][0] for chunk in (found if stream else [found])]
                parts = [choice["delta" if stream else "message"] for choice in choices]
                texts = ["".join(part.get(kind) or "" for part in parts) for kind in ("content", "reasoning_content")]
                assert (*(text.strip() for text in texts), choices[-1]["finish_reason"]) == expected
        asked = {"max_tokens": 9, "think": 3, "logits_processor": dictate(begin.strip() + "Hm," + "4" * 99)}
        assert llm.ask("2 + 2", "Which?", **asked) == "4" * 9


@pytest.mark.parametrize("door", ["run", "chat", "ask", "batch"])
def test_commands_tell_thoughts_from_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str) -> None:
    text = THINKERS["Qwen3"].format("Hm, hm.", "Four.")
    monkeypatch.setattr(Sampling, "processors", property(lambda sampling: [dictate(text)]))
    model = write_chat_model(tmp_path / "model.gguf", upstream_template("Qwen3"))
    for path in ("q.txt", "documents/d.txt"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("2 + 2?")
    files = ["--documents", tmp_path / "documents", "--questions", tmp_path / "q.txt", "--out", tmp_path / "out"]
    more: dict[str, list[Any]] = {
        "run": ["-f", tmp_path / "q.txt", "-p", "What?"],
        "ask": [tmp_path / "q.txt", "What?"],
        "batch": files,
    }
    given = [door, model, *more.get(door, []), "--threads", "1", "--think", "99", "-n", "5"]
    result = succeeded(invoke(*given, stdin="2 + 2?\n" if door == "chat" else None))
    if door == "batch":
        row = json.loads((tmp_path / "out").read_text())
        assert (row["answer"], row["reasoning"].strip(), row["finish_reason"]) == ("Fou", "Hm, hm.", "length")
    else:
        assert result.stdout.strip() == "Fou"
        assert "Hm, hm." in result.stderr
        assert "cut off by --max-tokens" in result.stderr
    assert "--think" in invoke(*given, "--think", "yes").stderr


@pytest.mark.slow
def test_a_server_counts_thoughts_apart(tmp_path: Path, server_of: ServerOf) -> None:
    server = server_of(write_chat_model(tmp_path / "model.gguf", upstream_template("Qwen3")), "--threads", "1")
    for n, answer in ((9, "Four."), (200, "Four."), (9, None)):  # None: the text ends among thoughts
        thoughts = "Hm, hm. " * n
        text = THINKERS["Qwen3"].format(thoughts, answer) if answer else f"<think>\n{thoughts}"
        asked: Any = {"messages": [user("2 + 2?")], "max_tokens": 15, "grammar": f"root ::= {json.dumps(text)}"}
        found = told(server.request("POST", "/v1/chat/completions", asked)[1])
        assert (found["text"], found["message"]["reasoning_content"].strip()) == (answer or "", thoughts.strip())
        status, refused = server.request("POST", "/v1/chat/completions", asked | {"reasoning_budget_tokens": 3})
        assert (status, "'grammar' says" in refused["error"]["message"]) == (400, True), refused
