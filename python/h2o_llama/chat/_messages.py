"""Checks of what a chat is asked with, before llama.cpp's own code reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from h2o_llama._internal import check
from h2o_llama.grammar import schema_text

ROLES = ("system", "developer", "user", "assistant", "tool")

Message = Mapping[str, Any]
Tool = Mapping[str, Any]


def check_messages(owner: str, messages: Sequence[Message], images: bool = False) -> list[dict[str, Any]]:
    """Messages as OpenAI has them, with images or text alone. Raises ValueError, naming the message."""
    if not isinstance(messages, list | tuple) or not messages:
        raise check.bad_argument(owner, "messages", "a list of messages, not empty", messages)
    for i, message in enumerate(messages):
        name = f"messages[{i}]"
        if not isinstance(message, Mapping):
            raise check.bad_argument(owner, name, 'a dict such as {"role": "user", "content": "Hello"}', message)
        role = check.choice(owner, f"{name}['role']", message.get("role"), ROLES)
        _check_content(owner, name, message.get("content"), role != "assistant", images)
        calls = message.get("tool_calls")
        if calls is not None and not isinstance(calls, list | tuple):
            raise check.bad_argument(owner, f"{name}['tool_calls']", "a list", calls)
        if message.get("content") is None and not calls:
            raise check.bad_argument(owner, f"{name}['content']", "text, where there are no tool_calls", None)
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def _check_content(owner: str, name: str, content: object, is_needed: bool, images: bool) -> None:
    if isinstance(content, str) or (content is None and not is_needed):
        return
    if not isinstance(content, list | tuple):
        raise check.bad_argument(owner, f"{name}['content']", "text, or a list of parts", content)
    for part in content:
        if not (_is_text(part) or (images and is_image(part))):
            expected = 'of parts such as {"type": "text", "text": "Hello"}'
            expected += (
                ' and {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}; sound is not supported'
                if images
                else "; images and sound are not supported here"
            )
            raise check.bad_argument(owner, f"{name}['content']", expected, part)


def _is_text(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def is_image(part: object) -> bool:
    """Whether it is a part of a message as OpenAI has it for images; llama-cpp-python takes the URL alone, too."""
    return isinstance(part, Mapping) and part.get("type") == "image_url" and isinstance(image_url(part), str)


def image_url(part: Mapping[str, Any]) -> Any:
    """The URL, or the path, in such a part."""
    given = part.get("image_url")
    return given.get("url") if isinstance(given, Mapping) else given


def check_tools(owner: str, tools: Sequence[Tool] | None) -> list[Tool]:
    """Tools as OpenAI has them; none is an empty list."""
    if tools is None:
        return []
    if not isinstance(tools, list | tuple):
        raise check.bad_argument(owner, "tools", "a list of tools, or None", tools)
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            expected = 'a dict {"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}'
            raise check.bad_argument(owner, f"tools[{i}]", expected, tool)
    return list(tools)


def choose_tools(owner: str, tools: list[Tool], tool_choice: str | Mapping[str, Any] | None) -> tuple[list[Tool], str]:
    """The tools that may be called, and "auto", "none" or "required"."""
    names = [tool["function"]["name"] for tool in tools]
    if tool_choice is None:
        return tools, "auto"
    if isinstance(tool_choice, Mapping):
        function = tool_choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if name not in names:
            raise check.bad_argument(owner, "tool_choice", f"of a function among tools ({names})", tool_choice)
        return [tools[names.index(name)]], "required"
    choice = check.choice(owner, "tool_choice", tool_choice, ("auto", "none", "required"))
    if choice == "required" and not tools:
        raise ValueError(f"[{owner}] tool_choice='required' needs tools")
    return tools, choice


def response_schema(owner: str, response_format: Any) -> str:
    """The JSON schema that an answer must follow, as JSON; empty if it is free."""
    if response_format is None:
        return ""
    if hasattr(response_format, "model_json_schema"):
        return schema_text(owner, response_format)
    if not isinstance(response_format, Mapping):
        raise check.bad_argument(owner, "response_format", 'a dict such as {"type": "json_object"}', response_format)
    kind = check.choice(
        owner, "response_format['type']", response_format.get("type"), ("text", "json_object", "json_schema")
    )
    if kind == "text":
        return ""
    if kind == "json_object":
        return schema_text(owner, response_format.get("schema") or {"type": "object"})
    given = response_format.get("json_schema")
    schema = given.get("schema") if isinstance(given, Mapping) else None
    if schema is None:
        expected = 'a dict {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}'
        raise check.bad_argument(owner, "response_format", expected, response_format)
    return schema_text(owner, schema)
