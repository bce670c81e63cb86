"""`h2o-llama serve`: what clients get, against the Python interface with the same settings."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fetch
from bad_requests import BAD_REQUESTS, TOO_LONG, named
from chats import ADD, ANSWERED, CHATML, PICKY, REFUSED, ROOT, TOOLS, open_chat, user, write_model_of_calls
from command_line import assert_one_line_error, assert_wrong_usage, invoke
from compare import case
from gguf_mutation import STRING, GGUFFile, pack_string
from h2o_llama import H2OConfig, H2OError, Llama, demo_model_path
from h2o_llama._cli import serve as serve_command
from h2o_llama._demo.document import standard_library_text
from h2o_llama.inspect._extra_keys import last_tiles
from inputs import EXTERNAL_MODEL, ModelByName, random_tokens
from servers import Server, serving

pytestmark = pytest.mark.slow

S = 64
TILE = H2OConfig().tile
TEXT = standard_library_text(6000).decode()
DOCUMENT, OTHER = TEXT[:900], TEXT[2000:2700]
"""Some chunks each, and no multiple of S."""

SETTINGS: dict[str, tuple[list[str], dict[str, Any] | None]] = {
    "keep": ([], {}),
    "evict": (["--evict"], {"evict": True}),
    "cold": (["--evict", "--cold-store", "memory"], {"evict": True, "cold_store": "memory"}),
    "sum": (
        ["--scorer", "sum", "--dense-layers", "0", "--retrieval", "ngrams"],
        {"scorer": "sum", "dense_layers": 1, "retrieval": "ngrams"},
    ),
    "dense": (["--h2o", "off"], None),
}
ALLOWED = {"evict": "https://a.example, http://b.example:81/", "cold": "localhost", "sum": "*"}
"""Each server's origins: --cors-origins."""


def open_llama(settings: dict[str, Any] | None, record: bool = False) -> Llama:
    """The same model and settings without a server."""
    h2o = None if settings is None else H2OConfig(chunk_size=S, **settings)
    return Llama(demo_model_path(), n_ctx=2048, n_batch=S, n_threads=1, h2o=h2o, record=record)


def answer_of(settings: dict[str, Any] | None, prompt: str, n: int = 16) -> str:
    with open_llama(settings) as llm:
        text: str = llm(prompt, max_tokens=n, temperature=0)["choices"][0]["text"]
        return text


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where slots are saved."""
    return tmp_path_factory.mktemp("slots")


Start = Callable[..., Server]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, slots: Path) -> Iterator[Start]:
    """start(options, further, template): the one server of this module with these, of two slots."""
    folder = tmp_path_factory.mktemp("servers")
    servers: dict[str, Server] = {}
    with ExitStack() as stack:

        def get(options: Sequence[str], further: Sequence[str] = (), template: str = CHATML) -> Server:
            name = repr((options, further, template))
            if name not in servers:
                (folder / f"template-{len(servers)}").write_text(template)
                sizes = ["--chunk", str(S), "--threads", "1", "--parallel", "2", "--n-ctx", "2048"]
                saved = ["--slot-save-path", str(slots), "--", "--metrics"]
                file = ["--chat-template-file", str(folder / f"template-{len(servers)}")]
                log = folder / f"log-{len(servers)}"
                servers[name] = stack.enter_context(serving(log, "demo", *sizes, *options, *saved, *file, *further))
            return servers[name]

        yield get


def served_as(start: Start, name: str) -> Server:
    """The server with these SETTINGS."""
    return start(SETTINGS[name][0], ["--cors-origins", ALLOWED[name]] if name in ALLOWED else ())


@pytest.fixture(scope="module", params=SETTINGS)
def served(request: pytest.FixtureRequest, start: Start) -> tuple[Server, Any]:
    """A server, and the settings of H2O."""
    return served_as(start, request.param), SETTINGS[request.param][1]


def test_answers_are_those_of_the_python_interface(served: tuple[Server, Any]) -> None:
    server, settings = served
    for prompt in (DOCUMENT, DOCUMENT[:40], OTHER):
        answer = server.complete(prompt, cache_prompt=False)
        assert answer["content"] == answer_of(settings, prompt)
        assert answer["timings"]["cache_n"] == 0


def test_a_second_question_costs_what_is_behind_the_last_boundary(served: tuple[Server, Any]) -> None:
    server, settings = served
    prompts = [DOCUMENT + "first? " * 12, DOCUMENT + "second?"]
    server.complete(prompts[0], id_slot=0, cache_prompt=False)
    second = server.complete(prompts[1], id_slot=0)
    goes_anywhere = settings in (None, {})
    has_boundaries = not goes_anywhere and (not settings.get("evict") or "cold_store" in settings)
    step = S if has_boundaries else TILE if settings == {} else 1 if settings is None else 2**31
    assert second["timings"]["cache_n"] == len(DOCUMENT) // step * step
    with open_llama(settings, record=has_boundaries) as llm:
        expected = [llm(prompt, max_tokens=16, temperature=0, reuse=True) for prompt in prompts]
    assert second["content"] == expected[1]["choices"][0]["text"]
    # The same again: there is a checkpoint near its end, unless every token, or every tile, can be taken back.
    again = server.complete(prompts[1], id_slot=0)
    n_left = (len(prompts[1]) - 1) % TILE + 1
    assert again["timings"]["prompt_n"] == (1 if settings is None else n_left if settings == {} else 4)
    assert again["content"] == second["content"]


@pytest.mark.parametrize(
    ("model", "evict"), [("gemma3-windows-f32", True), ("lfm2-conv-f32", False), ("deepseek2-mla-f32", True)]
)
def test_a_second_question_costs_little_with_every_memory(
    model: str, evict: bool, model_by_name: ModelByName, tmp_path: Path
) -> None:
    """Windows, recurrent states and latents come back from the checkpoint near the end of the document."""
    sizes = ["--n-ctx", "512", "--chunk", "16", "--local", "4", "--heavy", "6", "--sinks", "1", "--lookup", "0"]
    options = [*sizes, "--threads", "1", *(["--evict"] if evict else [])]
    document, questions = random_tokens(150), ([1, 2, 3], [4, 5, 6], [1, 2, 3])
    with serving(tmp_path / "log", model_by_name(model), *options) as server:
        first, _, again = answers = [server.complete(document + question, 4) for question in questions]
    assert [answer["timings"]["prompt_n"] for answer in answers] == [153, 4, 4]
    assert again["content"] == first["content"]


def test_a_text_goes_on_where_it_ended(served: tuple[Server, Any]) -> None:
    """What was generated is not computed again."""
    server, _ = served
    first = server.complete(OTHER, id_slot=1, cache_prompt=False)
    text = OTHER + first["content"]
    second = server.complete(text + "more", id_slot=1)
    assert second["timings"]["cache_n"] == len(text) - 1  # the last token was not read any more


def test_slots_at_the_same_time_do_not_see_each_other(served: tuple[Server, Any]) -> None:
    server, settings = served
    prompts = {0: DOCUMENT + "k1?", 1: OTHER + "k6?"}
    with ThreadPoolExecutor() as pool:
        answers = {
            i: pool.submit(server.complete, prompt, 24, id_slot=i, cache_prompt=False) for i, prompt in prompts.items()
        }
        for i, prompt in prompts.items():
            assert answers[i].result()["content"] == answer_of(settings, prompt, 24)


def test_a_slot_is_saved_and_restored(served: tuple[Server, Any]) -> None:
    server, settings = served
    before = server.complete(DOCUMENT, n_predict=1, id_slot=0, cache_prompt=False)
    kept = None if settings is None else server.get("/slots/0/h2o?layer=1")
    n_saved = server.post("/slots/0?action=save", {"filename": "document"})["n_saved"]
    assert n_saved == before["tokens_cached"]
    server.complete(OTHER, id_slot=0, cache_prompt=False)
    assert server.post("/slots/0?action=restore", {"filename": "document"})["n_restored"] == n_saved
    if settings is not None:
        assert server.get("/slots/0/h2o?layer=1") == kept
    after = server.complete(DOCUMENT + "and?", id_slot=0)
    assert after["timings"]["cache_n"] == len(DOCUMENT)
    status, error = server.request("POST", "/slots/0?action=restore", {"filename": "../document"})
    assert status == 400, error


def test_a_file_that_is_no_slot_is_refused_and_nothing_is_lost(served: tuple[Server, Any], slots: Path) -> None:
    """It ends too early, is of something else or is not there: the answer says so, and the slot is as it was."""
    server, _ = served
    server.complete(OTHER, n_predict=1, id_slot=0, cache_prompt=False)
    server.post("/slots/0?action=save", {"filename": "whole"})
    whole = slots / "whole"
    data = whole.read_bytes()
    whole.unlink()
    files = {f"cut-{n}": data[:n] for n in (0, 3, 11, 200, len(data) // 2, len(data) - 4)}
    files |= {"text": b"no state " * 100, "foreign": data[:12] + data[12 : 12 + 4 * 700] + b"x" * (len(data) - 2812)}
    for name, content in files.items():
        (slots / name).write_bytes(content)
    (slots / "folder").mkdir(exist_ok=True)
    server.complete(DOCUMENT, n_predict=1, id_slot=0, cache_prompt=False)
    expected = server.complete(DOCUMENT + "and?", id_slot=0)["content"]
    server.complete(DOCUMENT, n_predict=1, id_slot=0, cache_prompt=False)
    for name in (*files, "folder", "missing"):
        status, answer = server.request("POST", "/slots/0?action=restore", {"filename": name})
        message = answer["error"]["message"]
        assert (status, message.startswith(f"Unable to restore slot from {name}: ")) == (400, True), answer
        assert "no such file" in message or name in files, message
        assert "space" not in message, message
    after = server.complete(DOCUMENT + "and?", id_slot=0)
    assert (after["timings"]["cache_n"], after["content"]) == (len(DOCUMENT), expected)


def test_a_slot_that_cannot_be_saved_leaves_the_file_that_was_there(served: tuple[Server, Any], slots: Path) -> None:
    server, _ = served
    server.complete(DOCUMENT, n_predict=1, id_slot=0)
    server.post("/slots/0?action=save", {"filename": "kept"})
    data = (slots / "kept").read_bytes()
    (slots / "kept.part" / "folder").mkdir(parents=True)  # where it is written first
    server.complete(OTHER, n_predict=1, id_slot=0)
    status, answer = server.request("POST", "/slots/0?action=save", {"filename": "kept"})
    assert (status, answer["error"]["message"]) == (500, "Unable to save slot")
    assert (slots / "kept").read_bytes() == data
    shutil.rmtree(slots / "kept.part")


@pytest.mark.parametrize(("name", "answer"), [("keep", S), ("evict", S), ("cold", 1)])
def test_saved_slots_outlive_a_server_that_is_killed(
    tmp_path: Path, start: Start, slots: Path, name: str, answer: int
) -> None:
    """And they go back to where the question began, also where the answer has closed its chunk."""
    (tmp_path / "template").write_text(CHATML)
    sizes = ["--chunk", str(S), "--threads", "1", "--n-ctx", "2048", "--slot-save-path", str(slots)]
    template = ["--", "--chat-template-file", str(tmp_path / "template")]
    told: list[Any] = [{"role": "system", "content": DOCUMENT}, user("k1?")]
    with serving(tmp_path / "log", "demo", *sizes, *SETTINGS[name][0], *template) as server:
        server.chat(told, answer, ignore_eos=True)
        saved = server.post("/slots/0?action=save", {"filename": name})
        assert saved["n_written"] == (slots / name).stat().st_size
        told[1] = user("k2?")
        expected = server.chat(told)
        server.process.kill()
        server.process.wait()
    another = served_as(start, name)
    assert another.post("/slots/0?action=restore", {"filename": name})["n_read"] == saved["n_written"]
    second = another.chat(told, id_slot=0)
    assert second["choices"] == expected["choices"]
    assert second["timings"]["cache_n"] == expected["timings"]["cache_n"] >= len(DOCUMENT)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose one slot is never full."""
    options = ["--evict", "--positions", "cache", "--chunk", str(S), "--threads", "1", "--n-ctx", "256"]
    with serving(tmp_path_factory.mktemp("endless") / "log", "demo", *options, "--", "--metrics") as server:
        yield server


def test_a_slot_is_never_full(endless: Server) -> None:
    """With eviction: a prompt, its answer and another one are longer than --n-ctx, and than the trained length."""
    with Llama(demo_model_path(), n_ctx=256, h2o=None) as llm:
        n_trained = llm.model.n_ctx_train
        tokens = (llm.tokenize(TEXT) * 10)[: n_trained - 50]
    first = endless.complete(tokens, n_predict=100, ignore_eos=True, return_tokens=True)
    assert (first["tokens_predicted"], first["truncated"]) == (100, False)
    more = [*tokens, *first["tokens"], *tokens[:50]]
    second = endless.complete(more, n_predict=5, ignore_eos=True)
    assert (second["tokens_predicted"], second["truncated"]) == (5, False)
    assert second["timings"]["cache_n"] >= n_trained
    without_limit = endless.complete(more, n_predict=-1, ignore_eos=True)
    assert (without_limit["tokens_predicted"], without_limit["stop_type"]) == (n_trained, "limit")
    assert not endless.get("/slots/0/h2o")["has_limit"]


def test_a_document_comes_back_from_the_prompt_cache(served: tuple[Server, Any]) -> None:
    """Other documents have taken both slots in between."""
    server, _ = served
    prompt = TEXT[3000:3500]
    first = server.complete(prompt)
    for start in (1000, 1700, 4000):
        server.complete(TEXT[start : start + 500], n_predict=1)
    again = server.complete(prompt + first["content"] + "then")
    assert again["timings"]["cache_n"] == len(prompt + first["content"]) - 1


def test_a_cancelled_request_frees_its_slot(served: tuple[Server, Any]) -> None:
    server, settings = served
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = {"prompt": DOCUMENT, "n_predict": 1000, "temperature": 0, "stream": True, "ignore_eos": True, "id_slot": 0}
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    assert connection.getresponse().readline().startswith(b"data: ")
    connection.close()
    server.wait_until_idle()
    answer = server.complete(OTHER, id_slot=0)
    assert answer["content"] == answer_of(settings, OTHER)


def leave(server: Server, body: dict[str, Any]) -> HTTPConnection:
    """Send a request for which nobody waits when the connection is closed."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    return connection


def test_nothing_is_computed_for_clients_that_are_gone(endless: Server) -> None:
    """Neither what has begun nor what waits for a slot, however often the slots are asked for meanwhile."""
    for_ever = {"prompt": OTHER, "n_predict": 10_000_000, "ignore_eos": True}

    def n(name: str) -> float:
        found = re.search(rf"^llamacpp:{name} (\S+)$", endless.request("GET", "/metrics")[1], re.MULTILINE)
        assert found is not None
        return float(found[1])

    def wait_for(name: str, value: float) -> None:
        deadline = time.monotonic() + 60
        while n(name) != value:
            assert time.monotonic() < deadline, name
            time.sleep(0.02)

    first = leave(endless, for_ever)
    wait_for("requests_processing", 1)
    second = leave(endless, for_ever)
    wait_for("requests_deferred", 1)
    second.close()
    wait_for("requests_deferred", 0)
    assert n("requests_processing") == 1
    first.close()
    endless.wait_until_idle()


def test_bad_requests_are_refused_and_nothing_else(served: tuple[Server, Any]) -> None:
    server, settings = served
    has_limit = settings is None or not H2OConfig(chunk_size=S, **settings).has_bounded_memory
    for request in BAD_REQUESTS:
        if request.body == TOO_LONG and not has_limit:
            continue  # no text is too long
        with case(request=str(request)):
            status, answer = server.request(request.method, request.path, raw=request.body)
            assert status == 400, answer
            assert answer["error"]["message"]
            if request.method == "POST" and request.body != TOO_LONG:
                assert answer["error"]["type"] == "invalid_request_error"
    assert server.complete(OTHER)["content"] == answer_of(settings, OTHER)


Doors = tuple[Server, Llama]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """A server, and a `Llama` with the same model and template."""
    folder = tmp_path_factory.mktemp("doors")
    model = write_model_of_calls(demo_model_path(), folder / "model.gguf")
    (folder / "template").write_text(PICKY)
    options = [
        "--threads",
        "1",
        "--parallel",
        "2",
        "--n-ctx",
        "2048",
        "--",
        "--chat-template-file",
        folder / "template",
    ]
    with (
        serving(folder / "log", model, *options) as server,
        Llama(model, n_ctx=2048, n_threads=1, chat_template=PICKY) as llm,
    ):
        yield server, llm


ASKED = {"messages": [user("Hi")], "max_tokens": 3, "temperature": 0}
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def told(answer: Any) -> list[Any]:
    """Message, reason of the end, tokens and counts of an answer."""
    (choice,) = answer["choices"]
    tokens = [(t["token"], t["bytes"]) for t in (choice.get("logprobs") or {}).get("content", [])]
    message = {key: value for key, value in choice["message"].items() if key != "role"}
    return [message, choice["finish_reason"], tokens, [answer["usage"][name] for name in COUNTS]]


def told_by_chunks(chunks: Iterable[Any]) -> list[Any]:
    """The same of a stream."""
    whole: Any = {"message": {"content": ""}, "finish_reason": None, "logprobs": {"content": []}}
    roles = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            roles += [choice["delta"]["role"]] if "role" in choice["delta"] else []
            whole["message"]["content"] += choice["delta"].get("content") or ""
            whole["finish_reason"] = choice["finish_reason"] or whole["finish_reason"]
            whole["logprobs"]["content"] += (choice.get("logprobs") or {}).get("content", [])
    assert roles == ["assistant"]
    return told({"choices": [whole], "usage": chunk["usage"]})


def events(text: str) -> list[Any]:
    """Of a stream over HTTP."""
    *lines, end = (line.removeprefix("data: ") for line in text.splitlines() if line.strip(":"))
    assert end == "[DONE]"
    return [json.loads(line) for line in lines]


def test_both_doors_answer_alike(doors: Doors) -> None:
    server, llm = doors
    for fields in ANSWERED:
        with case(fields=fields):
            asked: Any = {**ASKED, **fields}
            answer = told(llm.create_chat_completion(**asked))
            assert told(server.post("/v1/chat/completions", asked)) == answer
            asked["stream"] = True
            assert told_by_chunks(llm.create_chat_completion(**asked)) == answer
            asked["stream_options"] = {"include_usage": True}
            assert told_by_chunks(events(server.post("/v1/chat/completions", asked))) == answer


def test_the_server_refuses_what_llama_refuses(doors: Doors) -> None:
    server, _ = doors
    for fields, said, _ in REFUSED:
        if said is not None:
            with case(fields=fields):
                status, answer = server.request("POST", "/v1/chat/completions", {**ASKED, **fields})
                assert (status, said in answer["error"]["message"]) == (400, True), answer


def test_usage_counts_the_tokens_of_all_choices(doors: Doors) -> None:
    server, _ = doors
    for path, asked, n_prompt in (
        ("/v1/chat/completions", ASKED, server.chat([user("Hi")])["usage"]["prompt_tokens"]),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 3}, 2),
        ("/v1/completions", {"prompt": ["Hi", "you"], "max_tokens": 3}, 5),
    ):
        n_prompts = len(asked["prompt"]) if isinstance(asked.get("prompt"), list) else 1
        expected = [n_prompt, 6 * n_prompts, n_prompt + 6 * n_prompts]
        answer = server.post(path, {**asked, "n": 2})
        assert len(answer["choices"]) == 2 * n_prompts
        assert [answer["usage"][name] for name in COUNTS] == expected
        options = {"stream": True, "stream_options": {"include_usage": True}}
        usages = [
            event["usage"] for event in events(server.post(path, {**asked, "n": 2, **options})) if "usage" in event
        ]
        assert [usages[-1][name] for name in COUNTS] == expected


def test_completions_of_no_tokens(doors: Doors) -> None:
    server, llm = doors
    for answer in (server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 0}), llm("Hi", max_tokens=0)):
        assert [answer["usage"][name] for name in COUNTS] == [2, 0, 2]
        assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("", "length")
    assert llm.tokens.tolist() == llm.tokenize("Hi")  # it is read


def last_extra_keys(llm: Llama, layer: int) -> list[list[int]] | None:
    """Of the last tile of the last chunk that has some."""
    for tile in reversed(last_tiles(llm)):
        with suppress(H2OError):  # it attended to everything
            keys = [llm.kv.extra_keys(layer, h, tile).tolist() for h in range(len(llm.kv.memory_indices(layer)))]
            if keys[0]:
                return keys
    return None


def test_the_state_over_http_is_that_of_kv(served: tuple[Server, Any]) -> None:
    server, settings = served
    server.complete(DOCUMENT, n_predict=1, id_slot=0, cache_prompt=False)
    if settings is None:
        status, answer = server.request("GET", "/slots/0/h2o")
        assert (status, answer["error"]["message"]) == (400, "H2O is off")
        return
    with open_llama(settings) as llm:
        llm.eval(llm.tokenize(DOCUMENT), dense_tail=128)
        state = server.get("/slots/0/h2o")
        assert state["n_tokens"] == llm.n_tokens
        assert state["chunk_index"] == llm.kv.chunk_index
        assert [tuple(chunk) for chunk in state["chunk_boundaries"]] == llm.kv.chunk_boundaries
        assert state["layers"] == list(llm.kv.layers)
        assert state["settings"]["memory_size"] == llm.kv.memory_size
        for layer in llm.kv.layers:
            state = server.get(f"/slots/0/h2o?layer={layer}")
            memory = llm.kv.memory_indices(layer)
            assert state["memory_set"] == [head[head >= 0].tolist() for head in memory]
            assert state["extra_keys"] == last_extra_keys(llm, layer)
            if llm.h2o is not None and llm.h2o.heavy_budget == 0:
                assert state["scores"] is None
                continue
            scores = np.array(state["scores"], dtype=np.float32)
            np.testing.assert_allclose(scores, llm.kv.scores(layer), rtol=1e-4, atol=1e-5)


def test_bytes_are_counted(served: tuple[Server, Any]) -> None:
    """In timings, metrics and the slot's state: all K and V, or what memory sets and the open chunk have."""
    server, settings = served
    answer = server.complete(DOCUMENT, n_predict=1, id_slot=0, cache_prompt=False)
    metrics = dict(re.findall(r"^llamacpp:(\w+) (\S+)$", server.request("GET", "/metrics")[1], re.MULTILINE))
    if settings is None:
        assert not [name for name in [*answer["timings"], *metrics] if name.startswith("h2o")]
        return
    with open_llama(settings) as llm:
        llm.eval(llm.tokenize(DOCUMENT))
        n, M, n_open = llm.n_tokens, llm.kv.memory_size, llm.n_tokens - (llm.kv.chunk_index - 1) * S
        per_token = llm.kv.stats.token_bytes
    timings, state = answer["timings"], server.get("/slots/0/h2o")["kv_bytes"]
    n_kept = M + n_open if settings.get("evict") else n
    assert timings["h2o_chunks"] == -(-n // S)
    assert timings["h2o_kv_kept_bytes"] == state["kept"] == n_kept * per_token
    has_dropped = settings.get("evict") and "cold_store" not in settings
    assert timings["h2o_kv_dropped_bytes"] == state["dropped"] == (n - n_kept if has_dropped else 0) * per_token
    assert (state["cold"] > 0) == ("cold_store" in settings)
    assert float(metrics["h2o_kv_kept_bytes"]) >= n_kept * per_token


# As SmolLM2's and Qwen2.5's: there is a system message even if none is given.
DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}" + CHATML
)


@pytest.mark.parametrize("template", [CHATML, DEFAULT_SYSTEM])
def test_messages(start: Start, template: str) -> None:
    """The last user's message attends to everything; another one after the same messages costs itself and a tile."""
    server = start([], template=template)
    system = {"role": "system", "content": DOCUMENT}
    with open_chat(demo_model_path(), template, n_batch=S, h2o=H2OConfig(chunk_size=S)) as llm:
        n_before = len(llm.tokenize(llm.apply_chat_template([system], add_generation_prompt=False)))
        assert n_before % S != 0
        for n_cached, question in ((0, "first? " * 12), (n_before // TILE * TILE, "second? " * 30)):
            messages = [system, user(question)]
            answer = server.chat(messages, id_slot=0, cache_prompt=n_cached > 0)
            expected: Any = llm.create_chat_completion(messages, max_tokens=8, temperature=0)
            assert answer["choices"][0]["message"]["content"] == expected["choices"][0]["message"]["content"]
            assert answer["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]
            assert answer["timings"]["cache_n"] == n_cached


def test_a_call_can_be_required(start: Start) -> None:
    """Of any tool, or of one; a schema that no grammar can say, and a template that has no form for it, are refused."""
    server = start([], template=TOOLS)
    root = named("root")
    body: dict[str, Any] = {"messages": [user("3 + 5?")], "tools": [ADD, ROOT], "temperature": 0, "max_tokens": 200}
    lookahead: dict[str, Any] = {"type": "string", "pattern": "^(?!a)"}
    for choice in ("required", root):
        status, answer = server.request("POST", "/v1/chat/completions", {**body, "tool_choice": choice})
        assert status == 200, answer
        names = {call["function"]["name"] for call in answer["choices"][0]["message"]["tool_calls"]}
        assert names
        assert names <= ({"root"} if choice == root else {"add", "root"})
    for change, reason in [
        ({"tool_choice": named("sub")}, "not among the tools"),
        ({"tool_choice": "required", "tools": []}, "requires a call"),
        ({"tool_choice": 3}, "tool_choice must be"),
        ({"json_schema": json.loads('{"allOf":[' * 300 + "{}" + "]}" * 300), "tools": []}, "nested"),
        ({"response_format": {"type": "json_object", "schema": lookahead}, "tools": []}, "has no lookahead"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": lookahead}}]}, "has no lookahead"),
    ]:
        status, answer = server.request("POST", "/v1/chat/completions", {**body, **change})
        assert (status, reason in answer["error"]["message"]) == (400, True), (change, answer)
    status, answer = server.request("POST", "/completion", {"prompt": "a", "json_schema": lookahead})
    assert (status, "has no lookahead" in answer["error"]["message"]) == (400, True), answer
    for template, can in ((TOOLS, True), (CHATML, False)):  # from which it cannot be told how to call one
        for name in ("add", "root"):
            for choice in (named(name), {"type": "function", "name": name}):
                fields = {"tool_choice": choice, "max_tokens": 1}
                status, answer = start([], template=template).request("POST", "/v1/chat/completions", body | fields)
                assert status == (200 if can else 400), answer
                assert can or "has no form for calls" in answer["error"]["message"]


def logprobs_of(answer: Any) -> list[float]:
    return [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]]


@pytest.mark.parametrize(
    "options",
    [["--tile", "1"], ["--evict", "--cold-store", "memory", "--tile", "1"], ["--evict", "--scorer", "sum"]],
)
def test_a_conversation_goes_back_to_any_message_of_the_user(tmp_path: Path, options: list[str]) -> None:
    """Several messages in a chunk, and several chunks: answers are those of a slot in which nothing else was said.

    Tiles of one: how a text is split does not matter.
    """
    file = tmp_path / "template"
    file.write_text(CHATML)
    sizes = ["--chunk", str(8 * S), "--threads", "1", "--n-ctx", "2048", "--parallel", "2"]
    told: list[Any] = [{"role": "system", "content": DOCUMENT[: 8 * S]}]
    with (
        serving(tmp_path / "log", "demo", *sizes, *options, "--", "--chat-template-file", str(file)) as server,
        open_chat(demo_model_path(), CHATML) as llm,
    ):
        for step, n_kept in enumerate([0, 1, 2, 3, 4, 5, 6, 1, 2, 2, 3, 4, 5, 6, 4, 5, 5, 0, 1, 1]):
            goes_back = n_kept < len(told) // 2
            told[1 + 2 * n_kept :] = [user(f"question {step}? " + "and so on? " * (step % 4))]
            answer = server.chat(told, id_slot=0, logprobs=True)
            for i in range(1, len(told), 2):
                alone = server.chat(told[: i + 1], id_slot=1, cache_prompt=i > 1, logprobs=True)
            assert logprobs_of(answer) == pytest.approx(logprobs_of(alone), abs=1e-4), step
            if goes_back:
                before = llm.apply_chat_template(told[:-1], add_generation_prompt=False)
                assert answer["timings"]["cache_n"] >= len(llm.tokenize(before)), step
            told.append(answer["choices"][0]["message"])


def test_a_long_conversation_keeps_the_rows_of_two_chunks(tmp_path: Path) -> None:
    """With eviction it goes back to the first message and to the last one; for others it reads some again."""
    file = tmp_path / "template"
    file.write_text(CHATML)
    options = ["--evict", "--chunk", str(2 * S), "--threads", "1", "--n-ctx", "2048", "--parallel", "2"]
    told: list[Any] = [{"role": "system", "content": DOCUMENT[: 2 * S]}]
    with (
        serving(tmp_path / "log", "demo", *options, "--", "--chat-template-file", str(file)) as server,
        open_chat(demo_model_path(), CHATML) as llm,
    ):

        def ask(n_kept: int, heard: Iterable[int]) -> tuple[int, int]:
            """After `n_kept` questions, some of them heard: tokens kept, and those before the question."""
            told[1 + 2 * n_kept :] = [user(f"question {len(told)}? " + "and so on? " * 12)]
            answer = server.chat(told, id_slot=0, logprobs=True)
            for step, i in enumerate((*heard, n_kept)):
                alone = server.chat(told[: 2 * i + 2], id_slot=1, cache_prompt=step > 0, logprobs=True)
            assert logprobs_of(answer) == pytest.approx(logprobs_of(alone), abs=1e-4)
            before = llm.apply_chat_template(told[:-1], add_generation_prompt=False)
            told.append(answer["choices"][0]["message"])
            return answer["timings"]["cache_n"], len(llm.tokenize(before))

        starts = [ask(n, range(n))[1] for n in range(7)]
        assert all(b - a > 2 * S for a, b in pairwise(starts))
        n_cached, n_before = ask(6, range(6))
        assert n_cached >= n_before
        n_cached, n_before = ask(3, ())
        assert n_cached == starts[0] < n_before
        n_cached, n_before = ask(0, ())
        assert n_cached == starts[0] == n_before


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--spec-type", "ngram-simple"], "H2O does not work with speculative decoding in the server"),
        (["--embeddings", "--pooling", "mean"], "this pooling type needs all of its embeddings at once"),
    ],
)
def test_what_h2o_cannot_do_is_refused_at_the_start(tmp_path: Path, options: list[str], reason: str) -> None:
    """The server says so, and ends as if nothing had happened: not by a signal."""
    server = serving(tmp_path / "log", "demo", "--chunk", "64", "--", *options)
    with pytest.raises(AssertionError, match=f"(?s)ended with 1: .*{reason}"), server:
        pass


def test_embeddings(tmp_path: Path) -> None:
    """Dense, as those of the Python interface."""
    texts = [OTHER[:300], "short"]
    options = ["--threads", "1", "--n-ctx", "512", "--embeddings", "--", "--pooling", "mean"]
    with serving(tmp_path / "log", "demo", *options) as server, open_llama(None) as llm:
        found = server.post("/v1/embeddings", {"input": texts})["data"]
        expected = llm.embed(texts, pooling_type="mean", normalize=True)
        for path, body in (
            ("/v1/embeddings", {"input": ["short", TEXT[:600]]}),
            ("/embedding", {"content": TEXT[:513]}),
        ):
            status, answer = server.request("POST", path, body)
            assert (status, "at most 512 tokens" in answer["error"]["message"]) == (400, True), answer
        for path, body in (("/v1/chat/completions", {"messages": [user("a")]}), ("/completion", {"prompt": "a"})):
            status, answer = server.request("POST", path, body)
            assert (status, answer["error"]["type"]) == (501, "not_supported_error"), answer
    np.testing.assert_allclose([item["embedding"] for item in found], expected, rtol=1e-3, atol=1e-4)


def test_api_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the option (for the environment see below) and from a file; no program sees it among the arguments."""
    monkeypatch.delenv("LLAMA_API_KEY", raising=False)
    (file := tmp_path / "keys").write_text("# of a friend\nsecret2\n")
    options = ["--chunk", "64", "--n-ctx", "256", "--api-key", "secret1", "--", "--api-key-file", str(file)]
    with serving(tmp_path / "log", "demo", *options) as server:
        if sys.platform == "linux":
            assert b"secret" not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        for path in ("/slots", "/slots/0/h2o"):
            assert server.request("GET", path)[0] == 401
            for key in ("secret1", "secret2"):
                assert server.request("GET", path, headers={"Authorization": f"Bearer {key}"})[0] == 200
    assert_wrong_usage(invoke("serve", "--api-key", ", "), "--api-key")


@pytest.fixture(scope="module", params=["keep", *ALLOWED])
def origins(request: pytest.FixtureRequest, start: Start) -> tuple[Server, str]:
    """A server, and the origins that it was told."""
    return served_as(start, request.param), ALLOWED.get(request.param, "")


def ask_as_page(server: Server, method: str, path: str, **headers: str) -> tuple[int, Any]:
    """As a browser asks for a page: status, and what the page may read."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    body = b'{"prompt": "a", "n_predict": 1}' if method == "POST" else b""
    for name, value in ({"Host": f"127.0.0.1:{server.port}", "Content-Length": str(len(body))} | headers).items():
        connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status, response.getheader("Access-Control-Allow-Origin")


REQUESTS = [
    ("GET", "/slots"),
    ("GET", "/slots/0/h2o"),
    ("GET", "/h2o/library"),
    ("DELETE", "/h2o/library/1"),
    ("POST", "/completion"),  # without a Content-Type a browser asks nobody first
    ("OPTIONS", "/completion"),
    ("GET", "/"),
]
ORIGINS = {
    "https://evil.example": ["*"],
    "null": ["*"],
    "http://localhost.evil.example": ["*"],
    "http://a.example": ["*"],  # another scheme
    "http://localhost:1": ["localhost", "*"],
    "http://[::1]": ["localhost", "*"],
    "https://a.example": ["https://a.example, http://b.example:81/", "*"],
    "http://B.example:81": ["https://a.example, http://b.example:81/", "*"],
}


def test_other_pages_may_not_use_the_server(origins: tuple[Server, str]) -> None:
    """Unless it was told which: they can neither read what it answers nor change anything."""
    server, allowed = origins
    for origin, allowing in ORIGINS.items():
        for method, path in REQUESTS:
            status, header = ask_as_page(server, method, path, Origin=origin)
            if allowed in allowing:
                assert (status in (200, 501), header) == (True, origin), (origin, method, path, status)
            else:
                assert (status, header) == (403, None), (origin, method, path)


def test_pages_of_the_server_itself_may_use_it(origins: tuple[Server, str]) -> None:
    """Whatever they call this machine; behind a proxy that changes `Host` the browser says so."""
    server, _ = origins
    names = ("localhost", "LocalHost:1", "127.0.0.1", f"127.0.0.1:{server.port}", "[::1]:8080")
    own = [{"Host": name, "Origin": f"http://{name}"} for name in names]
    own += [{"Host": "localhost"}, {"Origin": "https://chat.example", "Sec-Fetch-Site": "same-origin"}]
    for headers in own:
        for method, path in REQUESTS:
            assert ask_as_page(server, method, path, **headers)[0] in (200, 501), (headers, method, path)


def test_a_name_that_was_pointed_here_is_refused(origins: tuple[Server, str]) -> None:
    """A browser takes its pages for the server's own (DNS rebinding)."""
    server, allowed = origins
    for name in ("evil.example", f"evil.example:{server.port}", "localhost.evil.example", "127.0.0.1.evil.example"):
        for headers in ({"Host": name, "Origin": f"http://{name}"}, {"Host": name, "Sec-Fetch-Site": "same-origin"}):
            for method, path in REQUESTS:
                status, _ = ask_as_page(server, method, path, **headers)
                assert (status == 403) == (allowed != "*"), (headers, method, path, status)
    if "a.example" in allowed:
        assert ask_as_page(server, "GET", "/slots", Host="a.example", Origin="https://a.example")[0] == 200


def test_the_openai_client(start: Start) -> None:
    openai = pytest.importorskip("openai")
    server = start([])
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    options: dict[str, Any] = {"model": "demo", "prompt": TEXT[4500:4800], "max_tokens": 8, "temperature": 0}
    text = client.completions.create(**options).choices[0].text
    assert text == answer_of({}, TEXT[4500:4800], 8)
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**options, stream=True)) == text
    assert [model.id for model in client.models.list()] == ["demo"]


@pytest.fixture(scope="module")
def openai_types(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """llama-cpp-python's types of OpenAI's answers, out of its source distribution, which the build has fetched."""
    pytest.importorskip("pydantic")
    layout = fetch.Layout(fetch.ROOT)
    release = fetch.read_pin(layout.requirements).release
    folder = tmp_path_factory.mktemp("types")
    if not (layout.cache / release.sdist).exists():
        pytest.skip("the package was not built here: llama-cpp-python's source distribution is not there")
    with tarfile.open(layout.cache / release.sdist) as archive:
        types = archive.extractfile(f"{release.folder}/llama_cpp/llama_types.py")
        assert types is not None
        (folder / "llama_types.py").write_bytes(types.read())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        return importlib.import_module("llama_types")


def events_of(stream: str) -> list[Any]:
    """What a stream of server-sent events says."""
    *events, done = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def test_openai_answers_have_the_types_of_llama_cpp_python(start: Start, openai_types: ModuleType) -> None:
    from pydantic import TypeAdapter, ValidationError

    def wrong(answer: Any, type_: Any) -> set[tuple[str, int | str]]:
        try:
            TypeAdapter(type_).validate_python(answer)
        except ValidationError as e:
            return {(error["type"], error["loc"][-1]) for error in e.errors()}
        return set()

    # null in OpenAI's answers; upstream's server leaves them out
    known = {("missing", "logprobs"), ("missing", "refusal")}
    text: dict[str, Any] = {"prompt": OTHER[:100], "max_tokens": 3}
    talk: dict[str, Any] = {"messages": [user("hello")], "max_tokens": 3}
    server = start([])
    for path, body, name in (
        ("/v1/completions", text, "Completion"),
        ("/v1/chat/completions", talk, "ChatCompletion"),
        ("/v1/chat/completions", talk | {"logprobs": True, "top_logprobs": 2}, "ChatCompletion"),
    ):
        assert wrong(server.post(path, body), getattr(openai_types, f"Create{name}Response")) <= known
        for event in events_of(server.post(path, body | {"stream": True})):
            assert wrong(event, getattr(openai_types, f"Create{name}StreamResponse")) <= known


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(start: Start) -> None:
    server = start([])
    url = f"http://127.0.0.1:{server.port}/v1/completions"

    def curl(**options: Any) -> str:
        body = json.dumps({"prompt": TEXT[5000:5300], "max_tokens": 8, "temperature": 0} | options)
        return subprocess.run(["curl", "-sSN", url, "-d", body], capture_output=True, text=True, check=True).stdout

    answer = json.loads(curl())["choices"][0]["text"]
    assert answer == answer_of({}, TEXT[5000:5300], 8)
    assert "".join(event["choices"][0]["text"] for event in events_of(curl(stream=True))) == answer


def assert_same_but_for_near_ties(answer: Any, expected: Any) -> None:
    """The server cuts prompts elsewhere, which rounds otherwise: 4-bit weights move logits by some tenths then."""
    pairs = zip(answer["choices"][0]["logprobs"]["content"], expected["choices"][0]["logprobs"]["content"], strict=True)
    for got, token in pairs:
        if got["token"] != token["token"]:
            first, second = (top["logprob"] for top in token["top_logprobs"])
            assert first - second < 0.5
            return


@pytest.mark.skipif(EXTERNAL_MODEL is None, reason="LLAMACPP_TEST_MODELFILE is not set")
@pytest.mark.parametrize("evict", [False, True])
def test_an_external_model_is_asked_twice(tmp_path: Path, evict: bool) -> None:
    assert EXTERNAL_MODEL is not None
    template = ["--", "--chat-template", "chatml"]  # not every model has one
    options = ["--chunk", "256", "--n-ctx", "2048", *(["--evict"] if evict else []), *template]
    sizes: dict[str, Any] = {"n_ctx": 2048, "n_batch": 256, "n_ubatch": 256}
    system = {"role": "system", "content": TEXT[:2000]}
    h2o = H2OConfig(chunk_size=256, evict=evict)
    with (
        serving(tmp_path / "log", EXTERNAL_MODEL, *options) as server,
        Llama(EXTERNAL_MODEL, **sizes, h2o=h2o, chat_template="chatml") as llm,
    ):
        n_cached = 0
        for question in ("Which modules does it import?", "What is it about, and why?"):
            messages = [system, user(question)]
            options = {"max_tokens": 8, "temperature": 0, "logprobs": True, "top_logprobs": 2}
            answer = server.chat(messages, **options)
            llm.reset()
            assert_same_but_for_near_ties(answer, llm.create_chat_completion(messages, **options))
            assert answer["timings"]["cache_n"] == n_cached
            before = llm.apply_chat_template([system], add_generation_prompt=False)
            n_cached = len(llm.tokenize(before, parse_special=True))
            if not evict:  # back on the grid of tiles
                n_cached -= n_cached % h2o.tile


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments with which the server would have been started."""
    calls: list[list[str]] = []
    monkeypatch.setattr(serve_command, "become", lambda program, arguments: calls.append(arguments))
    monkeypatch.setattr(serve_command, "start_librarian", lambda folder, origin: None)
    return calls


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def test_sizes_go_with_the_chunk(started: list[list[str]]) -> None:
    assert invoke("serve", "--chunk", "128", "--parallel", "3", "--n-ctx", "1000", "--products", "own").exit_code == 0
    sizes = H2OConfig(chunk_size=128)
    (arguments,) = started
    assert option(arguments, "--h2o-products") == "own"
    assert option(arguments, "--model") == str(demo_model_path())
    assert option(arguments, "--ubatch-size") == "128"
    assert option(arguments, "--ctx-size") == "3000"
    assert option(arguments, "--h2o-chunk") == "128"
    assert option(arguments, "--h2o-heavy") == str(sizes.heavy_budget)
    assert option(arguments, "--h2o-lookup") == str(sizes.lookup_budget)


def test_the_key_is_not_among_the_arguments(started: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "another")
    assert invoke("serve", "--api-key", "secret").exit_code == 0
    assert not any("secret" in argument for argument in started[0])
    assert os.environ["LLAMA_API_KEY"] == "secret"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--n-ctx", "10"], "a slot holds 256 tokens, not 10:"),
        (["--n-ctx", "10", "--h2o", "off", "--parallel", "2"], "a slot holds 256 tokens, not 10:"),
        (["--n-ctx", "100000"], "a slot holds 8,192 tokens, not 100,000:"),
        (["--n-ctx", "10", "--evict", "--positions", "cache"], None),  # a slot is never full
        (["--n-ctx", "512"], None),
        ([], None),
    ],
)
def test_a_slot_with_other_room_than_was_asked_for_says_so(
    started: list[list[str]], options: list[str], said: str | None
) -> None:
    result = invoke("serve", *options)
    assert result.exit_code == 0
    assert said in result.stderr if said else not result.stderr
    assert len(started) == 1


def test_without_h2o_and_with_options_of_llama_server(started: list[list[str]]) -> None:
    assert invoke("serve", "--h2o", "off", "--", "--metrics", "--cache-ram", "1").exit_code == 0
    (arguments,) = started
    assert arguments[-3:] == ["--metrics", "--cache-ram", "1"]
    assert not any("h2o" in argument for argument in arguments if argument.startswith("-"))


def test_a_model_without_a_tokenizer(started: list[list[str]], tmp_path: Path) -> None:
    file = GGUFFile.read(demo_model_path())
    file.set("tokenizer.ggml.model", STRING, pack_string(b"no_vocab"))
    file.write(tmp_path / "model.gguf")
    assert_one_line_error(invoke("serve", tmp_path / "model.gguf"), r"model\.gguf has no tokenizer")
    assert not started


@pytest.mark.parametrize("text", ["x", "1-", "-2", "1,,2", "0-99999999999", "11-2"])
def test_bad_dense_layers(text: str) -> None:
    assert_wrong_usage(invoke("serve", f"--dense-layers={text}"), "layers must be")
