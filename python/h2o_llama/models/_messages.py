"""Checks of what a chat is asked with, before llama.cpp's own code reads it, and the images in its messages."""

import base64
import binascii
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes, urlsplit
from urllib.request import url2pathname

import numpy as np

from h2o_llama._internal import check
from h2o_llama._prompt import Prompt
from h2o_llama.grammar import schema_text
from h2o_llama.models._template import IMAGE

if TYPE_CHECKING:
    from h2o_llama.models._projector import Projector

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


Messages = Sequence[Mapping[str, Any]]

_MOST_BYTES = 64 << 20
"""Of an image's file."""


class ChatImages:
    """The images of a chat, and its messages with a marker in the place of each.

    Files are read below `folder` only. Raises ValueError, naming the message, if an image cannot be read; OSError if
    its file cannot.
    """

    def __init__(
        self, owner: str, projector: "Projector | None", messages: Messages, folder: str | None = None
    ) -> None:
        self._owner = owner
        self._images: list[Prompt] = []
        marker = f"<image {secrets.token_hex(8)}>"  # which nobody can write into a message
        self.messages: list[dict[str, Any]] = []
        for i, message in enumerate(messages):
            parts = content = message.get("content")
            if isinstance(content, list | tuple):
                parts = [*content]
                for j, part in enumerate(content):
                    if is_image(part):
                        where = f"[{owner}] messages[{i}]['content'][{j}]"
                        self._images.append(_encoded(where, projector, part, folder))
                        parts[j] = {"type": "media_marker", "text": marker}
            self.messages.append({**message, "content": parts} if "content" in message else {**message})
        self.marker = marker if self._images else ""

    def insert(self, ids: Sequence[int]) -> Prompt:
        """A chat's token ids, or the first of them, with the images where IMAGE stands."""
        parts: list[Prompt] = []
        start = 0
        places = [i for i, id_ in enumerate(ids) if id_ == IMAGE]
        if len(places) > len(self._images):
            raise ValueError(f"[{self._owner}] the chat template repeats images: {len(places)} for {len(self._images)}")
        for place, image in zip(places, self._images, strict=False):
            parts += [_tokens(ids[start:place]), image]
            start = place + 1
        return Prompt.join([*parts, _tokens(ids[start:])])

    def insert_all(self, ids: Sequence[int]) -> Prompt:
        """The same for the whole chat. Raises ValueError if the template has left out images."""
        n = list(ids).count(IMAGE)
        if n < len(self._images):
            raise ValueError(
                f"[{self._owner}] the chat template has left out images, {len(self._images) - n} of "
                f"{len(self._images)}: pass a chat_template that puts all parts of messages into the text"
            )
        return self.insert(ids)


def _tokens(ids: Sequence[int]) -> Prompt:
    return Prompt.of_tokens(np.array(ids, dtype=np.int32))


def _encoded(where: str, projector: "Projector | None", part: Mapping[str, Any], folder: str | None) -> Prompt:
    if projector is None:
        raise ValueError(f"{where} is an image: open the model with mmproj, its file for images")
    return projector.encode(where, _read(where, image_url(part), folder))


def _read(where: str, url: str, folder: str | None) -> bytes:
    """The content of an image file, given as a data URL, or as a file URL or a path below a folder.

    Raises ValueError, or OSError.
    """
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        return _data(where, url)
    if scheme in ("http", "https", "ftp"):
        raise ValueError(f"{where}: {url:.80} is not fetched: download it, and pass a data URL")
    if folder is None:
        raise ValueError(
            f"{where}: files are not read: pass a data URL such as data:image/png;base64,iVBOR…, or name the folder "
            "that images may be in by allowed_image_folder"
        )
    path = url2pathname(urlsplit(url).path) if scheme == "file" else url
    root = os.path.realpath(folder)
    real = "" if "\0" in path else os.path.realpath(os.path.join(root, path))
    if not real.startswith(os.path.join(root, "")):  # whether there is such a file is not told
        raise ValueError(f"{where}: {path!r:.80} is not in allowed_image_folder")
    return read_image_file(where, real)


def read_image_file(where: str, path: str | os.PathLike[str]) -> bytes:
    """Its content. Raises OSError, or ValueError if the file is special or too large."""
    # a pipe to which nobody writes is opened at once
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{where}: {os.fspath(path)} is a special file, expected an image")
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{where}: {os.fspath(path)} has more than {_MOST_BYTES:,} bytes, the most of an image")
    return content


def data_url(where: str, path: str | os.PathLike[str]) -> str:
    """Of a file that the user of this process has named. Raises as `read_image_file`."""
    return "data:;base64," + base64.b64encode(read_image_file(where, path)).decode()


def _data(where: str, url: str) -> bytes:
    if len(url) > _MOST_BYTES * 3 // 2:  # base64 takes 4 / 3
        raise ValueError(f"{where}: a data URL of {len(url):,} characters is more than an image may have")
    head, comma, data = url.partition(",")
    try:
        if comma:
            return base64.b64decode(data, validate=True) if head.endswith(";base64") else unquote_to_bytes(data)
    except binascii.Error:
        pass
    raise ValueError(f"{where}: expected a data URL such as data:image/png;base64,iVBOR…, got {url:.80}")
