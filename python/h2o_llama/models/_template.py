"""From messages to a prompt, by the model's chat template."""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.terminal import warn

IMAGE = -1
"""Stands among token ids where the text has an image's marker."""


class ChatTemplate:
    """The template of one model: a Jinja template, "chatml", or, without a source, its own.

    Raises ValueError if the model has none, or it is not a template.
    """

    def __init__(self, model: _core.Model, source: str | None) -> None:
        self._core, self._has_warned = _core.ChatTemplate(model, source or ""), False
        self.tells_day = any(word in self._core.source for word in ("strftime_now", "date_string", "datetime"))

    def apply(
        self,
        owner: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str = "auto",
        parallel_tool_calls: bool | None = None,
        json_schema: str = "",
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
        day: str | None = None,
    ) -> _core.ChatPrompt:
        """The prompt, and what its answer needs. Messages and tools are checked.

        `day` is the date that the template writes, as "2026-11-28"; by default today.
        """
        if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs)):
            raise check.bad_argument(owner, "chat_template_kwargs", "a dict with names as keys", kwargs)
        core = self._core.apply(
            messages=check.json_text(owner, "messages", list(messages)),
            tools=check.json_text(owner, "tools", list(tools)),
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            json_schema=json_schema,
            add_generation_prompt=add_generation_prompt,
            kwargs={k: check.json_text(owner, "chat_template_kwargs", v) for k, v in (kwargs or {}).items()},
            **({"now": int(time.time() if day is None else noon(day))} if self.tells_day else {}),
        )
        if (kwargs or {}).get("enable_thinking") and not core.thoughts[1] and not self._has_warned:
            self._has_warned = True
            warn(f"[{owner}] this model has no thoughts: think is ignored")
        return core


def noon(day: str) -> float:
    """Of a day such as "2026-11-28", in seconds since 1970."""
    return datetime.fromisoformat(day).replace(hour=12).timestamp()


def parse_deltas(parser: _core.ChatParser, piece: str, is_partial: bool) -> list[dict[str, Any]]:
    """What more text adds to the message, as OpenAI's deltas."""
    deltas: list[dict[str, Any]] = json.loads(parser.update(piece, is_partial))
    return deltas


def parsed_message(parser: _core.ChatParser) -> dict[str, Any]:
    """The part of the message that the parser understands, possibly empty."""
    message: dict[str, Any] = json.loads(parser.message)
    is_empty = not (message.get("content") or message.get("tool_calls") or message.get("reasoning_content"))
    return {} if is_empty else message
