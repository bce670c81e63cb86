"""Several processes of this machine share the documents: `h2o-llama batch --workers`."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Generator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from h2o_llama._internal.cpus import available_cpus
from h2o_llama.batch._answering import Answerer
from h2o_llama.batch._answers import Answer
from h2o_llama.batch._inputs import BatchSettings, Question
from h2o_llama.errors import H2OError
from h2o_llama.sequence._evaluation import Progress

_answerers: list[Answerer] = []
"""Of this process, if it is a worker: one."""


def answer_locally(
    files: Mapping[str, Path],
    questions: Mapping[str, list[Question]],
    *,
    model: str | os.PathLike[str],
    settings: BatchSettings,
    workers: int,
    n_threads: int | None,
    progress: Progress,
    **options: Any,
) -> Generator[Answer, None, None]:
    """Answers about files, each with questions of its own.

    `options` are passed to `Answerer`. By default the workers share the machine's threads. `progress` is not called:
    they read several documents at once.
    """
    if not files:
        return
    options = {"n_threads": n_threads or max(1, available_cpus() // workers), **options}
    with Answerer(model, settings, **options):
        pass  # raises errors of model or options here, not in a worker
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start, (model, settings, options))
    try:
        answering = [pool.submit(_answer, name, path, questions[name]) for name, path in files.items()]
        for done in as_completed(answering):
            yield from done.result()
    except BrokenProcessPool as error:
        raise H2OError(
            "[batch] a worker has died, possibly for lack of memory. Its answers are kept: run it again, with fewer "
            "workers"
        ) from error
    except BaseException:  # Ctrl-C, or nobody wants more
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown()


def _start(model: str | os.PathLike[str], settings: BatchSettings, options: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    _answerers.append(Answerer(model, settings, **options))


def _answer(name: str, path: Path, questions: list[Question]) -> list[Answer]:
    return list(_answerers[0].answer_file(name, path, questions))
