"""H2O sparse attention for llama.cpp: long prompts at bounded cost, and a look at which tokens attention kept."""

from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from h2o_llama._core import UPSTREAM_COMMIT
    from h2o_llama._prompt import shared_prefix
    from h2o_llama._sequence import Sequence
    from h2o_llama.chat._generation import Usage
    from h2o_llama.chat.chat_completion import ChatCompletion, ChatCompletionChunk
    from h2o_llama.chat.completion import Completion, CompletionChunk
    from h2o_llama.config import H2OConfig
    from h2o_llama.documents import document_messages, read_document
    from h2o_llama.embedding import EmbeddingResponse
    from h2o_llama.errors import (
        BusyError,
        Cancelled,
        DamagedFileError,
        H2OError,
        H2OWarning,
        OutOfMemoryError,
        UnsupportedModelError,
    )
    from h2o_llama.grammar import LlamaGrammar
    from h2o_llama.inspect.kv import KVStats, SequenceKV
    from h2o_llama.inspect.kv_cache import KVCache
    from h2o_llama.library import Library
    from h2o_llama.llama import Llama
    from h2o_llama.lossless import LosslessConfig, LosslessStats
    from h2o_llama.model import Model
    from h2o_llama.sampling import Sampling
    from h2o_llama.sequence.generating import ManyGenerations
    from h2o_llama.sequence.snapshot import Snapshot

__version__ = version("h2o-llama")

__all__ = [
    "UPSTREAM_COMMIT",
    "BusyError",
    "Cancelled",
    "ChatCompletion",
    "ChatCompletionChunk",
    "Completion",
    "CompletionChunk",
    "DamagedFileError",
    "EmbeddingResponse",
    "H2OConfig",
    "H2OError",
    "H2OWarning",
    "KVCache",
    "KVStats",
    "Library",
    "Llama",
    "LlamaGrammar",
    "LosslessConfig",
    "LosslessStats",
    "ManyGenerations",
    "Model",
    "OutOfMemoryError",
    "Sampling",
    "Sequence",
    "SequenceKV",
    "Snapshot",
    "UnsupportedModelError",
    "Usage",
    "demo_model_path",
    "document_messages",
    "read_document",
    "shared_prefix",
]


_PLACES = {
    "_core": "UPSTREAM_COMMIT",
    "_prompt": "shared_prefix",
    "_sequence": "Sequence",
    "chat._generation": "Usage",
    "chat.chat_completion": "ChatCompletion ChatCompletionChunk",
    "chat.completion": "Completion CompletionChunk",
    "config": "H2OConfig",
    "documents": "document_messages read_document",
    "embedding": "EmbeddingResponse",
    "errors": "BusyError Cancelled DamagedFileError H2OError H2OWarning OutOfMemoryError UnsupportedModelError",
    "grammar": "LlamaGrammar",
    "inspect.kv": "KVStats SequenceKV",
    "inspect.kv_cache": "KVCache",
    "library": "Library",
    "llama": "Llama",
    "lossless": "LosslessConfig LosslessStats",
    "model": "Model",
    "sampling": "Sampling",
    "sequence.generating": "ManyGenerations",
    "sequence.snapshot": "Snapshot",
}
"""Where names are. They are imported when they are used: `llm` loads this package at each of its commands."""


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names.split():
            return getattr(import_module(f"h2o_llama.{module}"), name)
    raise AttributeError(f"module 'h2o_llama' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def demo_model_path() -> Path:
    """The small model that comes with the package: Qwen3 architecture, 2 million parameters, a token per byte.

    Examples
    --------
    >>> demo_model_path().name
    'demo-qwen3-2m-f16.gguf'
    """
    return Path(__file__).parent / "data" / "demo-qwen3-2m-f16.gguf"
