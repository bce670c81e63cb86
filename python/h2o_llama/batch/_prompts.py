"""From a document and a question to tokens."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama.chat._document import PLAIN_STOPS, document_messages, plain_prompt
from h2o_llama.chat._generation import stop_tokens
from h2o_llama.chat._template import parse_deltas, parsed_message
from h2o_llama.model import Model
from h2o_llama.sequence._rewinding import shared_prefix

_OWNER = "batch"


@dataclass(frozen=True)
class Asked:
    """A document and a question, as a model is asked: token ids, int32 [n].

    The answer ends before any of `stops` or of the tokens `ends`; `visible` special tokens are part of it. The parser
    tells it from what the model thought; without one all is answer.
    """

    ids: NDArray[np.int32]
    stops: list[str]
    ends: frozenset[int]
    visible: frozenset[int]
    parser: _core.ChatParser | None

    def answer(self, text: str, is_partial: bool) -> tuple[str, str]:
        """Answer and thoughts in what the model said."""
        if self.parser is None:
            return text.strip(), ""
        with suppress(ValueError):  # a text without the model's format is an answer all the same
            parse_deltas(self.parser, text, is_partial)
        message = parsed_message(self.parser) or {"content": text}
        return message.get("content") or "", message.get("reasoning_content") or ""


class Prompts:
    """How a model is asked about a document: by its chat template, or in plain text where it has none."""

    def __init__(self, model: Model) -> None:
        self._model = model._handle
        self._template = model._template if model.chat_template else None

    def shared(self, text: str) -> NDArray[np.int32]:
        """The tokens with which every question about a text begins: all before the question's message."""
        asked = self.ask(text, "A").ids
        before = self._before(text)
        if before is None:
            return asked[: shared_prefix(asked, self.ask(text, "B").ids)]
        return asked[: shared_prefix(asked, before)]

    def _before(self, text: str) -> list[int] | None:
        """The document without a question; None where the template puts both into one message."""
        if self._template is None:
            return self._model.tokenize(text.encode(), True, False)
        try:
            before = self._template.apply(_OWNER, document_messages(text), add_generation_prompt=False)
        except ValueError:  # a template may refuse a chat without a user
            return None
        return before.ids if text.strip() in before.text else None

    def ask(self, text: str, question: str) -> Asked:
        """A question about a text."""
        if self._template is None:
            ids = self._model.tokenize(plain_prompt(text, question).encode(), True, False)
            return Asked(np.array(ids, dtype=np.int32), PLAIN_STOPS, frozenset(), frozenset(), None)
        prompt = self._template.apply(_OWNER, document_messages(text, question))
        return Asked(
            np.array(prompt.ids, dtype=np.int32),
            prompt.core.stops,
            stop_tokens(self._model, prompt.core.stops),
            frozenset(prompt.core.preserved_tokens),
            prompt.core.parser(""),
        )
