"""Asking about a document."""

import collections.abc
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, overload

from typing_extensions import Unpack

from h2o_llama._internal import check
from h2o_llama.chat._generation import GenerationOptions
from h2o_llama.chat._question import Question
from h2o_llama.chat.chat_completion import ChatRun, answer_to
from h2o_llama.documents import SUFFIXES, text_of
from h2o_llama.sequence._state import HasState


class AskOptions(GenerationOptions, total=False):
    """Keyword arguments of `ask`."""

    think: bool | int | None


Source = str | os.PathLike[str]
Texts = collections.abc.Sequence[str]


@overload
def ask(
    sequence: HasState, document: Source, questions: str, *, stream: Literal[True], **options: Unpack[AskOptions]
) -> Iterator[str]: ...
@overload
def ask(  # type: ignore[overload-overlap]  # a text is a sequence of texts
    sequence: HasState, document: Source, questions: str, *, stream: Literal[False] = ..., **options: Unpack[AskOptions]
) -> str: ...
@overload
def ask(
    sequence: HasState,
    document: Source,
    questions: Texts,
    *,
    stream: Literal[False] = ...,
    **options: Unpack[AskOptions],
) -> list[str]: ...
def ask(
    sequence: HasState, document: Source, questions: str | Texts, *, stream: bool = False, **options: Unpack[AskOptions]
) -> str | list[str] | Iterator[str]:
    """Answer questions about a document, each by itself. The document is read once.

    They are asked in the form of `document_messages`, as by all commands; a model without a chat template is asked in
    plain text. The question attends to the whole document. What the sequence shares
    with the prompt is not read again, nor what the `library` has. The sequence becomes the last question and answer.

    Raises ValueError if the document has no text, or is a str that names a file, if a question is not a string, if
    there is none, or if n_ctx is too small for document, question and a token of the answer; OSError if the file cannot
    be read; H2OError if the computation fails.

    Parameters
    ----------
    document : str or os.PathLike
        The text; or the path of a file, as `h2o_llama.documents.read_document` takes it.
    questions : str or list of str
        One question, or several.
    stream : bool, default False
        Return an iterator of the answer's pieces, each when it is certain: for one question.
    **options
        As in `create_chat_completion`: max_tokens, think, stop, progress, and sampling options. The default temperature
        is 0: always the most probable token.

    Returns
    -------
    str, list of str, or iterator of str
        The answer, without thoughts and white space around it; of several questions a list of answers in the same
        order. `max_tokens` cuts answers off.

    Examples
    --------
    >>> len(llm.ask("k17=4829;", ["k17?", "Which key is there?"], max_tokens=5))
    2
    >>> with Llama("qwen2.5-coder-0.5b", library=True) as llm:  # doctest: +SKIP
    ...     llm.ask(Path("contract.pdf"), "Who signed it?")
    'Ada Lovelace signed it.'
    """
    state = sequence._state
    owner = f"{state.owner}.ask"
    asked = [questions] if isinstance(questions, str) else questions
    if not isinstance(document, str | os.PathLike):
        raise check.bad_argument(owner, "document", "a text, or a path that is not a str", document)
    if isinstance(document, str) and len(document) < 256 and "\0" not in document:
        if os.path.isfile(document):
            raise ValueError(f"[{owner}] {document!r} is a file: pass Path({document!r}); a str is the document's text")
        if not re.search(r"\s", document) and Path(document).suffix.lower() in SUFFIXES:
            raise ValueError(f"[{owner}] there is no file {document!r}; a str is the document's own text")
    if isinstance(questions, os.PathLike):
        raise ValueError(f"[{owner}] the document comes first, then the questions, got {questions!r} as questions")
    if not isinstance(asked, list | tuple) or not asked or not all(isinstance(question, str) for question in asked):
        raise check.bad_argument(owner, "questions", "a question, or a list of questions, not empty", questions)
    if check.flag(owner, "stream", stream) and not isinstance(questions, str):
        raise check.bad_argument(owner, "questions", "one question with stream=True", questions)
    text, library, state.text_name = str(document), state.engine.library, ""
    if not isinstance(document, str):
        path = Path(document).expanduser()
        state.text_name = os.path.abspath(path)
        text = text_of(path.read_bytes(), str(path), None if library is None else library.folder)
    think = options.pop("think", None)
    said: GenerationOptions = {"temperature": 0.0, **options}  # type: ignore[typeddict-unknown-key]
    first = Question.about(owner, state.engine.model, text, asked[0], think=think).on_known_day(state)

    def answers() -> Iterator[ChatRun]:
        for i, question in enumerate(asked):
            yield answer_to(owner, state, first.again(question) if i else first, **said)

    if stream:
        chunks = next(answers()).stream()
        return _stripped(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    texts = [(run.complete()["choices"][0]["message"].get("content") or "").strip() for run in answers()]
    return texts[0] if isinstance(questions, str) else texts


def _stripped(pieces: Iterable[str]) -> Iterator[str]:
    """Without white space around all of them."""
    waiting, has_begun = "", False
    for piece in pieces:
        text = waiting + piece if has_begun else piece.lstrip()
        said = text.rstrip()
        waiting = text[len(said) :]
        if said:
            has_begun = True
            yield said
