"""The same questions about many documents, on the machines of a Ray cluster; needs `pip install "h2o-llama[ray]"`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from h2o_llama._internal import check
from h2o_llama.batch import Answerer, BatchSettings, Document, Question, make_questions
from h2o_llama.batch._answers import ANSWER_TYPES, Answer

try:
    import pyarrow
    import ray
    import ray.data
except ImportError as error:
    raise ImportError('[h2o_llama.batch.ray] needs Ray Data: pip install "h2o-llama[ray]"') from error

_OWNER = "h2o_llama.batch.ray"

_MAX_RETRIES = 3
"""So often a block is tried again whose worker has died: another worker may die of the same document."""

_ARROW_TYPES = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), dict: pyarrow.string()}
_SCHEMA = pyarrow.schema([(name, _ARROW_TYPES[kind]) for name, kind in ANSWER_TYPES.items()])


class AnswerDocuments:
    """A model that answers questions about the documents of batches: a callable class for `Dataset.map_batches`.

    Batches are pyarrow tables. A row is a document, as "text" or as the "path" of a file that the worker can read; it
    may have a name, "document", and the ids of its "questions", if not all are to be asked. Rows of the result are
    lines of `h2o-llama batch`, with "settings" as JSON. Parameters are as in `answer_documents`, errors as of
    `batch.Answerer`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        questions: Iterable[str | Question],
        settings: BatchSettings,
        **options: Any,
    ) -> None:
        self._questions = make_questions(questions)
        self._answerer = Answerer(model, settings, **options)

    def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        """Answer all questions about all documents of a batch."""
        if not isinstance(batch, pyarrow.Table):
            raise ValueError(f'[{_OWNER}] batches must be tables: pass batch_format="pyarrow" to map_batches')
        answers = [answer for row in batch.to_pylist() for answer in self._answer(row)]
        rows = [answer | {"settings": json.dumps(answer["settings"])} for answer in answers]
        return pyarrow.Table.from_pylist(rows, schema=_SCHEMA)

    def _answer(self, row: dict[str, Any]) -> Iterator[Answer]:
        text, path = row.get("text"), row.get("path")
        if (text is None) == (path is None):
            raise ValueError(f"[{_OWNER}] a row must have either a text or a path, got {', '.join(row)}")
        name = str(row.get("document") or path or "")
        ids = row.get("questions")
        questions = [question for question in self._questions if ids is None or question.id in ids]
        if text is None:
            return self._answerer.answer_file(name, str(path), questions)
        return self._answerer.answer(Document.of_text(name, text), questions)


def answer_documents(
    documents: Any,
    questions: Iterable[str | Question],
    *,
    model: str | os.PathLike[str],
    workers: int,
    n_threads: int = 1,
    settings: BatchSettings | None = None,
    **options: Any,
) -> Any:
    """Answers about documents, by workers that have the model each.

    A failure of a single document, such as one that is too long, is an answer with an "error". A worker that dies is
    started again by Ray Data, and reads the documents of its block again, up to three times: only one document is lost
    with it where each block is a document, as blocks of files are. A block that four workers have died of
    ends the job, and so does any other exception, unless `DataContext.max_errored_blocks` allows for some.

    Parameters
    ----------
    documents : ray.data.Dataset, mapping from names to paths, or iterable of paths
        Rows as in `AnswerDocuments`, best in blocks of few; or files that the workers can read.
    questions : iterable of str or Question
        The questions about every document.
    model : str or os.PathLike
        As in `Llama`, on the workers' machines.
    workers : int
        Actors; each reserves `n_threads` CPUs of the cluster.
    n_threads : int, default 1
        Threads of a worker.
    settings : BatchSettings, optional
        How, by default `BatchSettings()`.
    **options
        n_ctx, n_gpu_layers, parallel, library, lora and RoPE options, as in `batch.Answerer`.

    Returns
    -------
    ray.data.Dataset
        Rows of answers, in any order. Nothing is computed before they are asked for, by `iter_rows` or `write_json`
        for example.
    """
    check.integer(_OWNER, "workers", workers, 1)
    check.integer(_OWNER, "n_threads", n_threads, 1)
    if not isinstance(documents, ray.data.Dataset):
        named = documents if isinstance(documents, Mapping) else {os.fspath(path): path for path in documents}
        rows = [{"document": name, "path": str(Path(path).absolute())} for name, path in named.items()]
        documents = ray.data.from_items(rows, override_num_blocks=len(rows))
    known = {"model": os.fspath(model), "questions": make_questions(questions), "n_threads": n_threads}
    return documents.map_batches(
        AnswerDocuments,
        batch_size=1,
        batch_format="pyarrow",
        fn_constructor_kwargs=known | {"settings": settings or BatchSettings()} | options,
        # one block at a time: a second one would wait for its worker while others have nothing to do
        compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
        num_cpus=n_threads,
        max_task_retries=_MAX_RETRIES,
    )
