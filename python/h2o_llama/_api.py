"""What `import h2o_llama` has, imported when it is used: `llm` loads the package at each of its commands."""

from pathlib import Path

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


def demo_model_path() -> Path:
    """The small model that comes with the package: Qwen3 architecture, 2 million parameters, a token per byte.

    Examples
    --------
    >>> demo_model_path().name
    'demo-qwen3-2m-f16.gguf'
    """
    return Path(__file__).parent / "data" / "demo-qwen3-2m-f16.gguf"
