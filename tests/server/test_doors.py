"""The same completions through every door: `Llama`, `h2o-llama serve`, `run`, `chat`, `ask` and `batch`."""

import json
import random
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chats import ADD, dictate, user, write_model_of_calls
from command_line import invoke, succeeded
from compare import case
from documents import READ, UNREADABLE
from doors import (
    AGENTS,
    ANSWERED,
    MESSAGES,
    OF_AGENTS,
    PICKY,
    REFUSED,
    Fields,
    Refused,
    ask_llama,
    ask_server,
    tool_of,
)
from h2o_llama import H2OConfig, Llama, demo_model_path, document_messages, read_document
from h2o_llama.sequence._state import State
from inputs import slowly
from servers import TEXT, Server, ServerOf, leave
from spies import record_calls

Door = Callable[[Fields], Fields | Refused | None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("doors") / "model.gguf"
    return write_model_of_calls(demo_model_path(), path, PICKY)


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[Llama]:
    with Llama(model, n_ctx=8192, n_threads=1) as llm:
        yield llm


@pytest.fixture
def server(model: Path, server_of: ServerOf) -> Server:
    return server_of(model, "--threads", "1", "--parallel", "2", "--n-ctx", "8192")


@pytest.fixture(params=["Llama", pytest.param("serve", marks=pytest.mark.slow)])
def doors(request: pytest.FixtureRequest, model: Path, llm: Llama) -> tuple[str, list[Door]]:
    """The name of a door; its answers at once, and as a stream."""
    if request.param == "Llama":
        return request.param, [partial(ask_llama, llm), partial(ask_llama, llm, stream=True)]
    server = request.getfixturevalue("server")
    return request.param, [partial(ask_server, server), partial(ask_server, server, stream=True)]


def test_all_answer_alike(doors: tuple[str, list[Door]], llm: Llama) -> None:
    n_answers = 0
    for fields in ANSWERED:
        asked = fields if "prompt" in fields else {**MESSAGES, **fields}
        with case(fields=fields):
            expected = ask_llama(llm, asked)
            assert isinstance(expected, dict), expected
            for door in doors[1][doors[0] == "Llama" :]:  # what is expected is that door's
                found = door(asked)
                if found is not None:
                    assert isinstance(found, dict), found
                    assert found == {name: expected[name] for name in found}
                    n_answers += 1
    assert n_answers > 5


def test_all_refuse_the_same(doors: tuple[str, list[Door]], capfd: pytest.CaptureFixture[str]) -> None:
    """With the reason; this process prints nothing."""
    name, (ask, *_) = doors
    capfd.readouterr()
    n_refused = 0
    for fields, by_server, by_llama in REFUSED:
        said = {"serve": by_server and re.escape(by_server), "Llama": by_llama}[name]
        if said is not None:
            with case(fields=fields):
                found = ask(fields if "prompt" in fields else {**MESSAGES, **fields})
                assert isinstance(found, Refused)
                assert re.search(said, found)
                n_refused += 1
    assert n_refused > 5
    assert capfd.readouterr() == ("", "")


def as_asked_of(path: str, tools: list[Any], choice: str) -> Fields:
    """A request to a door of the server, in its own form."""
    functions = [tool["function"] for tool in tools]
    if path == "/v1/messages":
        given = [{"name": f["name"], "input_schema": f["parameters"]} for f in functions]
        return {**MESSAGES, "max_tokens": 2, "tools": given, "tool_choice": {"type": choice.replace("required", "any")}}
    asked = {"tools": tools, "tool_choice": choice, "max_tokens": 2, **MESSAGES}
    if path == "/v1/responses":
        asked |= {"tools": [{"type": "function", **f} for f in functions], "input": "Hi", "max_output_tokens": 2}
        del asked["messages"], asked["max_tokens"]
    return asked


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_tools_are_taken_as_agents_write_them(path: str, server: Server) -> None:
    """What their grammar does not keep is said, by its keyword and place; a schema of the answer is still refused."""
    half = len(AGENTS) // 2
    for tools in (AGENTS[:half], AGENTS[half:]):
        for choice in ("auto", "required"):
            answer = server.post(path, as_asked_of(path, tools, choice))
            said = "\n".join(answer.get("warnings", []))
            names = set(re.findall(r"tool (t\d+): \"\w+\" of #/properties/x", said))
            kept = {tool["function"]["name"] for tool in AGENTS[: len(OF_AGENTS)] + AGENTS[-1:]}
            assert names == {tool["function"]["name"] for tool in tools} - kept, said
    assert "left out" in json.dumps(server.events(path, as_asked_of(path, AGENTS[half:], "auto"))[-2:])


@pytest.mark.slow
def test_tools_are_taken_by_python(llm: Llama) -> None:
    for choice in ("auto", "required"):
        for tools in (AGENTS[: len(AGENTS) // 2], AGENTS[len(AGENTS) // 2 :]):
            llm.create_chat_completion([user("Hi")], tools=tools, tool_choice=choice, max_tokens=2)


def test_a_call_that_does_not_fit_its_schema_is_told(llm: Llama) -> None:
    """Where a grammar could not keep the schema; and a call that max_tokens cuts off is none."""
    tool = tool_of(0, {"type": "integer", "multipleOf": 5})
    asked: Any = {"messages": [user("Hi")], "tools": [tool], "tool_choice": "required"}
    said = '<tool_call>\n{"name": "t0", "arguments": {"x": 7}}\n</tool_call>'
    for n in (len(said), len(said) - 20):
        answer = llm.create_chat_completion(**asked, max_tokens=n, logits_processor=dictate(said, None))
        left_out, *rest = answer["warnings"]
        assert '"multipleOf" of #/properties/x' in left_out
        message = answer["choices"][0]["message"]
        if n == len(said):
            assert rest == ["a call of t0: $.x: 7 is not a multiple of 5"]
        else:
            assert (message["content"], message.get("tool_calls"), rest) == (said[:n], None, [])


def message(content: Any, **fields: Any) -> Fields:
    """A request of Anthropic's, of which little is answered."""
    return {"messages": [user(content)], "max_tokens": 3, "temperature": 0, **fields}


def in_base64(content: bytes) -> Fields:
    """A document as Anthropic's clients send it."""
    return {"type": "document", "source": {"type": "base64", "data": b64encode(content).decode()}}


JSON_FORMAT = {"type": "json_schema", "name": "a", "schema": {"type": "boolean"}}


@pytest.mark.slow
def test_anthropics_documents_are_read(server: Server) -> None:
    def n_tokens(*blocks: Any) -> int:
        n: int = server.post("/v1/messages/count_tokens", message(list(blocks)))["input_tokens"]
        return n

    question, text = {"type": "text", "text": "Who?"}, {"type": "text", "text": "All about ducks."}
    for block in (
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text["text"]}},
        {"type": "document", "source": {"type": "content", "content": [text]}, "cache_control": {"type": "ephemeral"}},
        {"type": "document", "title": "All about", "source": {"type": "content", "content": "ducks."}},
        {"type": "search_result", "source": "", "title": "", "content": [text]},
        in_base64(text["text"].encode()),
    ):
        with case(block=block):
            assert n_tokens(block, question) - n_tokens(text, question) == ("title" in block and block["title"] != "")
            result = {"type": "tool_result", "tool_use_id": "1", "content": [block]}
            call = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "a", "input": {}}]}
            told = {"messages": [user("a"), call, user([result])], "max_tokens": 1}
            empty = json.loads(json.dumps(told).replace(json.dumps([block]), "[]"))
            both = [server.post("/v1/messages/count_tokens", asked)["input_tokens"] for asked in (told, empty)]
            assert both[0] - both[1] >= len("All about ducks.")
    content, pages = READ["a.pdf"]
    assert n_tokens(in_base64(content), question) == n_tokens({"type": "text", "text": pages}, question)
    for name, (content, reason) in UNREADABLE.items():
        with case(name=name):
            status, answer = server.request("POST", "/v1/messages", message([in_base64(content), question]))
            assert (status, reason in answer["error"]["message"]) == (400, True)
    for kind, source in (("document", {"type": "url", "url": "a"}), ("document", {"type": "file"}), ("video", {})):
        status, answer = server.request("POST", "/v1/messages", message([{"type": kind, "source": source}, question]))
        assert (status, answer["type"], answer["error"]["type"]) == (400, "error", "invalid_request_error")
        assert f'"{kind}"' in answer["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_openais_files_are_read(path: str, server: Server) -> None:
    is_chat = "chat" in path
    named, kind = ("file", "text") if is_chat else ("input_file", "input_text")

    def ask(*parts: Fields) -> tuple[int, Any]:
        asked = [user([*parts, {"type": kind, "text": "Who?"}])]
        return server.request("POST", path, {"messages": asked, "max_tokens": 1} if is_chat else {"input": asked})

    def file(content: bytes) -> Fields:
        about = {"filename": "a.pdf", "file_data": f"data:a/b;base64,{b64encode(content).decode()}"}
        return {"type": named, **({"file": about} if is_chat else about)}

    content, pages = READ["a.pdf"]
    found, expected = (ask(part)[1]["usage"] for part in (file(content), {"type": kind, "text": pages}))
    count = "prompt_tokens" if is_chat else "input_tokens"
    assert found[count] == expected[count] > len(pages)
    for part, reason in (
        (file(UNREADABLE["scan.pdf"][0]), UNREADABLE["scan.pdf"][1]),
        (file(b""), "is empty"),
        ({"type": named, "file_id": "a"}, "not read without"),
    ):
        status, answer = ask(part)
        assert (status, reason in answer["error"]["message"]) == (400, True), answer


@pytest.mark.slow
def test_newer_doors_say_and_keep_what_their_clients_know(server: Server) -> None:
    """Anthropic's Messages, OpenAI's Responses: formats, the reason of the end, errors; also of streams."""
    asked = message("Hi", output_config={"format": JSON_FORMAT}, max_tokens=40)
    assert json.loads(server.post("/v1/messages", asked)["content"][0]["text"]) in (True, False)
    response = {"input": "Hi", "temperature": 0, "max_output_tokens": 40}
    (item,) = server.post("/v1/responses", {**response, "text": {"format": JSON_FORMAT}})["output"]
    assert json.loads(item["content"][0]["text"]) in (True, False)

    said = server.post("/v1/messages", message("Hi"))["content"][0]["text"]
    stop = message("Hi", stop_sequences=[said[1]])
    assert server.post("/v1/messages", message("Hi"))["stop_reason"] == "max_tokens"
    ends = [server.post("/v1/messages", stop), server.events("/v1/messages", stop)[-2]["delta"]]
    assert [(end["stop_reason"], end["stop_sequence"]) for end in ends] == [("stop_sequence", said[1])] * 2

    short = {**response, "max_output_tokens": 3}
    ends = [server.post("/v1/responses", short), server.events("/v1/responses", short)[-1]["response"]]
    for end in ends:
        assert (end["status"], end["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "a"}]}
    easy = [user("Hi"), thought, {"role": "assistant", "content": "Ho"}, user("Hi")]
    server.post("/v1/responses", {**short, "input": easy})

    long, words = "a" * 9000, "prompt is too long: 90"
    status, answer = server.request("POST", "/v1/messages", message(long))
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert answer["error"]["message"].startswith(words)
    status, answer = server.request("POST", "/v1/responses", {**response, "input": long})
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "context_length_exceeded", None)


@pytest.mark.slow
def test_small_things_that_a_client_asks(server: Server) -> None:
    assert server.get("/v1/models/model")["id"] == server.get("/v1/models")["data"][0]["id"] == "model"
    for method, path, words in (
        ("GET", "/v1/models/other", "there is no model other"),
        ("GET", "/nothing", "File Not Found"),
    ):
        status, answer = server.request(method, path)
        assert (status, words in answer["error"]["message"]) == (404, True), answer
    for stop in ("", ["", "a"], [5]):
        assert server.request("POST", "/completion", {"prompt": "a", "stop": stop})[0] == 400
    several: Any = {"n": 2, "max_tokens": 3, "stream_options": {"include_usage": True}}
    for path, given in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 1}),
        ("/v1/chat/completions", MESSAGES),
    ):
        asked = {**several, **given}
        usage = server.post(path, {**asked, "stream_options": None})["usage"]
        told = [event["usage"] for event in server.events(path, asked) if event.get("usage") and not event["choices"]]
        found = told if "chat" in path else [server.events(path, asked)[-1]["usage"]]
        for counts in (usage, *found):
            assert (counts["completion_tokens"], counts["total_tokens"]) == (6, counts["prompt_tokens"] + 6)
        assert len(found) == 1
    begun = server.events(
        "/v1/chat/completions", {**MESSAGES, "tools": [ADD], "tool_choice": "required", "max_tokens": 1}
    )
    assert ["role" in event["choices"][0]["delta"] for event in begun].count(True) == 1
    salted = [message(TEXT[1000:1400], cache_salt=salt) for salt in "xyx"]
    known = [server.post("/v1/messages", asked)["usage"]["cache_read_input_tokens"] > 300 for asked in salted]
    assert known == [False, False, True]
    text = TEXT[:500]
    assert server.complete(text, n_predict=0)["content"] == ""
    assert server.complete(text, n_predict=1)["timings"]["cache_n"] > 400


@pytest.mark.slow
def test_a_line_stays_open_while_an_answer_is_waited_for(server: Server) -> None:
    """Headers and a sign of life come while other requests have all slots; then the answer, or its error."""
    for_ever = {"prompt": "a", "n_predict": 10_000_000, "ignore_eos": True, "stream": True}
    blocking = [leave(server, "/completion", for_ever) for _ in range(2)]
    for connection in blocking:
        connection.getresponse()
    asked = {**message("Hi"), "sse_ping_interval": 1}
    signs = {"/v1/messages": b":", "/v1/chat/completions": b":", "/v1/responses": b" "}
    waiting = {}
    for path, sign in signs.items():
        body = {**asked, "input": "a" * 9000, "stream": sign == b":"}
        connection = leave(server, path, body)
        waiting[path] = connection, connection.getresponse()
        with case(path=path):
            assert (waiting[path][1].status, waiting[path][1].read(1)) == (200, sign)
    for connection in blocking:
        connection.close()
    for path, (connection, response) in waiting.items():
        rest = response.read().decode()
        connection.close()
        with case(path=path, rest=rest):
            if path == "/v1/responses":
                assert json.loads(rest)["error"]["code"] == "context_length_exceeded"
            else:
                assert ("message_stop" if path == "/v1/messages" else "[DONE]") in rest


# --- one text behind all doors


QUESTIONS = ["What is it?", "Who wrote it?"]
FAST = ["--threads", "1", "-n", "3", "--h2o-set", "chunk_size=64"]


def ask_python(model: Path, file: Path, form: str) -> None:
    """By `ask`, or as a program with OpenAI's client does."""
    with Llama(model, h2o=H2OConfig(chunk_size=64), n_threads=1, n_ctx=2048, library=True) as llm:
        if form == "ask":
            llm.ask(file, QUESTIONS, max_tokens=3)
        else:
            llm.create_chat_completion(document_messages(read_document(file), QUESTIONS[0]), max_tokens=3)


def ask_batch(model: Path, file: Path) -> None:
    (file.parent.parent / "questions").write_text("\n".join(QUESTIONS))
    files = ["--questions", file.parent.parent / "questions", "--out", file.parent.parent / "out"]
    succeeded(invoke("batch", model, "--documents", file.parent, *files, *FAST))


ASK: dict[str, Callable[[Path, Path], object]] = {
    "run": lambda model, file: succeeded(invoke("run", model, "-f", file, "-p", QUESTIONS[0], *FAST)),
    "chat": lambda model, file: succeeded(invoke("chat", model, "-f", file, *FAST, stdin="\n".join(QUESTIONS))),
    "ask": lambda model, file: succeeded(invoke("ask", model, file, *QUESTIONS, *FAST)),
    "read": lambda model, file: succeeded(invoke("read", file, "--model", model, *FAST[:2], *FAST[4:])),
    "batch": ask_batch,
    "Llama.ask": partial(ask_python, form="ask"),
    "messages": partial(ask_python, form="messages"),
}
"""The doors to questions about a file."""


@pytest.mark.parametrize("first", ["ask", "batch", "messages", *slowly("run", "chat", "read", "Llama.ask")])
def test_one_file_is_read_once(first: str, chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks about it first, and in whatever order the others follow."""
    file = tmp_path / "texts" / "a.html"
    file.parent.mkdir()
    file.write_bytes(b"<html><p>" + b"All about ducks. " * 70)
    reads = record_calls(monkeypatch, State, "eval")
    others = sorted(ASK.keys() - {first})
    random.Random(first).shuffle(others)
    for door in (first, *others):
        with case(doors=[first, *others], door=door):
            ASK[door](chat_model, file)
            n_long = sum(len(call["prompt"]) > 200 for call in reads if not call["decode"])
            assert n_long == 1


def test_a_reading_that_is_interrupted_keeps_whole_chunks(chat_model: Path, tmp_path: Path) -> None:
    tokens = [97] * 1000

    def stop(n_done: int, n: int) -> None:
        if n_done > 640:
            raise KeyboardInterrupt

    for n_known in (0, 640):
        with Llama(chat_model, h2o=H2OConfig(chunk_size=64), n_threads=1, n_ctx=1024, library=tmp_path) as llm:
            with pytest.raises(KeyboardInterrupt) if n_known == 0 else nullcontext():
                llm.eval(tokens, progress=stop if n_known == 0 else None)
            assert llm.n_cached == n_known


def test_where_texts_are_kept_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H2O_LLAMA_LIBRARY", str(tmp_path / "library"))
    first, second = (invoke("run", "demo", "-p", "x", "-n", "1", "--threads", "1").stderr for _ in range(2))
    assert f"Texts are kept in {tmp_path}/library once read" in first
    assert "Texts are kept" not in second
