"""Images in the messages of a chat."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes, urlsplit
from urllib.request import url2pathname

import numpy as np

from h2o_llama.chat._tokens import IMAGE
from h2o_llama.chat.messages import image_url, is_image
from h2o_llama.sequence._prompt import Prompt

if TYPE_CHECKING:
    from h2o_llama.models._projector import Projector

Messages = Sequence[Mapping[str, Any]]


class ChatImages:
    """The images of a chat, and its messages with a marker in the place of each.

    Raises ValueError, naming the message, if an image cannot be read; OSError if its file cannot.
    """

    def __init__(self, owner: str, projector: Projector | None, messages: Messages) -> None:
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
                        self._images.append(_encoded(f"[{owner}] messages[{i}]['content'][{j}]", projector, part))
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


def _encoded(where: str, projector: Projector | None, part: Mapping[str, Any]) -> Prompt:
    if projector is None:
        raise ValueError(f"{where} is an image: open the model with mmproj, the file beside it that reads images")
    return projector.encode(where, read_image(where, image_url(part)))


def read_image(where: str, url: str) -> bytes:
    """The content of an image file, given as a data URL, a file URL or a path. Raises ValueError or OSError."""
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        return _data(where, url)
    if scheme in ("http", "https", "ftp"):
        raise ValueError(f"{where}: {url:.80} is not fetched: download it, and pass its path or a data URL")
    return Path(url2pathname(urlsplit(url).path) if scheme == "file" else url).read_bytes()


def _data(where: str, url: str) -> bytes:
    head, comma, data = url.partition(",")
    try:
        if comma:
            return base64.b64decode(data, validate=True) if head.endswith(";base64") else unquote_to_bytes(data)
    except binascii.Error:
        pass
    raise ValueError(f"{where}: expected a data URL such as data:image/png;base64,iVBOR…, got {url:.80}")
