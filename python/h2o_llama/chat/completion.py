"""Text completion, OpenAI-shaped."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from h2o_llama.chat.generation import Generation, Piece, Usage
from h2o_llama.chat.logprobs import CompletionLogprobs, completion_logprobs

FinishReason = Literal["stop", "length"] | None


class Choice(TypedDict):
    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class CompletionChunk(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]


class Completion(CompletionChunk):
    usage: Usage


@dataclass
class CompletionRun:
    """One completion, at once or as a stream of chunks, beginning with the text `echo`."""

    generation: Generation
    echo: str
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4()}")

    def stream(self) -> Iterator[CompletionChunk]:
        """Chunks with text, then one without that tells the reason of the end."""
        if self.echo:
            yield self._chunk(Piece(self.echo, []), None)
        for piece in self.generation.pieces():
            if piece.text or piece.logprobs:
                yield self._chunk(piece, None)
        yield self._chunk(Piece("", []), self.generation.finish_reason)

    def complete(self) -> Completion:
        """All at once."""
        pieces = [Piece(self.echo, []), *self.generation.pieces()]
        whole = Piece("".join(p.text for p in pieces), [t for p in pieces for t in p.logprobs])
        return {**self._chunk(whole, self.generation.finish_reason), "usage": self.generation.usage()}

    def _chunk(self, piece: Piece, finish_reason: FinishReason) -> CompletionChunk:
        llm = self.generation.llm
        logprobs = None
        if self.generation.n_top_logprobs is not None:
            logprobs = completion_logprobs(llm.core_model, piece.logprobs, len(self.echo))
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.generation.created,
            "model": llm.model_path,
            "choices": [{"text": piece.text, "index": 0, "logprobs": logprobs, "finish_reason": finish_reason}],
        }
