"""`h2o-llama serve`: its answers, compared with the Python interface with the same settings."""

import json
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from chats import CHATML, THINKS, open_chat, user
from command_line import assert_one_line_error, assert_wrong_usage, h2o_set, invoke
from compare import case
from gguf_mutation import STRING, GGUFFile, pack_string
from h2o_llama import H2OConfig, Llama, demo_model_path
from h2o_llama._cli import serve as serve_command
from inputs import ModelByName, random_tokens
from projectors import write_projector
from servers import DOCUMENT, OTHER, SETTINGS, TEXT, S, Server, ServerOf, leave, serving

pytestmark = pytest.mark.slow

TILE = H2OConfig().tile
ALLOWED = {"evict": "https://a.example, http://b.example:81/, app://*", "cold": "localhost", "sum": "*"}
"""Each server's origins: --cors-origins."""


def open_llama(settings: dict[str, Any] | None, keep_history: bool = False) -> Llama:
    """The same model and settings without a server."""
    h2o = None if settings is None else H2OConfig(chunk_size=S, **settings)
    return Llama(demo_model_path(), n_ctx=2048, n_batch=S, n_threads=1, h2o=h2o, keep_history=keep_history)


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where slots are saved."""
    return tmp_path_factory.mktemp("slots")


Start = Callable[..., Server]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, server_of: ServerOf, slots: Path) -> Start:
    """start(options, further, template): a server of two slots."""
    folder = tmp_path_factory.mktemp("templates")

    def get(options: Sequence[str], further: Sequence[str] = (), template: str = CHATML) -> Server:
        (file := folder / str(len(template))).write_text(template)
        chunks = [] if "off" in options else h2o_set(chunk_size=S)
        sizes = [*chunks, "--threads", "1", "--parallel", "2", "--n-ctx", "2048"]
        more = ["--slot-save-path", slots, "--", "--metrics", "--chat-template-file", file]
        return server_of("demo", *sizes, *options, *more, *further)

    return get


def served_as(start: Start, name: str) -> Server:
    """The server with these SETTINGS."""
    return start([*SETTINGS[name][0], *(["--cors-origins", ALLOWED[name]] if name in ALLOWED else [])])


@pytest.fixture(scope="module", params=SETTINGS)
def served(request: pytest.FixtureRequest, start: Start) -> tuple[Server, Any]:
    """A server, and the settings of H2O."""
    return served_as(start, request.param), SETTINGS[request.param][1]


def test_a_second_question_costs_what_is_behind_the_last_boundary(served: tuple[Server, Any]) -> None:
    server, settings = served
    prompts = [DOCUMENT + "first? " * 12, DOCUMENT + "second?"]
    server.complete(prompts[0], id_slot=0, cache_prompt=False)
    second = server.complete(prompts[1], id_slot=0)
    goes_anywhere = settings in (None, {})
    has_boundaries = not goes_anywhere and (not settings.get("evict") or "cold_store" in settings)
    step = S if has_boundaries else TILE if settings == {} else 1 if settings is None else 2**31
    assert second["timings"]["cache_n"] == len(DOCUMENT) // step * step
    with open_llama(settings, keep_history=has_boundaries) as llm:
        expected = [llm(prompt, max_tokens=16, temperature=0, reuse=True) for prompt in prompts]
    assert second["content"] == expected[1]["choices"][0]["text"]
    # The same again: there is a checkpoint near its end, unless every token, or every tile, can be undone.
    again = server.complete(prompts[1], id_slot=0)
    n_left = (len(prompts[1]) - 1) % TILE + 1
    assert again["timings"]["prompt_n"] == (1 if settings is None else n_left if settings == {} else 4)
    assert again["content"] == second["content"]


def test_thoughts_that_a_client_leaves_out_are_put_back(start: Start) -> None:
    """A template that can keep them: the prompt continues the slot's text, in the same chat, for the same owner."""
    server, thought, answer = start([], template=THINKS), "Hm, a question.", {"role": "assistant", "content": "Yes."}
    said = f"<think>\n{thought}\n</think>\n\nYes."

    def ask(*answers: Any, first: str = DOCUMENT, **options: Any) -> Any:
        messages = [user(first), *answers, *[user("And?")] * len(answers)]
        return server.chat(messages, 64, grammar=f"root ::= {json.dumps(said)}", **options)["usage"]

    n_first = ask()["total_tokens"]
    usage = ask(answer)
    assert usage["prompt_tokens_details"]["cached_tokens"] >= n_first - 1
    for message, options, n_fewer in (
        ({**answer, "reasoning_content": thought}, {}, 0),
        ({**answer, "reasoning_content": thought[:-1]}, {}, 1),  # the client's own
        ({**answer, "content": "Yes!"}, {}, len(said) - 4),
        (answer, {"first": DOCUMENT[:-1] + "."}, len(said) - 4),
        (answer, {"cache_salt": "another's"}, len(said) - 4),
        (answer, {"chat_template_kwargs": {"preserve_reasoning": False}}, len(said) - 4),
    ):
        assert ask(message, **options)["prompt_tokens"] == usage["prompt_tokens"] - n_fewer
    with open_chat(demo_model_path(), THINKS) as llm:
        assert thought in llm.apply_chat_template([user("a"), {**answer, "reasoning_content": thought}, user("b")])


@pytest.mark.parametrize(
    ("model", "evict"), [("gemma3-windows-f32", True), ("lfm2-conv-f32", False), ("deepseek2-mla-f32", True)]
)
def test_a_second_question_costs_little_with_every_memory(
    model: str, evict: bool, model_by_name: ModelByName, tmp_path: Path
) -> None:
    """Windows, recurrent states and latents come back from the checkpoint near the end of the document."""
    sizes = ["--n-ctx", "512", *h2o_set(chunk_size=16, local_window=4, heavy_budget=6, sink_tokens=1, lookup_budget=0)]
    options = [*sizes, "--threads", "1", *(["--evict"] if evict else [])]
    document, questions = random_tokens(150), ([1, 2, 3], [4, 5, 6], [1, 2, 3])
    with serving(tmp_path / "log", model_by_name(model), *options) as server:
        first, _, again = answers = [server.complete(document + question, 4) for question in questions]
    assert [answer["timings"]["prompt_n"] for answer in answers] == [153, 4, 4]
    assert again["content"] == first["content"]


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


@pytest.mark.parametrize(("name", "answer"), [("keep", S), ("cold", 1), ("evict", 1), ("dense", 1)])
def test_saved_slots_outlive_a_server_that_is_killed(start: Start, slots: Path, name: str, answer: int) -> None:
    """They can be rewound to the start of the question, also where the answer has closed its chunk."""
    told: list[Any] = [{"role": "system", "content": DOCUMENT}, user("k1?")]
    server = start(SETTINGS[name][0], ["--alias", "killed"])
    server.chat(told, answer, ignore_eos=True, id_slot=0)
    saved = server.post("/slots/0?action=save", {"filename": name})
    assert saved["n_written"] == (slots / name).stat().st_size
    told[1] = user("k2?")
    expected = server.chat(told, id_slot=0)
    server.process.kill()
    server.process.wait()
    another = served_as(start, name)
    assert another.post("/slots/0?action=restore", {"filename": name})["n_read"] == saved["n_written"]
    second = another.chat(told, id_slot=0)
    assert second["choices"] == expected["choices"]
    assert second["timings"]["cache_n"] == expected["timings"]["cache_n"] >= len(DOCUMENT)


@pytest.fixture
def endless(server_of: ServerOf) -> Server:
    """A server whose one slot is never full."""
    options = ["--evict", *h2o_set(positions="cache", chunk_size=S), "--threads", "1", "--n-ctx", "256"]
    return server_of("demo", *options, "--", "--metrics")


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
    assert endless.get("/props")["default_generation_settings"]["n_ctx"] == 2**31 - 1


def test_a_document_comes_back_from_the_prompt_cache(served: tuple[Server, Any]) -> None:
    """Other documents have taken both slots in between, or one with the same beginning has taken its slot."""
    server, _ = served
    prompt = TEXT[3000:3500]
    first = server.complete(prompt)
    for start in (1000, 1700, 4000):
        server.complete(TEXT[start : start + 500], n_predict=1)
    again = server.complete(prompt + first["content"] + "then")
    assert again["timings"]["cache_n"] == len(prompt + first["content"]) - 1
    prompts = [DOCUMENT, DOCUMENT[:600] + OTHER[:300]]
    for prompt in prompts:
        server.complete(prompt, 1, id_slot=0)
    for prompt in prompts:
        timings = server.complete(prompt + "then", 1, id_slot=0)["timings"]
        assert (timings["cache_n"], timings.get("cache_stop")) == (len(prompt), None)
    message = user(OTHER[:300] + "28 November, " + OTHER[300:])
    server.chat([message], 1)
    message["content"] = message["content"].replace("28", "29")
    answer = server.chat([message], 1)
    stop = answer["timings"]["cache_stop"]
    assert stop == answer["usage"]["prompt_tokens_details"]["cache_stop"]
    assert (stop["kept"], stop["asked"]) == ("8 Novemb", "9 Novemb")
    assert answer["timings"]["cache_n"] <= stop["token"] < 400


@pytest.mark.parametrize("name", ["keep", "evict", "sum"])
def test_a_document_is_read_once_for_questions_at_once(server_of: ServerOf, name: str) -> None:
    """They wait for the first of them, even if its client goes, and answer as if each had read it."""
    chunks = h2o_set(chunk_size=S)
    server = server_of("demo", "--threads", "1", "--parallel", "4", "--n-ctx", "2048", *chunks, *SETTINGS[name][0])
    questions = [f"\n{i}: what is the word of number {i}?" for i in range(4)]
    n_questions = sum(map(len, questions)) + 4 * S
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda question: server.complete(DOCUMENT + question), questions))
        assert sum(answer["timings"]["prompt_n"] for answer in answers) <= len(DOCUMENT) + n_questions
        alone = [server.complete(DOCUMENT + question, cache_prompt=False) for question in questions]
        assert [answer["content"] for answer in answers] == [answer["content"] for answer in alone]
        prompts = [TEXT[3000:4800] + question for question in questions]
        first = leave(server, "/completion", {"prompt": prompts[0]})
        waiting = [pool.submit(server.complete, prompt) for prompt in prompts[1:]]
        while sum(slot["is_processing"] for slot in server.get("/slots")) < 4:
            time.sleep(0.01)
        first.close()
        n_read = sum(answer.result()["timings"]["prompt_n"] for answer in waiting)
        assert n_read <= 1800 + n_questions


def test_nothing_is_computed_for_clients_that_are_gone(endless: Server) -> None:
    """Neither a running request nor a waiting one, however often `/slots` is requested meanwhile."""
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

    first = leave(endless, "/completion", for_ever | {"stream": True})
    wait_for("requests_processing", 1)
    assert endless.request("GET", "/v1/stream?conv_id=x")[0] == 404  # nobody else reads the answer
    second = leave(endless, "/completion", for_ever)
    wait_for("requests_deferred", 1)
    second.close()
    wait_for("requests_deferred", 0)
    assert n("requests_processing") == 1
    first.close()
    endless.wait_until_idle()


@pytest.mark.parametrize("name", ["keep", "evict"])
def test_a_request_that_is_sent_again_goes_on_where_the_first_was(start: Start, name: str) -> None:
    """Its client went away while its prompt was read."""
    server, prompt = served_as(start, name), TEXT[1000:2900]
    first = leave(server, "/completion", {"prompt": prompt, "stream": True, "return_progress": True})
    with first.getresponse() as events:
        for event in events:
            if event.startswith(b"data: ") and json.loads(event[6:])["prompt_progress"]["processed"] >= 5 * S:
                break
    first.close()
    server.wait_until_idle()
    again = server.complete(prompt)
    assert 5 * S <= again["timings"]["cache_n"] < len(prompt) - 2 * S
    assert again["content"] == server.complete(prompt, cache_prompt=False)["content"]


def test_a_connection_stays_open_after_a_stream(endless: Server) -> None:
    """Unless the server says that it will not: then a client connects again by itself."""
    connection = HTTPConnection("127.0.0.1", endless.port, timeout=60)
    for i in range(160):
        body = json.dumps({"prompt": "a", "n_predict": 1, "stream": i % 2 == 0})
        connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()
    connection.close()


def test_the_counts_of_a_slot_are_those_of_kv(served: tuple[Server, Any]) -> None:
    """All K and V, or what memory sets and the open chunk have; in timings and metrics."""
    server, settings = served
    timings = server.complete(DOCUMENT, n_predict=1, id_slot=0, cache_prompt=False)["timings"]
    metrics = dict(re.findall(r"^llamacpp:(\w+) (\S+)$", server.request("GET", "/metrics")[1], re.MULTILINE))
    if settings is None:
        assert not [name for name in [*timings, *metrics] if name.startswith("h2o")]
        return
    with open_llama(settings) as llm:
        llm.eval(llm.tokenize(DOCUMENT), dense_tail=128)
        kv, n_kept, n_lost = llm.kv, llm.n_tokens, 0
        if settings.get("evict"):
            n_kept = kv.memory_size + llm.n_tokens - (kv.chunk_index - 1) * S
            n_lost = 0 if "cold_store" in settings else llm.n_tokens - n_kept
        kept, lost = (n * kv.stats.token_bytes for n in (n_kept, n_lost))
        assert timings["h2o_chunks"] == -(-llm.n_tokens // S)
        assert timings["h2o_kv_kept_bytes"] == kept <= float(metrics["h2o_kv_kept_bytes"])
        assert timings["h2o_kv_dropped_bytes"] == lost
        assert (timings["h2o_kv_cold_bytes"] > 0) == ("cold_store" in settings)


def test_attention_is_told_to_who_asks(served: tuple[Server, Any]) -> None:
    """That of the prompt's tail, as `kv.attention` has it, also where the prompt was read before."""
    server, settings = served

    def details(**asked: int) -> Any:
        body = {"prompt": DOCUMENT, "max_tokens": 2, **asked}
        return server.post("/v1/completions", body)["usage"]["prompt_tokens_details"]

    assert "attention" not in details()
    attention = details(top_attention=5)["attention"]
    assert attention == details(top_attention=5)["attention"]
    assert "".join(attention["pieces"]) == DOCUMENT
    if settings is None or settings.get("evict"):
        assert attention["heads"] == []
        return
    with open_llama(settings) as llm:
        tokens = llm.tokenize(DOCUMENT)
        end = attention["end"]
        assert end == len(tokens) - 128
        llm.eval(tokens[:end])
        llm.eval(tokens[end:], dense_tail=128, keep_attention=True)
        for found in attention["heads"]:
            weights = llm.kv.attention(found["layer"], found["head"])[:end]
            assert len(found["positions"]) == 5
            np.testing.assert_allclose(found["weights"], weights[found["positions"]], rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(found["weights"], np.sort(weights)[:-6:-1], rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(found["sum"], weights.sum(), rtol=1e-3)
        assert {found["layer"] for found in attention["heads"]} == set(llm.kv.layers)


def logprobs_of(answer: Any) -> list[float]:
    return [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]]


@pytest.mark.parametrize(
    "options",
    [h2o_set(tile=1), ["--evict", "--cold-store", "memory", *h2o_set(tile=1)], ["--evict", *h2o_set(scorer="sum")]],
)
def test_a_conversation_goes_back_to_any_message_of_the_user(start: Start, options: list[str]) -> None:
    """Several messages in a chunk, and several chunks: each answer equals that of a slot that has read nothing else.

    Tiles of one: how a text is split does not matter, but that rounding may choose another key of two near ones.
    """
    bound = 1e-4 if "--evict" in options and "memory" not in options else 5e-3
    told: list[Any] = [{"role": "system", "content": DOCUMENT[: 8 * S]}]
    server = start([*h2o_set(chunk_size=8 * S), *options])
    with open_chat(demo_model_path(), CHATML) as llm:
        for step, n_kept in enumerate([0, 1, 2, 3, 4, 5, 6, 1, 2, 2, 3, 4, 5, 6, 4, 5, 5, 0, 1, 1]):
            goes_back = n_kept < len(told) // 2
            told[1 + 2 * n_kept :] = [user(f"question {step}? " + "and so on? " * (step % 4))]
            answer = server.chat(told, id_slot=0, logprobs=True)
            for i in range(1, len(told), 2):
                alone = server.chat(told[: i + 1], id_slot=1, cache_prompt=i > 1, logprobs=True)
            assert logprobs_of(answer) == pytest.approx(logprobs_of(alone), abs=bound), step
            if goes_back:
                before = llm.apply_chat_template(told[:-1], add_generation_prompt=False)
                assert answer["timings"]["cache_n"] >= len(llm.tokenize(before)), step
            told.append(answer["choices"][0]["message"])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--", "--spec-type", "ngram-simple"], "H2O does not work with speculative decoding in the server"),
        (["--", "--embeddings", "--pooling", "mean"], "this pooling type needs all of its embeddings at once"),
        (["--mmproj"], "H2O does not work with this model's images, whose parts attend to each other both ways"),
    ],
)
def test_what_h2o_cannot_do_is_refused_at_the_start(
    tmp_path: Path, chat_model: Path, options: list[str | Path], reason: str
) -> None:
    """The server says so, and ends as if nothing had happened: not by a signal."""
    model: str | Path = "demo"
    if options == ["--mmproj"]:
        model = chat_model
        options = ["--mmproj", write_projector(tmp_path / "gemma3.gguf", models.ONE_LAYER.n_embd, "gemma3")]
    server = serving(tmp_path / "log", model, "--n-ctx", "512", *h2o_set(chunk_size=S), *options)
    with pytest.raises(AssertionError, match=f"(?s)ended with 1: .*{reason}"), server:
        pass


def test_a_server_says_what_it_serves_and_what_it_is_asked(tmp_path: Path) -> None:
    """Nothing else, but errors."""
    with serving(tmp_path / "log", "demo", "--n-ctx", "512", "--", "--context-shift") as server:
        server.complete("ab", 3, ignore_eos=True)
        status, answer = server.request("POST", "/completion", {"prompt": TEXT[:600]})
        assert (status, "larger --n-ctx" in answer["error"]["message"]) == (400, True), answer
        assert_one_line_error(invoke("serve", "demo", "--port", server.port), f"{server.port} is in use: --port N")
    template, shift, first, request, error = (tmp_path / "log").read_text().splitlines()
    assert ("no chat template" in template, "--context-shift is off" in shift) == (True, True)
    assert first == f"demo: texts of up to 512 tokens, 1 at a time, at http://127.0.0.1:{server.port}"
    assert re.fullmatch(r"\[2 tokens, 2 of them new; 3 generated; .* s\]", request)
    assert "exceeds the available context size" in error


def test_only_what_changed_is_read_again(start: Start) -> None:
    """With --cache-reuse, in a slot; and texts that fill their slot are shifted."""
    server = start(["--cache-reuse", "64"], ["--context-shift"])
    text, new, system = random_tokens(900), random_tokens(3, seed=1), random_tokens(50, seed=2)
    tail, again = 128, 32
    changed, with_system = [*text[:200], *new, *text[201:]], [*system, *text]

    def timings(prompt: list[int], **options: Any) -> list[int]:
        found = server.complete(prompt, n_predict=1, id_slot=0, **options)["timings"]
        return [found["prompt_n"], found["cache_n"], found.get("cache_moved", 0)]

    def expected(prompt: list[int], n_kept: int, n_moved: int) -> list[int]:
        return [len(prompt) - n_kept - n_moved, n_kept + n_moved, n_moved]

    timings(text)
    n_moved = 699 - again - tail
    assert timings(changed) == expected(changed, 192, n_moved)
    assert timings(changed, n_cache_reuse=0) == expected(changed, 224, 0)  # what was read is exact
    n_moved += 200 - len(system)
    assert timings(with_system) == expected(with_system, 0, n_moved)
    body = {"prompt": [*text[:300], *text[400:]], "max_tokens": 1, "id_slot": 0}
    usage = server.post("/v1/completions", body)["usage"]
    assert usage["prompt_tokens_details"]["moved_tokens"] == 800 - 300 - again - tail  # the rest is in RAM
    answer = server.complete(random_tokens(2000, seed=3), n_predict=100, id_slot=0, ignore_eos=True)
    assert answer["truncated"]
    assert answer["timings"]["predicted_n"] == 100


def test_two_slots_move_pieces_at_once(start: Start) -> None:
    """Each has the same result alone."""
    server = start(["--cache-reuse", "64"], ["--context-shift"])
    texts = [random_tokens(900, seed=seed) for seed in (4, 5)]
    changed = [[*text[: 150 + 90 * i], i, *text[200:600], *text[650:]] for i, text in enumerate(texts)]

    def answer(slot: int) -> tuple[Any, int]:
        found = server.complete(changed[slot], 8, id_slot=slot, return_tokens=True, ignore_eos=True)
        return found["tokens"], found["timings"]["cache_moved"]

    def answers(pool: ThreadPoolExecutor) -> list[tuple[Any, int]]:
        for slot, text in enumerate(texts):
            server.post(f"/slots/{slot}?action=erase")
            server.complete(text, 1, id_slot=slot)
        return list(pool.map(answer, (0, 1)))

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(2) as two:
        alone = answers(one)
        assert answers(two) == alone
    assert min(n_moved for _, n_moved in alone) > 400


def test_embeddings(tmp_path: Path) -> None:
    """Dense, and equal to the Python interface's."""
    texts = [OTHER[:300], "short"]
    options = ["--threads", "1", "--n-ctx", "512", "--embeddings"]
    with serving(tmp_path / "log", "demo", *options) as server, open_llama(None) as llm:
        found = server.post("/v1/embeddings", {"input": texts})["data"]
        expected = llm.embed(texts, pooling_type="mean", normalize=True)
        for path, body in (
            ("/v1/embeddings", {"input": ["short", TEXT[:600]]}),
            ("/embedding", {"content": TEXT[:513]}),
        ):
            status, answer = server.request("POST", path, body)
            assert (status, "too large to process" in answer["error"]["message"]) == (400, True), answer
        for path, body in (("/v1/chat/completions", {"messages": [user("a")]}), ("/completion", {"prompt": "a"})):
            status, answer = server.request("POST", path, body)
            assert (status, answer["error"]["type"]) == (501, "not_supported_error"), answer
    np.testing.assert_allclose([item["embedding"] for item in found], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("h2o", [[], ["--h2o", "off"]])
def test_owners_do_not_see_each_others_texts(h2o: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither two API keys, which no program sees among the arguments, nor two values of cache_salt with one key."""
    monkeypatch.delenv("LLAMA_API_KEY", raising=False)
    (file := tmp_path / "keys").write_text("# of a friend\nsecret2\n")
    sizes = [*(h2o or h2o_set(chunk_size=S)), "--n-ctx", "2048", "--threads", "1", "--parallel", "2"]
    options = ["--api-key", "secret1", "--slot-save-path", tmp_path, "--", "--api-key-file", file]
    owners = [
        ({"Authorization": "Bearer secret1"}, ""),
        ({"X-Api-Key": "secret2"}, ""),
        ({"Authorization": "Bearer secret1"}, "x"),
        ({"X-Api-Key": "secret1"}, "y"),
    ]
    with serving(tmp_path / "log", "demo", *sizes, *options) as server:
        assert sys.platform != "linux" or b"secret" not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        assert server.request("GET", "/slots")[0] == 401

        def ask(i: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
            headers, salt = owners[i]
            path += f"{'&' if '?' in path else '?'}cache_salt={salt}"
            return server.request(method, path, body, headers=headers)

        def n_cached(i: int, prompt: str, **options: Any) -> int:
            body = {"prompt": prompt, "n_predict": 1, "cache_salt": owners[i][1], **options}
            timings = server.request("POST", "/completion", body, headers=owners[i][0])[1]["timings"]
            n: int = timings["cache_n"]
            assert ("cache_stop" in timings) <= (n > 0)
            return n

        for a, b in pairwise((3, 2, 0, 1)):
            n_cached(a, DOCUMENT, id_slot=0)
            for i, status in ((b, 404), (a, 200)):
                assert [slot["id"] for slot in ask(i, "GET", "/slots")[1]].count(0) == (i == a)
                assert ask(i, "POST", "/slots/0?action=save", {"filename": str(a)})[0] == status
            assert ask(b, "POST", "/slots/1?action=restore", {"filename": str(a)})[0] == 400
            assert ask(b, "POST", "/slots/0?action=erase")[0] == 404
            assert n_cached(b, DOCUMENT + "b", id_slot=1) == 0  # slot 0 has it
            assert n_cached(b, OTHER, id_slot=0) == 0
            assert n_cached(b, DOCUMENT + "c", id_slot=0) >= len(DOCUMENT) // S * S  # its own, from the cache in RAM
            assert ask(a, "POST", "/slots/0?action=restore", {"filename": str(a)})[0] == 200
        assert {p.stat().st_mode & 0o777 for p in tmp_path.iterdir() if p.is_dir()} == {0o700}
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
    ("GET", "/h2o/library"),
    ("DELETE", "/h2o/library/1"),
    ("POST", "/completion"),  # without a Content-Type a browser asks nobody first
    ("OPTIONS", "/completion"),
    ("GET", "/"),
]
ANY, NAMED = "*", ALLOWED["evict"]
ALL = ("", *ALLOWED.values())


def pages(port: int) -> Iterator[tuple[dict[str, str], Sequence[str]]]:
    """A page's headers, and the values of --cors-origins with which it may use the server."""
    yield {"Origin": "https://evil.example"}, [ANY]
    yield {"Origin": "null"}, [ANY]
    yield {"Origin": "http://localhost.evil.example"}, [ANY]
    yield {"Origin": "http://a.example"}, [ANY]  # another scheme
    yield {"Origin": "http://localhost:1"}, ["localhost", ANY]
    yield {"Origin": "http://[::1]"}, ["localhost", ANY]
    yield {"Origin": "https://a.example"}, [NAMED, ANY]
    yield {"Origin": "app://obsidian.md"}, [NAMED, ANY]
    yield {"Origin": "http://B.example:81"}, [NAMED, ANY]
    yield {"Origin": "https://a.example", "Host": "a.example"}, [NAMED, ANY]
    # its own pages, by any name of this machine; behind a proxy that changes `Host` the browser says so
    for name in ("localhost", "LocalHost:1", f"127.0.0.1:{port}", "[::1]:8080"):
        yield {"Host": name, "Origin": f"http://{name}"}, ALL
    for name in ("localhost", socket.gethostname(), "192.168.1.2:80", "[fe80::1]"):
        yield {"Host": name}, ALL
    yield {"Origin": "https://chat.example", "Sec-Fetch-Site": "same-origin"}, ALL
    # a browser takes the pages of a name that was pointed here for the server's own (DNS rebinding)
    for name in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example"):
        yield {"Host": name, "Origin": f"http://{name}"}, [ANY]
        yield {"Host": name, "Sec-Fetch-Site": "same-origin"}, [ANY]


def test_only_pages_that_were_named_may_use_the_server(origins: tuple[Server, str]) -> None:
    """Other pages can neither read an answer nor change anything."""
    server, allowed = origins
    for headers, allowing in pages(server.port):
        for method, path in REQUESTS:
            with case(headers=headers, method=method, path=path):
                status, header = ask_as_page(server, method, path, **headers)
                assert status in ((200, 501) if allowed in allowing else (403,))
                if headers.keys() == {"Origin"}:
                    assert header == (headers["Origin"] if allowed in allowing else None)


def test_a_browser_is_told_what_it_may_send_and_its_user_what_to_type(origins: tuple[Server, str]) -> None:
    server, allowed = origins
    asked = {"Origin": "vscode-webview://1a2b", "Access-Control-Request-Headers": "authorization,x-stainless-os"}
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("OPTIONS", "/completion", headers=asked)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    if allowed == ANY:
        assert response.getheader("Access-Control-Allow-Headers") == asked["Access-Control-Request-Headers"]
    else:
        assert "`h2o-llama serve MODEL --cors-origins 'vscode-webview://1a2b'`" in text


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments with which the server would have been started."""
    calls: list[list[str]] = []
    monkeypatch.setattr(serve_command, "run_server", lambda arguments, texts: calls.append(arguments) or 0)
    return calls


def test_a_model_that_h2o_refuses_is_served_densely(started: list[list[str]], unsupported_memory_model: Path) -> None:
    assert "attention is dense" in invoke("serve", unsupported_memory_model).stderr
    assert "--h2o-lookup" not in started[0]


def test_what_the_server_is_told(started: list[list[str]]) -> None:
    result = invoke("serve", "demo", "--cors-origins", "app://*", "--sleep-idle-seconds", "5")
    assert "no chat template: messages are written as ChatML" in result.stderr
    assert "--cors-origins app://* --sleep-idle-seconds 5" in " ".join(started[0])


def test_a_model_without_a_tokenizer(started: list[list[str]], tmp_path: Path) -> None:
    file = GGUFFile.read(demo_model_path())
    file.set("tokenizer.ggml.model", STRING, pack_string(b"no_vocab"))
    file.write(tmp_path / "model.gguf")
    assert_one_line_error(invoke("serve", tmp_path / "model.gguf"), r"model\.gguf has no tokenizer")
    assert not started
