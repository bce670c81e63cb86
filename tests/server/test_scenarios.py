"""A slot of `h2o-llama serve` answers as a `Llama` does, whatever was asked, left, saved and changed before.

Axes: what H2O keeps, and what an answer depends on besides the text: images, adapters, RoPE options, the API key.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from adapters import random_adapter
from chats import open_chat, user
from command_line import h2o_set
from h2o_llama import H2OConfig
from projectors import about, picture, png
from servers import leave, serving

pytestmark = pytest.mark.slow

S = 32
KEPT: dict[str, tuple[list[str], H2OConfig | None]] = {
    "keep": (h2o_set(chunk_size=S), H2OConfig(chunk_size=S)),
    "heavy": (h2o_set(chunk_size=S, lookup_budget=0), H2OConfig(chunk_size=S, lookup_budget=0)),
    "evict": (["--evict", *h2o_set(chunk_size=S)], H2OConfig(chunk_size=S, evict=True)),
    "off": (["--h2o", "off"], None),
}
NO_TEXT = range(128, 256)  # bytes that are not characters alone
BOUND = 3e-3  # K and V are F16, and calls are cut in other places
SIZES: dict[str, Any] = {"n_ctx": 1024, "n_batch": S, "n_ubatch": S}
YARN = {"rope_scaling_type": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 256, "yarn_beta_fast": 16}

QUESTION, EDITED, NEXT = "What is this? " * 9, "What was this? " * 9, user("And now? " * 5)


class Way(NamedTuple):
    """One of two that give other answers to the same text."""

    fields: dict[str, Any] = {}  # noqa: RUF012
    images: tuple[bytes, ...] = ()
    options: dict[str, Any] = {}  # noqa: RUF012

    def messages(self, first: str, *others: Any) -> list[Any]:
        return [about(first, *self.images) if self.images else user(first), *others]


@pytest.fixture
def ways(request: pytest.FixtureRequest, chat_model: Path, tmp_path: Path) -> tuple[list[Any], list[Way]]:
    """Options of a server, and two ways to ask it."""
    if request.param == "images":
        projector = request.getfixturevalue("mmproj")
        given = [Way(images=(png(picture(i)),), options={"mmproj": projector}) for i in (1, 2)]
        return ["--mmproj", projector], given
    if request.param == "adapters":
        files = [random_adapter(chat_model, seed=i).write(tmp_path / f"{i}.gguf") for i in range(2)]
        given = [
            Way(
                {"lora": [{"id": i, "scale": x} for i, x in enumerate(scales)]},
                (),
                {"lora": [*zip(files, scales, strict=True)]},
            )
            for scales in ((1, 0), (0.5, 0.5))
        ]
        return ["--lora", files[0], "--lora", f"{files[1]}:0"], given
    if request.param == "RoPE":
        flags = ["--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "256", "--yarn-beta-fast", "16"]
        return flags, [Way(options=YARN), Way({"cache_salt": "other"}, (), YARN)]
    return ["--api-key", "secret"], [Way(), Way({"cache_salt": "other"})]


@pytest.mark.parametrize(
    ("ways", "kept"),
    [
        *(("images", kept) for kept in KEPT),
        *(("adapters", kept) for kept in ("keep", "evict", "off")),
        ("RoPE", "keep"),
        ("keys", "evict"),
    ],
    indirect=["ways"],
)
def test_answers_are_those_of_a_llama(
    ways: tuple[list[Any], list[Way]], kept: str, chat_model: Path, tmp_path: Path
) -> None:
    more, (way, other) = ways
    options, h2o = KEPT[kept]
    expected: dict[str, list[float]] = {}

    def logprobs(answer: Any) -> list[float]:
        found = [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]]
        assert len(found) == 8
        return found

    def by_llama(way: Way, messages: list[Any]) -> list[float]:
        if (key := json.dumps([way.fields, messages])) not in expected:
            flash: Any = {"flash_attn": "on" if h2o else "off"}
            with open_chat(chat_model, None, h2o=h2o, **SIZES, **flash, **way.options) as llm:
                bias: Any = dict.fromkeys(NO_TEXT, -np.inf)
                asked: Any = {"max_tokens": 8, "temperature": 0, "logprobs": True, "logit_bias": bias}
                expected[key] = logprobs(llm.create_chat_completion(messages, **asked))
        return expected[key]

    saved = ["--threads", "1", "--n-ctx", "1024", "--parallel", "2", "--slot-save-path", tmp_path]
    further = [] if h2o else ["--", "--flash-attn", "off"]  # it rounds by where a call is cut
    with serving(tmp_path / "log", chat_model, *options, *saved, *more, *further) as server:
        server = replace(server, headers={"Authorization": "Bearer secret"})

        def ask(way: Way, first: str, *others: Any, **options: Any) -> int:
            """Compare the answer. Returns how many tokens were there."""
            bias = [[i, False] for i in NO_TEXT]
            messages = way.messages(first, *others)
            answer = server.chat(messages, 8, logprobs=True, logit_bias=bias, **way.fields, **options)
            assert logprobs(answer) == pytest.approx(by_llama(way, messages), abs=BOUND)
            n: int = answer["timings"]["cache_n"]
            return n

        assert ask(way, QUESTION) == 0
        assert ask(way, QUESTION) > 30
        assert ask(way, QUESTION, NEXT) > 30
        assert ask(other, QUESTION, NEXT) < 30  # no row that was computed the other way
        body = {"messages": way.messages(QUESTION, NEXT), "stream": True, "max_tokens": 500, **way.fields}
        gone = leave(server, "/v1/chat/completions", body)
        gone.getresponse().read(20)
        gone.close()  # while the answer comes
        server.wait_until_idle()
        assert ask(way, QUESTION, NEXT) > 30
        assert ask(way, EDITED, NEXT) < 60
        assert ask(way, QUESTION, NEXT, id_slot=0) > 30
        server.post("/slots/0?action=save", {"filename": "slot"})
        for slot in (0, 1):
            server.chat([user("Something else. " * 9)], 4, id_slot=slot)
        server.post("/slots/0?action=erase")
        server.post("/slots/0?action=restore", {"filename": "slot"})
        assert ask(way, QUESTION, NEXT, id_slot=0) > 30
    if way.options != other.options or way.images:
        assert by_llama(way, way.messages(QUESTION)) != pytest.approx(
            by_llama(other, other.messages(QUESTION)), abs=BOUND
        )
