"""A chat completion, OpenAI-shaped."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from h2o_llama import _core
from h2o_llama.chat._generation import Generation, Usage
from h2o_llama.chat._logprobs import ChatLogprobs, TokenLogprobs, chat_logprobs
from h2o_llama.chat._template import parse_deltas, parsed_message

ChatFinishReason = Literal["stop", "length", "tool_calls"] | None


class ChatChoice(TypedDict):
    index: int
    message: dict[str, Any]
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatChunkChoice(TypedDict):
    index: int
    delta: dict[str, Any]
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason


class ChatChunkBase(TypedDict):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]


class ChatCompletionChunk(ChatChunkBase, total=False):
    usage: Usage


@dataclass
class ChatRun:
    """One answer, at once or as a stream of chunks. The parser tells content, reasoning and tool calls apart."""

    generation: Generation
    parser: _core.ChatParser
    texts: list[str] = field(default_factory=list)
    is_understood: bool = True  # whether all of the text has the model's format
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4()}")

    def stream(self) -> Iterator[ChatCompletionChunk]:
        """A chunk with the role, chunks with new text, and one with the reason of the end."""
        yield self._chunk({"role": "assistant"})
        told, waiting = list[str](), list[TokenLogprobs]()
        for piece in self.generation.pieces():
            waiting += piece.logprobs
            for delta in self._add(piece.text):
                told += _said(delta)
                yield self._chunk(delta, waiting)
                waiting = []
        for delta in self._finish("", told):
            yield self._chunk(delta, waiting)
            waiting = []
        yield {**self._chunk({}, waiting, self._finish_reason()), "usage": self.generation.usage()}

    def complete(self) -> ChatCompletion:
        """All at once."""
        pieces = self.generation.all_pieces()
        self._finish("".join(piece.text for piece in pieces), [])
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.generation.created,
            "model": self.generation.state.engine.model.model_path,
            "choices": [
                {
                    "index": 0,
                    "message": self._message(),
                    "logprobs": self._logprobs([t for piece in pieces for t in piece.logprobs]),
                    "finish_reason": self._finish_reason(),
                }
            ],
            "usage": self.generation.usage(),
        }

    def _add(self, text: str) -> list[dict[str, Any]]:
        """The text's additions to the message. Text that cannot be parsed yet may be later."""
        if not text:
            return []
        self.texts.append(text)
        try:
            return parse_deltas(self.parser, text, True)
        except ValueError:
            return []

    def _finish(self, text: str, told: list[str]) -> list[dict[str, Any]]:
        """The additions by the end: also the rest of a text that is not in the model's own format."""
        self.texts.append(text)
        try:
            return parse_deltas(self.parser, text, self.generation.finish_reason == "length")
        except ValueError:
            self.is_understood = False
        whole, end = self._text(), 0
        for said in told:
            found = whole.find(said, end)
            end = found + len(said) if found >= 0 else end
        return [{"content": whole[end:]}]

    def _text(self) -> str:
        return "".join(self.texts)

    def _parsed(self) -> dict[str, Any]:
        return parsed_message(self.parser) if self.is_understood else {}

    def _message(self) -> dict[str, Any]:
        message = self._parsed() or {"content": self._text()}
        if message.get("tool_calls") and not message.get("content"):
            message["content"] = None
        return {"role": "assistant", **message}

    def _finish_reason(self) -> ChatFinishReason:
        if self.generation.finish_reason == "stop" and self._parsed().get("tool_calls"):
            return "tool_calls"
        return self.generation.finish_reason

    def _logprobs(self, tokens: list[TokenLogprobs]) -> ChatLogprobs | None:
        if self.generation.n_top_logprobs is None:
            return None
        return chat_logprobs(self.generation.state.engine.model._handle, tokens)

    def _chunk(
        self,
        delta: dict[str, Any],
        logprobs: list[TokenLogprobs] | None = None,
        finish_reason: ChatFinishReason = None,
    ) -> ChatCompletionChunk:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.generation.created,
            "model": self.generation.state.engine.model.model_path,
            "choices": [
                {
                    "index": 0,
                    "delta": delta,
                    "logprobs": self._logprobs(logprobs) if logprobs else None,
                    "finish_reason": finish_reason,
                }
            ],
        }


def _said(delta: dict[str, Any]) -> list[str]:
    """The model's own words in a delta."""
    calls = [call["function"]["arguments"] for call in delta.get("tool_calls", [])]
    return [text for text in (delta.get("reasoning_content"), delta.get("content"), *calls) if text]
