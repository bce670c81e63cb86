"""A plugin of `llm` (https://llm.datasette.io): `llm -m h2o/qwen2.5-coder-0.5b -f report.txt "Who signed it?"`.

Fragments are one document, which is read once: the next question, also by `llm -c`, finds it in the library. `-f
h2o:report.pdf` reads all kinds of files that `h2o-llama ask` reads. The rest of the package is imported when it is
used.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import llm

from h2o_llama.models._named import MODELS

if TYPE_CHECKING:
    from h2o_llama.llama import Llama

_SHORTEST_DOCUMENT = 1_000
"""Characters before the question, where llm does not say which were fragments."""


@llm.hookimpl  # type: ignore[untyped-decorator]
def register_models(register: Callable[..., None]) -> None:
    """One model for each short name."""
    for name in MODELS:
        register(H2OModel(name))


@llm.hookimpl  # type: ignore[untyped-decorator]
def register_fragment_loaders(register: Callable[..., None]) -> None:
    """`h2o:FILE`: text, PDF, HTML and more."""

    def load(path: str) -> llm.Fragment:
        from h2o_llama.documents import read_document

        return llm.Fragment(read_document(path), path)

    register("h2o", load)


class H2OModel(llm.Model):  # type: ignore[misc]
    """A model of this package, opened at the first prompt."""

    can_stream = True

    class Options(llm.Options):  # type: ignore[misc]
        """As in `Llama.create_chat_completion`."""

        max_tokens: int | None = None
        temperature: float = 0.8

    def __init__(self, name: str) -> None:
        self.model_id = f"h2o/{name}"
        self._name = name
        self._llm: Llama | None = None

    def execute(self, prompt: llm.Prompt, stream: bool, response: Any, conversation: Any) -> Iterator[str]:
        """The answer, token by token."""
        from h2o_llama.llama import Llama

        if self._llm is None:
            self._llm = Llama(self._name, library=True)
        options = prompt.options.model_dump(exclude_none=True)
        earlier = conversation.responses if conversation else []
        messages = _messages(prompt, "\n".join((earlier[0].prompt if earlier else prompt).fragments))
        for chunk in self._llm.create_chat_completion(messages, stream=True, **options):
            yield chunk["choices"][0]["delta"].get("content") or ""
            usage = chunk.get("usage")
        if usage:
            response.set_usage(input=usage["prompt_tokens"], output=usage["completion_tokens"])


def _messages(prompt: llm.Prompt, document: str) -> list[dict[str, Any]]:
    """The conversation, which llm gives as it was sent: its first message begins with the document.

    llm does not know the fragments of a conversation that it has loaded: they stand before the last line.
    """
    from h2o_llama.documents import document_messages

    turns = [(turn.role, "".join(getattr(part, "text", "") for part in turn.parts)) for turn in prompt.messages]
    said = [{"role": role, "content": text} for role, text in turns if role != "system"]
    systems = [text for role, text in turns if role == "system"]
    if not document and len(said) > 1:
        document = said[0]["content"].rpartition("\n")[0]
        document *= len(document) >= _SHORTEST_DOCUMENT
    if not document or not said[0]["content"].startswith(document):
        return [*({"role": "system", "content": text} for text in systems), *said]
    about, asked = document_messages(document, said[0]["content"][len(document) + 1 :])
    about["content"] = "\n\n".join([about["content"], *systems])  # the document comes first: it is read once
    return [about, asked, *said[1:]]
