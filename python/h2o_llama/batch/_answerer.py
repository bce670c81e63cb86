"""A document is read once, and every question is a fork of it."""

import os
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from typing_extensions import Self, Unpack

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama.batch._answers import KEYS, Answer, BatchSettings, Document, Question, read_file
from h2o_llama.chat._generation import Generation, GenerationOptions, quotable
from h2o_llama.chat._question import Question as ChatQuestion
from h2o_llama.chat._question import check_length
from h2o_llama.chat.chat_completion import answer_to
from h2o_llama.config import named_config, uses_gpu
from h2o_llama.errors import H2OError
from h2o_llama.library._library import Library, open_library
from h2o_llama.llama import Llama
from h2o_llama.model import Model
from h2o_llama.models._files import Lora
from h2o_llama.models.rope import RopeOptions
from h2o_llama.sequence._engine import Progress, resolved_matmul_kernels

_OWNER = "batch"

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
            document = read_file(name, path, self._library)
        except (OSError, ValueError) as error:
            yield self._tell(document=name, error=str(error))
            return
        yield from self.answer(document, questions, progress)

    def _answer(self, document: Document, questions: list[Question], progress: Progress | None) -> Iterator[Answer]:
        about = partial(ChatQuestion.about, _OWNER, self._weights, document.text, think=self.settings.think)
        names: dict[ChatQuestion, dict[str, str]] = {}
        first = about(questions[0].text).on_known_day(self._llm._state)
        limits = self.settings.max_tokens, self._n_most
        fits = partial(check_length, self._weights, self.settings.h2o, document.name, document.text)
        fits(first.n_shared + 1, *limits)
        for i, question in enumerate(questions):
            task = first.again(question.text) if i else first
            told = {"document": document.name, "sha256": document.sha256}
            told |= {"question_id": question.id, "question": question.text}
            try:
                fits(len(task.prompt), *limits)
                names[task] = told
            except ValueError as error:
                yield self._tell(**told, error=str(error))
        if not names:
            return
        n_thoughts = first.budget if first.form and first.form.thoughts[1] else 0
        self._make_room(max(len(task.prompt) for task in names) + self.settings.max_tokens + n_thoughts)
        start = time.perf_counter()
        self._llm.reset()
        self._llm.text_name = document.name
        if first.n_shared > 0:
            self._llm.eval(first.shared, progress=progress)
        known = {
            "document_seconds": time.perf_counter() - start,
            "library_tokens": self._llm.n_cached,
            "note": quotable(self._llm._state).strip(" []") or None,
        }
        remaining = iter(names.items())
        while group := dict(islice(remaining, self._parallel)):
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

    def _generate(self, group: dict[ChatQuestion, dict[str, str]]) -> Iterator[Answer]:
        """Answers to a few questions, which are generated together."""
        start, settings = time.perf_counter(), self.settings
        first = next(iter(group.values()))
        names = f"{settings.seed} {first['sha256']} {first['question_id']}"
        seed = zlib.crc32(names.encode())  # of these questions about this document
        with ExitStack() as forks:
            runs = {}
            for i, (question, told) in enumerate(group.items()):
                state = forks.enter_context(self._llm.fork())._state
                options: GenerationOptions = {"max_tokens": settings.max_tokens, "temperature": settings.temperature}
                options["seed"] = (seed + i) % _core.RANDOM_SEED
                run = answer_to(_OWNER, state, question, **options)
                runs[run.generation] = run, told
            for generation, pieces in Generation.together(list(runs)):
                run, told = runs[generation]
                said, usage = run.complete(pieces)["choices"][0], generation.usage()
                yield self._tell(
                    **told,
                    answer=(said["message"].get("content") or "").strip(),
                    reasoning=(said["message"].get("reasoning_content") or "").strip(),
                    finish_reason=generation.finish_reason,
                    cached_tokens=generation.n_cached,
                    read_tokens=len(generation.prompt) - generation.n_cached,
                    generated_tokens=usage["completion_tokens"],
                    seconds=time.perf_counter() - start,
                )

    def _tell(self, **known: Any) -> Answer:
        origin = {"fingerprint": self.fingerprint, "settings": self.settings.to_json()}
        return dict.fromkeys(KEYS) | {"model": Path(self._weights.model_path).name} | origin | known
