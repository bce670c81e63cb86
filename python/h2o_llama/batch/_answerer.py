"""A document is read once, and every question is a fork of it; in this process, or in several."""

import multiprocessing
import os
import signal
import time
import zlib
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, Unpack

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.machine import available_cpus
from h2o_llama._prompt import shared_prefix
from h2o_llama._sequence import Sequence
from h2o_llama._thoughts import check_think, thoughts_of
from h2o_llama.batch._answers import KEYS, Answer, BatchSettings, Document, Question, read_file
from h2o_llama.chat._generation import AnswerText
from h2o_llama.chat._known import known_day
from h2o_llama.config import H2OConfig, named_config, uses_gpu
from h2o_llama.documents import document_messages
from h2o_llama.errors import H2OError
from h2o_llama.library._library import Library, open_library
from h2o_llama.llama import Llama
from h2o_llama.model import Model
from h2o_llama.models._files import Lora
from h2o_llama.models._template import LONGEST_TAIL, PLAIN_STOPS, parse_deltas, parsed_message, plain_prompt
from h2o_llama.models.rope import RopeOptions
from h2o_llama.sequence._engine import Progress, resolved_matmul_kernels

_OWNER = "batch"


@dataclass
class Asked:
    """A document and a question, as a model is asked: token ids, int32 [n]; and how far its answer is.

    The parser tells the answer from what the model thought; without one all is answer. `names` are the document's and
    the question's.
    """

    ids: NDArray[np.int32]
    said: AnswerText
    parser: _core.ChatParser | None = None
    names: dict[str, str] = field(default_factory=dict)
    n_cached: int = 0
    text: str = ""

    def answer(self, is_partial: bool) -> tuple[str, str]:
        """Answer and thoughts in what the model said."""
        text = self.text + self.said.finish()
        if self.parser is None:
            return text.strip(), ""
        with suppress(ValueError):  # a text without the model's format is an answer all the same
            parse_deltas(self.parser, text, is_partial)
        message = parsed_message(self.parser) or {"content": text}
        answer, thoughts = message.get("content") or "", message.get("reasoning_content") or ""
        return answer.strip(), thoughts


class Prompts:
    """How a model is asked about a document: by its chat template, or in plain text where it has none."""

    def __init__(self, model: Model, think: bool | int | None = None) -> None:
        self._budget, self._kwargs = check_think(_OWNER, think, None)
        self._weights, self._model = model, model._handle

    def shared(self, begin: str | list[Any], day: str | None = None) -> NDArray[np.int32]:
        """The tokens with which every question about a text, or after these messages, begins."""
        a, b = (self.ask(begin, question, day).ids for question in "AB")
        return a[: shared_prefix(a, b)]

    def ask(self, begin: str | list[Any], question: str, day: str | None = None) -> Asked:
        """A question about a text, or after these messages."""
        if isinstance(begin, str):
            if not self._weights.chat_template:
                ids = self._model.tokenize(plain_prompt(begin, question).encode(), True, False)
                return Asked(np.array(ids, dtype=np.int32), AnswerText(self._model, PLAIN_STOPS))
            begin = document_messages(begin)
        messages = [*begin, {"role": "user", "content": question}]
        prompt = self._weights._template.apply(_OWNER, messages, kwargs=self._kwargs, day=day)
        thoughts = thoughts_of(self._model, prompt.core, self._budget)
        said = AnswerText(self._model, prompt.core.stops, prompt.core, thoughts)
        return Asked(np.array(prompt.ids, dtype=np.int32), said, prompt.core.parser(""))


def check_length(model: Model, h2o: Any, name: str, n_tokens: int, n_answer: int, n_ctx: int = 0) -> None:
    """Raise ValueError, with what helps, if n_ctx or the model are too small for a text, a question and an answer."""
    n_trained, n, evicts = model.n_ctx_train, n_tokens + n_answer, isinstance(h2o, H2OConfig) and h2o.evict
    has = f"{name} has {n_tokens:,} tokens{f', its answer up to {n_answer:,}' if n_answer > 1 else ''}, but"
    if not (evicts and h2o.has_bounded_memory) and n > n_trained:
        cut = "" if name.lower().endswith(".pdf") else f" (`head -c {3 * n_trained} FILE > part.txt`)"
        helps = [f"cut it{cut}", "take a model that reads longer texts"]
        scaled = f"{model.metadata.get('general.architecture')}.rope.scaling.type" in model.metadata or model._rope
        if n <= 4 * n_trained and not scaled and not model._handle.n_learned_positions:
            scale = 0.5 if n <= 2 * n_trained else 0.25
            helps += [f"or scale positions: rope_scaling_type=yarn rope_freq_scale={scale} yarn_orig_ctx={n_trained}"]
        last = "evict reads all of it, but an answer about dropped tokens is a guess"
        last = "cold_store and dense_layers do not help, as they keep the positions of all tokens" if evicts else last
        raise ValueError(f"{has} this model reads {n_trained:,}: {', '.join(helps)}; {last}")
    if n_ctx and n > n_ctx:
        raise ValueError(f"{has} n_ctx={n_ctx} holds fewer: use a larger n_ctx, or a shorter text")


def quotable(llm: Llama) -> str:
    """A note about a text that was evicted in part."""
    h2o, kv = llm.h2o, llm.kv
    if h2o is None or not h2o.evict or h2o.cold_store is not None or kv.chunk_index < 2:
        return ""
    n, n_memory = kv.n_tokens - (kv.chunk_index - 1) * kv.chunk_size, kv.memory_size - h2o.local_window
    return (
        f" [only the last {n + h2o.local_window:,} tokens, and {n_memory:,} of the memory set, can be quoted: "
        "an answer about the rest is a guess]"
    )


_ROOM = 4096
"""A context holds a multiple of this many tokens: it is made anew for a longer document."""


class Answerer:
    """A model that answers questions about documents, one document at a time. Raises as `Llama`.

    Parameters
    ----------
    model, n_threads, n_gpu_layers, library, lora, **rope
        As in `Llama`. Documents are kept in the library once read, and found again.
    settings : BatchSettings
        How.
    n_ctx : int, default 0
        The most tokens of a document, a question and its answer together; 0 is what the model was trained for, and no
        limit with eviction.
    parallel : int, default 4
        How many questions generate at once. Each takes as much memory as the document does.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        settings: BatchSettings,
        *,
        n_ctx: int = 0,
        n_threads: int | None = None,
        n_gpu_layers: int | None = None,
        parallel: int = 4,
        library: Library | bool | str | os.PathLike[str] | None = None,
        lora: Lora = None,
        **rope: Unpack[RopeOptions],
    ) -> None:
        h2o = named_config(_OWNER, settings.h2o, uses_gpu(n_gpu_layers or 0))
        self.settings = replace(settings, h2o=h2o)
        self._h2o: Any = "auto" if settings.h2o == "auto" else h2o  # dense where the model has nothing else
        self._n_threads = n_threads
        self._parallel = check.integer(_OWNER, "parallel", parallel, 1, 255)
        self._library = open_library(_OWNER, library)
        matmul_kernels = resolved_matmul_kernels(h2o, "auto")
        self._weights = Model(model, n_gpu_layers=n_gpu_layers, matmul_kernels=matmul_kernels, lora=lora, **rope)
        self._prompts = Prompts(self._weights, settings.think)
        is_bounded = h2o is not None and h2o.has_bounded_memory
        n_most = check.integer(_OWNER, "n_ctx", n_ctx, 0)
        self._n_most = n_most or (check.INT32_MAX if is_bounded else self._weights.n_ctx_train)
        # what cannot be had fails here, before any document
        self._llm = self._open(n_most if is_bounded else min(_ROOM, self._n_most))

    def close(self) -> None:
        """Free the model."""
        self._llm.close()
        self._weights.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def fingerprint(self) -> str:
        """The model's, see `model_fingerprint`."""
        return self._weights.fingerprint

    def answer(
        self, document: Document, questions: list[Question], progress: Progress | None = None
    ) -> Iterator[Answer]:
        """Each answer once it is complete; a failure is an answer with an "error".

        The document is read when the first answer is asked for. `progress` is called as progress(n_done, n) with its
        tokens.
        """
        try:
            yield from self._answer(document, questions, progress)
        except (H2OError, MemoryError, ValueError) as error:
            yield self._tell(document=document.name, sha256=document.sha256, error=str(error) or "not enough memory")

    def answer_file(
        self, name: str, path: str | os.PathLike[str], questions: list[Question], progress: Progress | None = None
    ) -> Iterator[Answer]:
        """The same for a file."""
        try:
            document = read_file(name, path)
        except (OSError, ValueError) as error:
            yield self._tell(document=name, error=str(error))
            return
        yield from self.answer(document, questions, progress)

    def _answer(self, document: Document, questions: list[Question], progress: Progress | None) -> Iterator[Answer]:
        shared = self._prompts.shared(document.text)
        day = known_day(self._llm._state, shared, lambda day: self._prompts.shared(document.text, day))
        if day is not None:
            shared = self._prompts.shared(document.text, day)
        limits = self.settings.max_tokens, self._n_most
        check_length(self._weights, self.settings.h2o, document.name, len(shared) + 1, *limits)
        asked = []
        for question in questions:
            task = self._prompts.ask(document.text, question.text, day)
            task.names = {"document": document.name, "sha256": document.sha256}
            task.names |= {"question_id": question.id, "question": question.text}
            try:
                check_length(self._weights, self.settings.h2o, document.name, len(task.ids), *limits)
                asked.append(task)
            except ValueError as error:
                yield self._tell(**task.names, error=str(error))
        if not asked:
            return
        n_thoughts = max(task.said.thoughts.budget if task.said.thoughts else 0 for task in asked)
        self._make_room(max(len(task.ids) for task in asked) + self.settings.max_tokens + n_thoughts)
        start = time.perf_counter()
        self._llm.reset()
        self._llm.text_name = document.name
        if len(shared) > 0:
            self._llm.eval(shared, progress=progress)
        known = {
            "document_seconds": time.perf_counter() - start,
            "library_tokens": self._llm.n_cached,
            "note": quotable(self._llm).strip(" []") or None,
        }
        remaining = iter(asked)
        while group := list(islice(remaining, self._parallel)):
            for answer in self._generate(group):
                yield answer | known

    def _make_room(self, n: int) -> None:
        n_now = self._llm.n_ctx
        if n > n_now:
            self._llm.close()
            try:
                self._llm = self._open(min(-(-n // _ROOM) * _ROOM, self._n_most))
            except BaseException:
                self._llm = self._open(n_now)  # for other documents
                raise

    def _open(self, n_ctx: int) -> Llama:
        options: dict[str, Any] = {"n_threads": self._n_threads, "h2o": self._h2o, "library": self._library}
        return Llama(self._weights, n_ctx=n_ctx, n_seq_max=1 + self._parallel, **options)

    # --- the questions

    def _generate(self, group: list[Asked]) -> Iterator[Answer]:
        """Answers to a few questions, which are generated together."""
        start, first = time.perf_counter(), group[0].names
        names = f"{self.settings.seed} {first['sha256']} {first['question_id']}"
        seed = zlib.crc32(names.encode()) % _core.RANDOM_SEED  # of these questions about this document
        with ExitStack() as forks:
            tasks: dict[Sequence, Asked] = {}
            prompts = {}
            for task in group:
                fork = forks.enter_context(self._llm.fork())
                task.n_cached = fork.reuse(task.ids)
                prompts[fork] = task.ids[task.n_cached :]
                tasks[fork] = task
            generation = self._llm.generate_many(
                prompts, dense_tail=LONGEST_TAIL, temperature=self.settings.temperature, seed=seed
            )
            for fork, task in tasks.items():
                if (thoughts := task.said.thoughts) is not None:
                    thoughts.leave_room(self._llm.n_ctx - len(task.ids), self.settings.max_tokens)
                    generation.follow(fork, thoughts)
            for tokens in generation:
                for sequence in [sequence for sequence in tasks if sequence not in tokens]:
                    yield self._finish(tasks.pop(sequence), start)
                for sequence, token in tokens.items():
                    task = tasks[sequence]
                    task.text += task.said.add(token)
                    if task.said.stopped or task.said.is_full(self.settings.max_tokens):
                        generation.stop(sequence)
                        yield self._finish(tasks.pop(sequence), start)
            for task in tasks.values():
                yield self._finish(task, start)

    def _finish(self, task: Asked, start: float) -> Answer:
        is_full = task.said.is_full(self.settings.max_tokens) and not task.said.stopped
        is_cut_off = is_full or len(task.ids) + task.said.n_tokens >= self._llm.n_ctx
        answer, reasoning = task.answer(is_cut_off)
        return self._tell(
            **task.names,
            answer=answer,
            reasoning=reasoning,
            finish_reason="length" if is_cut_off else "stop",
            cached_tokens=task.n_cached,
            read_tokens=len(task.ids) - task.n_cached,
            generated_tokens=task.said.n_tokens,
            seconds=time.perf_counter() - start,
        )

    def _tell(self, **known: Any) -> Answer:
        origin = {"fingerprint": self.fingerprint, "settings": self.settings.to_json()}
        return dict.fromkeys(KEYS) | {"model": Path(self._weights.model_path).name} | origin | known


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
    """Answers about files, each with its own questions. With `workers`, other processes compute them.

    `options` are passed to `Answerer`. By default the workers share the machine's threads. They do not call `progress`,
    as they read several documents at once.
    """
    if not files:
        return
    if workers == 0:
        with Answerer(model, settings, n_threads=n_threads, **options) as answerer:
            for name, path in files.items():
                yield from answerer.answer_file(name, path, questions[name], progress)
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
