"""Several processes of this machine share the documents: `h2o-llama batch --workers`."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from h2o_llama._internal.cpus import available_cpus
from h2o_llama.batch._answering import Answerer
from h2o_llama.batch._answers import Answer
from h2o_llama.batch._questions import Question
from h2o_llama.batch._settings import BatchSettings
from h2o_llama.errors import H2OError
from h2o_llama.sequence._evaluation import Progress

_OBJECT_STORE_BYTES = 128 << 20  # answers, and names of documents


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

    `options` are those of `answer_documents`. By default the workers share the machine's threads. `progress` is not
    called: they read several documents at once.
    """
    rows = [
        {"document": name, "path": str(path.absolute()), "questions": [question.id for question in questions[name]]}
        for name, path in files.items()
    ]
    if not rows:
        return
    threads = n_threads or max(1, available_cpus() // workers)
    with Answerer(model, settings, n_threads=threads, **options):
        pass  # what is wrong with model or options is raised here, not by a worker
    with local_cluster(workers * threads), remembered_interrupt() as raise_if_interrupted:
        import ray.data

        from h2o_llama.batch.ray import answer_documents

        answers = answer_documents(
            ray.data.from_items(rows, override_num_blocks=len(rows)),
            {question.id: question for some in questions.values() for question in some}.values(),
            model=model,
            settings=settings,
            workers=workers,
            n_threads=threads,
            **options,
        )
        try:
            for answer in answers.iter_rows():
                yield answer | {"settings": json.loads(answer["settings"])}
                raise_if_interrupted()
        except ray.exceptions.RayActorError as error:
            raise H2OError(
                "[batch] several workers have died of the same document, one after the other, perhaps for lack of "
                "memory: it is among those without answers. What is answered is kept: run it again with fewer workers, "
                "or without the document"
            ) from error


@contextmanager
def remembered_interrupt() -> Iterator[Callable[[], None]]:
    """Raises KeyboardInterrupt after Ctrl-C whenever it is called: one that is raised at once may be lost in Ray."""
    interrupted = threading.Event()

    def interrupt(*arguments: Any) -> None:
        interrupted.set()
        signal.default_int_handler(*arguments)

    def raise_if_interrupted() -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # which signals go to
        yield raise_if_interrupted
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield raise_if_interrupted
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)


@contextmanager
def local_cluster(n_cpus: int) -> Iterator[None]:
    """A Ray cluster of processes on this machine, without a dashboard, which ends with the block.

    Ray must not be imported before: it listens on 127.0.0.1 only if it is told so then.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # whatever the system: no cluster, so nothing for others
    import ray
    import ray.data

    import h2o_llama.batch.ray  # noqa: F401 (says how to install it)

    try:
        ray.init(
            address="local",
            num_cpus=n_cpus,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            logging_level="ERROR",
            log_to_driver=False,
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        yield
    finally:
        ray.shutdown()
