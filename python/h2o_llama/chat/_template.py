"""From messages to a prompt, by the model's chat template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama.chat._tokens import ChatTokenizer, replaced, texts_of, unused_characters
from h2o_llama.chat.messages import Tool
from h2o_llama.sequence._rewinding import n_shared

ABOUT_A_DOCUMENT = "Answer questions about this text:\n\n"
"""What a model is told before a document, in the system's message."""

LONGEST_TAIL = 512
"""Tokens of the last turn that attend to everything, at most: half a chunk of the default size."""


@dataclass(frozen=True)
class ChatPrompt:
    """What a template makes of messages: text and tokens, and in `core` what the answer needs."""

    core: _core.ChatPrompt
    _tokenize: Callable[[], list[int]]

    @property
    def text(self) -> str:
        return self.core.text

    @cached_property
    def ids(self) -> list[int]:
        """Token ids, and IMAGE for each image. Names of special tokens in messages are text, not these tokens."""
        return self._tokenize()


class ChatTemplate:
    """The template of one model: a Jinja template, "chatml", or, without a source, its own.

    Raises ValueError if the model has none, or it is no template.
    """

    def __init__(self, model: _core.Model, source: str | None) -> None:
        self._core = _core.ChatTemplate(model, source or "")
        self._tokenizer = ChatTokenizer(model)

    def apply(
        self,
        owner: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool] = (),
        tool_choice: str = "auto",
        parallel_tool_calls: bool = False,
        json_schema: str = "",
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
        marker: str = "",
    ) -> ChatPrompt:
        """The prompt, and what its answer needs. Messages and tools are checked; `marker` stands there for images."""
        if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs)):
            raise check.bad_argument(owner, "chat_template_kwargs", "a dict with names as keys", kwargs)
        if tools and tool_choice != "none" and not self._core.supports_tools:
            raise ValueError(
                f"[{owner}] this model's chat template has no place for tools: use a model that was trained for them, "
                "or pass a chat_template that tells it about them to Llama"
            )
        given: dict[str, Any] = {
            "tools": check.json_text(owner, "tools", list(tools)),
            "tool_choice": tool_choice,
            "parallel_tool_calls": parallel_tool_calls,
            "json_schema": json_schema,
            "add_generation_prompt": add_generation_prompt,
            "kwargs": {k: check.json_text(owner, "chat_template_kwargs", v) for k, v in (kwargs or {}).items()},
        }

        def render(messages: Sequence[Mapping[str, Any]]) -> _core.ChatPrompt:
            return self._core.apply(messages=check.json_text(owner, "messages", list(messages)), **given)

        core = render(messages)
        return ChatPrompt(core, lambda: self._tokenize(core.text, messages, render, marker))

    def tokenize(self, text: str, marker: str = "") -> list[int]:
        """Token ids of a template's text, in which every name of a special token is that token; IMAGE for markers."""
        return self._tokenizer.tokenize(text, marker)

    def _tokenize(
        self,
        text: str,
        messages: Sequence[Mapping[str, Any]],
        render: Callable[[Sequence[Mapping[str, Any]]], _core.ChatPrompt],
        marker: str,
    ) -> list[int]:
        ids = self.tokenize(text, marker)
        said = texts_of(messages)
        names = [name for name in self._tokenizer.special_names(ids) if any(name in part for part in said)]
        if not names:
            return ids
        stand_ins = unused_characters(names, text)
        return self._tokenizer.tokenize_around(render(replaced(messages, stand_ins)).text, stand_ins, marker)

    def last_turn(self, owner: str, ids: Sequence[int], messages: Sequence[Mapping[str, Any]], **options: Any) -> int:
        """How many tokens at the end of the prompt `ids` are the last user message's and what follows it.

        What is before them is what the template makes of the messages before that one.
        """
        users = [i for i, message in enumerate(messages) if message["role"] == "user"]
        if not users or users[-1] == 0:
            return len(ids)
        try:
            before = self.apply(owner, messages[: users[-1]], add_generation_prompt=False, **options)
        except ValueError:  # a template may refuse a chat that ends there
            return len(ids)
        return len(ids) - n_shared(ids, before.ids)


def parse_deltas(parser: _core.ChatParser, piece: str, is_partial: bool) -> list[dict[str, Any]]:
    """What more text adds to the message, as OpenAI's deltas."""
    deltas: list[dict[str, Any]] = json.loads(parser.update(piece, is_partial))
    return deltas


def parsed_message(parser: _core.ChatParser) -> dict[str, Any]:
    """The message as far as the parser understands it; empty if it understands nothing."""
    message: dict[str, Any] = json.loads(parser.message)
    is_empty = not (message.get("content") or message.get("tool_calls") or message.get("reasoning_content"))
    return {} if is_empty else message
