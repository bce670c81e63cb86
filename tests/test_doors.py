"""The same completions through every door: `Llama`, `h2o-llama serve` and `h2o-llama run`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from chats import write_model_of_calls
from compare import case
from doors import (
    ANSWERED,
    MESSAGES,
    PICKY,
    REFUSED,
    Fields,
    Refused,
    ask_command,
    ask_llama,
    ask_server,
)
from h2o_llama import Llama, demo_model_path
from servers import Server, ServerOf

Door = Callable[[Fields], Fields | Refused | None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("doors") / "model.gguf"
    return write_model_of_calls(demo_model_path(), path, PICKY)


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[Llama]:
    with Llama(model, n_ctx=2048, n_threads=1) as llm:
        yield llm


@pytest.fixture
def server(model: Path, server_of: ServerOf) -> Server:
    return server_of(model, "--threads", "1", "--parallel", "2", "--n-ctx", "2048")


@pytest.fixture(params=["Llama", "run", pytest.param("serve", marks=pytest.mark.slow)])
def doors(request: pytest.FixtureRequest, model: Path, llm: Llama) -> tuple[str, list[Door]]:
    """The name of a door; its answers at once, and as a stream."""
    if request.param == "run":
        return request.param, [partial(ask_command, model)]
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
            for door in doors[1]:
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
        said = {"serve": by_server and re.escape(by_server), "Llama": by_llama, "run": ""}[name]
        if said is not None:
            with case(fields=fields):
                found = ask(fields if "prompt" in fields else {**MESSAGES, **fields})
                if found is None:
                    assert name == "run"
                else:
                    assert isinstance(found, Refused)
                    assert re.search(said, found)
                    n_refused += 1
    assert n_refused > 5
    assert capfd.readouterr() == ("", "")
