"""`h2o-llama serve --mmproj`: images in requests, with H2O and without."""

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chats import open_chat, user
from command_line import h2o_set
from h2o_llama import H2OConfig
from projectors import about, image_part, picture, png
from servers import Server, ServerOf, serving

pytestmark = pytest.mark.slow

S = 32
SERVED: dict[str, tuple[list[str], H2OConfig | None]] = {
    "keep": ([], H2OConfig(chunk_size=S)),
    "heavy": (h2o_set(lookup_budget=0), H2OConfig(chunk_size=S, lookup_budget=0)),
    "evict": (["--evict"], H2OConfig(chunk_size=S, evict=True)),
    "off": (["--h2o", "off"], None),
}
NO_TEXT = range(128, 256)  # bytes that are not characters alone
BOUND = 3e-3  # K and V are F16, and calls are cut in other places
OPTIONS: dict[str, Any] = {
    "max_tokens": 8,
    "temperature": 0,
    "logprobs": True,
    "logit_bias": dict.fromkeys(NO_TEXT, -np.inf),
}
A, B = png(picture(1)), png(picture(2))


def logprobs(answer: Any) -> list[float]:
    found = [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]]
    assert len(found) == 8
    return found


def chat(server: Server, messages: list[Any], **options: Any) -> Any:
    return server.chat(messages, 8, logprobs=True, logit_bias=[[i, False] for i in NO_TEXT], **options)


@pytest.fixture(scope="module", params=SERVED)
def served(
    request: pytest.FixtureRequest,
    server_of: ServerOf,
    chat_model: Path,
    mmproj: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Server, str]:
    common: list[str | Path] = [] if request.param == "off" else [*h2o_set(chunk_size=S)]
    common += ["--threads", "1", "--n-ctx", "512"]
    common += ["--mmproj", mmproj, "--slot-save-path", tmp_path_factory.mktemp("images")]
    return server_of(chat_model, *common, *SERVED[request.param][0]), request.param


def test_an_image_in_a_request(served: tuple[Server, str], chat_model: Path, mmproj: Path) -> None:
    """As in Python, names of special tokens too; another image is another text; a saved slot continues, too."""
    server, kind = served
    messages = [about("What is this?", A)]
    answer = chat(server, messages, cache_prompt=False)
    with open_chat(chat_model, None, h2o=SERVED[kind][1], mmproj=mmproj, n_batch=S, n_ubatch=S, n_ctx=512) as llm:
        expected = llm.create_chat_completion(messages, **OPTIONS)
        assert answer["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]
        assert logprobs(answer) == pytest.approx(logprobs(expected), abs=BOUND)
        named = [about("<|im_end|>?", A)]
        n_named = llm.create_chat_completion(named, max_tokens=0)["usage"]["prompt_tokens"]
    if kind != "off":
        assert server.get("/slots/0/h2o")["n_tokens"] >= answer["usage"]["prompt_tokens"]

    other = chat(server, [about("What is this?", B)])
    assert logprobs(other) != pytest.approx(logprobs(answer), abs=BOUND)
    longer = [about("What is this?", A), user("And " * 20 + "this?")]
    first = chat(server, longer, id_slot=0, cache_prompt=False)
    server.post("/slots/0?action=save", {"filename": "slot"})
    again = [chat(server, longer)]
    server.chat([user("Something else. " * 9)], 4)
    server.post("/slots/0?action=restore", {"filename": "slot"})
    for answer in (*again, chat(server, longer)):
        assert logprobs(answer) == pytest.approx(logprobs(first), abs=BOUND)
        assert answer["timings"]["cache_n"] > 30
    back = chat(server, [about("What is this?", B)])
    assert logprobs(back) == pytest.approx(logprobs(other), abs=BOUND)
    assert server.chat(named, 1)["usage"]["prompt_tokens"] == n_named


def image(url: str) -> dict[str, Any]:
    """A message with an image that is elsewhere."""
    return {"role": "user", "content": [image_part(url)]}


def test_images_from_elsewhere(chat_model: Path, mmproj: Path, tmp_path: Path) -> None:
    """The server fetches nothing from the network, and reads only files of the folder that was named."""
    folder = tmp_path / "media"
    folder.mkdir()
    (folder / "a.png").write_bytes(png(picture(1)))
    (tmp_path / "b.png").write_bytes(png(picture(1)))
    options = [chat_model, "--threads", "1", "--n-ctx", "512", "--mmproj", mmproj, "--h2o", "off"]
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        serving(tmp_path / "log", *options, "--", "--media-path", folder) as server,
    ):
        listener.setblocking(False)
        port = listener.getsockname()[1]
        refused = {
            f"http://127.0.0.1:{port}/x.png": "fetches nothing",
            f"https://127.0.0.1:{port}/x.png": "fetches nothing",
            f"HTTP://127.0.0.1:{port}/x.png": "",
            f"ftp://127.0.0.1:{port}/x.png": "",
            "file://none.png": "does not exist",
            "file://../b.png": "not allowed",
        }
        for url, reason in refused.items():
            status, answer = server.request("POST", "/v1/chat/completions", {"messages": [image(url)]})
            assert (status, reason in answer["error"]["message"]) == (400, True), (url, answer)
        with pytest.raises(BlockingIOError):
            listener.accept()  # nobody was there
        assert server.chat([image("file://a.png")], 1)["usage"]["completion_tokens"] == 1
