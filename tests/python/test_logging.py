"""llama.cpp's log in Python's logging."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from h2o_llama import Llama, Model
from h2o_llama._internal.log import NAME


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG, logger=NAME):
        yield caplog


def test_lines_have_their_levels(log: pytest.LogCaptureFixture, tiny_model: Path) -> None:
    with Llama(tiny_model, n_ctx=64, n_threads=1, h2o=None):
        pass
    found = {record.levelno: record.getMessage() for record in log.records}
    assert {logging.DEBUG, logging.INFO} <= set(found) <= {logging.DEBUG, logging.INFO, logging.WARNING}
    assert {record.name for record in log.records} == {NAME}
    assert not any("\n" in record.getMessage() for record in log.records)
    assert any(record.getMessage().startswith("llama_model_loader: - kv ") for record in log.records)


def test_a_handler_may_use_the_library(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    """Nothing of llama.cpp's is locked when it is called; its exceptions end nothing."""

    class Handler(logging.Handler):
        n_tokens = 0

        def emit(self, record: logging.LogRecord) -> None:
            Handler.n_tokens += len(model.tokenize(record.getMessage(), add_special=False))
            raise RuntimeError("in a handler")

    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: unraisable.append(what.exc_value))
    log.handler.setLevel(logging.CRITICAL)
    handler = Handler()
    with Model(tiny_model) as model:
        logging.getLogger(NAME).addHandler(handler)
        try:
            Model(tiny_model).close()
        finally:
            logging.getLogger(NAME).removeHandler(handler)
    assert Handler.n_tokens > 10
    assert {str(error) for error in unraisable} == {"in a handler"}


ENDS = """
import logging, sys, threading, time
logging.basicConfig(level=logging.DEBUG, stream=open("log", "w"))
from h2o_llama import Llama

def work():
    for _ in range(10):
        with Llama(sys.argv[1], n_ctx=64, n_threads=1, h2o=None) as llm:
            llm.eval([1, 2, 3])

for _ in range(3):
    threading.Thread(target=work).start()
llm = Llama(sys.argv[1], n_ctx=64, n_threads=1)  # never closed
"""


def test_the_end_of_the_interpreter(tiny_model: Path, tmp_path: Path) -> None:
    """With an open model, and threads that still log when the main one has ended."""
    run = subprocess.run(
        [sys.executable, "-c", ENDS, tiny_model], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert (tmp_path / "log").read_text().count("llama_model_loader: loaded meta data") == 31
