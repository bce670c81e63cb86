"""
Private extension module of h2o_llama: the patched llama.cpp.
"""

from __future__ import annotations

import collections.abc
import typing

import numpy
import numpy.typing

__all__: list[str] = [
    "KV",
    "RANDOM_SEED",
    "UPSTREAM_COMMIT",
    "ChatParser",
    "ChatPrompt",
    "ChatTemplate",
    "Context",
    "EncodedRows",
    "Grammar",
    "H2OOption",
    "KVCache",
    "KVInfo",
    "Model",
    "Projector",
    "Sampler",
    "check_fork",
    "check_h2o",
    "embedding_ids",
    "find_pieces",
    "h2o_options",
    "is_forked",
    "json_schema_to_grammar",
    "layer_devices",
    "ops_attention",
    "ops_isas",
    "ops_max_rows",
    "ops_product",
    "ops_seconds",
    "ops_set_isa",
    "ops_top_keys",
    "quantize",
    "quantize_types",
    "serve",
    "split_text",
    "tensor_starts",
    "type_size",
]

class Model:
    @staticmethod
    def check_overrides(
        path: bytes,
        kv_overrides: collections.abc.Mapping[
            str, bool | typing.SupportsInt | typing.SupportsIndex | typing.SupportsFloat | typing.SupportsIndex | str
        ],
    ) -> None: ...
    def __init__(
        self,
        path: bytes,
        n_gpu_layers: typing.SupportsInt | typing.SupportsIndex,
        verbose: bool,
        rpc_servers: collections.abc.Sequence[str],
        repack: bool = True,
        *,
        use_mmap: bool = True,
        use_mlock: bool = False,
        main_gpu: typing.SupportsInt | typing.SupportsIndex | None = None,
        tensor_split: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [],
        kv_overrides: collections.abc.Mapping[
            str, bool | typing.SupportsInt | typing.SupportsIndex | typing.SupportsFloat | typing.SupportsIndex | str
        ] = {},
        lora: collections.abc.Sequence[tuple[bytes, typing.SupportsFloat | typing.SupportsIndex]] = [],
    ) -> None: ...
    def detokenize(
        self, tokens: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], special: bool
    ) -> bytes: ...
    def is_eog(self, token: typing.SupportsInt | typing.SupportsIndex) -> bool: ...
    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]: ...
    @property
    def desc(self) -> str: ...
    @property
    def has_encoder(self) -> bool: ...
    @property
    def is_recurrent(self) -> bool: ...
    @property
    def is_spm(self) -> bool: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def n_ctx_train(self) -> int: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def n_embd_input(self) -> int: ...
    @property
    def n_embd_output(self) -> int: ...
    @property
    def n_head(self) -> int: ...
    @property
    def n_head_kv(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def n_learned_positions(self) -> int: ...
    @property
    def n_params(self) -> int: ...
    @property
    def n_swa(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def token_bos(self) -> int: ...
    @property
    def token_eos(self) -> int: ...

class Projector:
    def __init__(
        self,
        model: Model,
        path: bytes,
        n_threads: typing.SupportsInt | typing.SupportsIndex,
        use_gpu: bool,
        verbose: bool,
    ) -> None: ...
    def encode(self, image: bytes) -> list[numpy.typing.NDArray[numpy.int32] | numpy.typing.NDArray[numpy.float32]]: ...
    @property
    def has_1d_positions(self) -> bool: ...
    @property
    def has_vision(self) -> bool: ...
    @property
    def is_causal(self) -> bool: ...

class Context:
    @staticmethod
    def decode_each(
        sequences: collections.abc.Sequence[Context],
        tokens: numpy.typing.NDArray[numpy.int32],
        logits: numpy.typing.NDArray[numpy.float32],
    ) -> None: ...
    def __init__(
        self,
        *,
        model: Model,
        n_ctx: typing.SupportsInt | typing.SupportsIndex,
        n_seq_max: typing.SupportsInt | typing.SupportsIndex = 1,
        n_batch: typing.SupportsInt | typing.SupportsIndex,
        n_ubatch: typing.SupportsInt | typing.SupportsIndex,
        n_threads: typing.SupportsInt | typing.SupportsIndex,
        n_threads_batch: typing.SupportsInt | typing.SupportsIndex = 0,
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attn: str = "auto",
        rope: collections.abc.Mapping[str, typing.SupportsFloat | typing.SupportsIndex],
        h2o: collections.abc.Mapping[str, str],
        record: bool = False,
        profile: bool = False,
        verbose: bool = False,
        embeddings: bool = False,
    ) -> None: ...
    def accept_draft(self, token: typing.SupportsInt | typing.SupportsIndex) -> bool: ...
    def arrange(
        self,
        n_kept: typing.SupportsInt | typing.SupportsIndex,
        pieces: collections.abc.Sequence[
            typing.Annotated[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], "FixedSize(3)"]
        ],
        ids: numpy.typing.NDArray[numpy.int32],
    ) -> None: ...
    def check(self) -> None:
        """
        All sequences; raises RuntimeError if a part of the memory does not agree with another one.
        """
    def clear(self) -> None: ...
    def close(self) -> None: ...
    def copy_from(self, other: Context) -> None: ...
    def decode(
        self,
        ids: numpy.typing.NDArray[numpy.int32],
        rows: numpy.typing.NDArray[numpy.float32],
        logits: numpy.typing.NDArray[numpy.float32],
        dense_tail: typing.SupportsInt | typing.SupportsIndex,
        generated: bool,
        progress: typing.Any,
        n_draft: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None: ...
    def find_draft(
        self,
        token: typing.SupportsInt | typing.SupportsIndex,
        n_min: typing.SupportsInt | typing.SupportsIndex,
        n_max: typing.SupportsInt | typing.SupportsIndex,
    ) -> numpy.typing.NDArray[numpy.int32]: ...
    def get_state(self) -> bytes: ...
    def keep_boundaries(self) -> None: ...
    def restore(self, state: bytes, tokens: numpy.typing.NDArray[numpy.int32]) -> None: ...
    def rewind(self, pos: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def rewind_points(self, pos: typing.SupportsInt | typing.SupportsIndex) -> tuple[int, int]: ...
    def sequence(self, i: typing.SupportsInt | typing.SupportsIndex) -> Context: ...
    def set_state(self, state: bytes) -> None: ...
    def state_layout(self) -> tuple[list[typing.Annotated[list[int], "FixedSize(4)"]], list[tuple[int, int]]]: ...
    @property
    def arranged(self) -> numpy.typing.NDArray[numpy.int32]: ...
    @property
    def exact_end(self) -> int: ...
    @property
    def has_memory(self) -> bool: ...
    @property
    def kv_bytes(self) -> int: ...
    @property
    def min_position(self) -> int: ...
    @property
    def move_refusal(self) -> str: ...
    @property
    def n_threads(self) -> tuple[int, int]: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def tokens(self) -> numpy.typing.NDArray[numpy.int32]: ...
    @property
    def unseen(self) -> dict[int, int]: ...

class KVInfo:
    @property
    def chunk_index(self) -> int: ...
    @property
    def chunk_size(self) -> int: ...
    @property
    def has_scores(self) -> bool: ...
    @property
    def heavy_budget(self) -> int: ...
    @property
    def kv_size(self) -> int: ...
    @property
    def local_window(self) -> int: ...
    @property
    def lookup_budget(self) -> int: ...
    @property
    def memory_size(self) -> int: ...
    @property
    def n_memory_sets(self) -> int: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def rewind_step(self) -> int: ...
    @property
    def sink_tokens(self) -> int: ...
    @property
    def tile(self) -> int: ...

class KV:
    @staticmethod
    def of_context(context: Context) -> KV | None: ...
    def attention(
        self, layer: typing.SupportsInt | typing.SupportsIndex
    ) -> numpy.typing.NDArray[numpy.float32] | None: ...
    def extra_keys(
        self,
        layer: typing.SupportsInt | typing.SupportsIndex,
        head: typing.SupportsInt | typing.SupportsIndex,
        tile: typing.SupportsInt | typing.SupportsIndex,
    ) -> numpy.typing.NDArray[numpy.int32] | None: ...
    def get_k(
        self, layer: typing.SupportsInt | typing.SupportsIndex, n: typing.SupportsInt | typing.SupportsIndex
    ) -> numpy.typing.NDArray[numpy.float32]: ...
    def get_v(
        self, layer: typing.SupportsInt | typing.SupportsIndex, n: typing.SupportsInt | typing.SupportsIndex
    ) -> numpy.typing.NDArray[numpy.float32]: ...
    def history(
        self, chunk: typing.SupportsInt | typing.SupportsIndex, layer: typing.SupportsInt | typing.SupportsIndex
    ) -> numpy.typing.NDArray[numpy.int32]: ...
    def keep_attention(self, keep: bool) -> None: ...
    def memory_end(self, layer: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def memory_indices(self, layer: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int32]: ...
    def n_head_kv(self, layer: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def n_memory(self, chunk_end: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def scores(self, layer: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.float32]: ...
    def set_memory_indices(
        self, layer: typing.SupportsInt | typing.SupportsIndex, indices: numpy.typing.NDArray[numpy.int32]
    ) -> None: ...
    @property
    def info(self) -> KVInfo: ...
    @property
    def layers(self) -> list[int]: ...
    @property
    def lossless_stats(self) -> dict[str, typing.Any] | None: ...
    @property
    def stats(self) -> dict[str, typing.Any]: ...

class KVCache(KV):
    def __init__(
        self,
        model: Model,
        kv_size: typing.SupportsInt | typing.SupportsIndex,
        h2o: collections.abc.Mapping[str, str],
        type_k: str,
        type_v: str,
    ) -> None: ...
    def accumulate_memory_scores(
        self, layer: typing.SupportsInt | typing.SupportsIndex, colsum: numpy.typing.NDArray[numpy.float32]
    ) -> None: ...
    def build_memory_set(
        self, layer: typing.SupportsInt | typing.SupportsIndex, chunk_end: typing.SupportsInt | typing.SupportsIndex
    ) -> None: ...
    def clear(self) -> None: ...
    def head_size_k(self, layer: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def head_size_v(self, layer: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def init_chunk_scores(
        self,
        layer: typing.SupportsInt | typing.SupportsIndex,
        start: typing.SupportsInt | typing.SupportsIndex,
        colsum: numpy.typing.NDArray[numpy.float32],
    ) -> None: ...
    def n_head(self, layer: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def next_chunk(self, n: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def set_kv(
        self,
        layer: typing.SupportsInt | typing.SupportsIndex,
        start: typing.SupportsInt | typing.SupportsIndex,
        k: numpy.typing.NDArray[numpy.float32],
        v: numpy.typing.NDArray[numpy.float32],
    ) -> None: ...

class H2OOption:
    @property
    def choices(self) -> list[str]: ...
    @property
    def default(self) -> str: ...
    @property
    def flag(self) -> str: ...
    @property
    def help(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def max(self) -> float: ...
    @property
    def min(self) -> float: ...
    @property
    def name(self) -> str: ...

class Grammar:
    def __init__(self, model: Model, text: str) -> None: ...
    @property
    def lazy(self) -> bool: ...
    @property
    def text(self) -> str: ...

class ChatParser:
    def update(self, piece: str, is_partial: bool) -> str: ...
    @property
    def message(self) -> str: ...

class ChatPrompt:
    def grammar(self) -> Grammar: ...
    def parser(self, id_prefix: str) -> ChatParser: ...
    def tokens(self, marker: str, parse_names: bool) -> list[int]: ...
    @property
    def left_out(self) -> list[str]: ...
    @property
    def preserved_tokens(self) -> list[int]: ...
    @property
    def stops(self) -> list[str]: ...
    @property
    def text(self) -> str: ...
    @property
    def thoughts(self) -> tuple[str, list[str], str]: ...

class ChatTemplate:
    def __init__(self, model: Model, source: str) -> None: ...
    def apply(
        self,
        *,
        messages: str,
        tools: str,
        tool_choice: str,
        parallel_tool_calls: bool | None,
        json_schema: str,
        add_generation_prompt: bool,
        kwargs: collections.abc.Mapping[str, str],
        now: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> ChatPrompt: ...
    @property
    def source(self) -> str: ...

class Sampler:
    def __init__(
        self,
        model: Model,
        numbers: collections.abc.Mapping[str, typing.SupportsFloat | typing.SupportsIndex],
        seed: typing.SupportsInt | typing.SupportsIndex,
        breakers: collections.abc.Sequence[str],
        logit_bias: collections.abc.Sequence[
            tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]
        ],
        grammar: Grammar | None,
    ) -> None: ...
    def accept(self, token: typing.SupportsInt | typing.SupportsIndex, constrained: bool) -> None: ...
    def sample(self, logits: typing.Annotated[numpy.typing.ArrayLike, numpy.float32], constrained: bool) -> int: ...

class EncodedRows:
    def __init__(
        self,
        rows: numpy.typing.NDArray[numpy.uint8],
        *,
        type: str,
        unit_rows: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def decode(
        self,
        start: typing.SupportsInt | typing.SupportsIndex,
        stop: typing.SupportsInt | typing.SupportsIndex,
        frames: str,
    ) -> numpy.typing.NDArray[numpy.uint8]: ...
    @property
    def frames(self) -> bytes: ...

def check_fork() -> None:
    """
    Raise H2OError in a process that was forked from one that has computed.
    """

def check_h2o(values: collections.abc.Mapping[str, str]) -> None:
    """
    ValueError if an option is out of range, or some do not go together.
    """

def embedding_ids(rows: numpy.typing.NDArray[numpy.float32]) -> numpy.typing.NDArray[numpy.int32]:
    """
    What stands for rows of embeddings among token ids.
    """

def find_pieces(
    text: numpy.typing.NDArray[numpy.int32],
    next: numpy.typing.NDArray[numpy.int32],
    start: typing.SupportsInt | typing.SupportsIndex,
    end: typing.SupportsInt | typing.SupportsIndex,
    n_min: typing.SupportsInt | typing.SupportsIndex,
) -> list[typing.Annotated[list[int], "FixedSize(3)"]]:
    """
    Parts of a text that come again in the next one: (from, n, to).
    """

def h2o_options() -> list[H2OOption]:
    """
    The options of H2O.
    """

def is_forked() -> bool:
    """
    Whether this is such a process.
    """

def json_schema_to_grammar(schema: str) -> str: ...
def layer_devices(rpc_servers: collections.abc.Sequence[str]) -> list[str]:
    """
    Names of what may hold layers, besides the CPU.
    """

def ops_attention(
    q: numpy.ndarray,
    k: numpy.ndarray,
    v: numpy.ndarray,
    type: str,
    backend: str,
    n_threads: typing.SupportsInt | typing.SupportsIndex,
    **kwargs: typing.Any,
) -> tuple[numpy.ndarray, numpy.ndarray | None, numpy.ndarray, numpy.ndarray]: ...
def ops_isas() -> list[str]:
    """
    Instruction sets of this CPU for which H2O's operators have kernels, the best first.
    """

def ops_max_rows(
    a: numpy.ndarray, type: str, backend: str, n_threads: typing.SupportsInt | typing.SupportsIndex
) -> numpy.ndarray: ...
def ops_product(
    weights: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
    type: str,
    x: numpy.ndarray,
    by_h2o: bool,
    n_threads: typing.SupportsInt | typing.SupportsIndex,
    ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int32] | None = None,
) -> numpy.ndarray:
    """
    Products with weights of a type [n_rows, bytes of a row], of x [n_columns, n]. With ids [n_tokens, n_used] of
    experts, their rows are [n_experts, n_rows, bytes], and x is [n_tokens, 1 or n_used, n].
    """

def ops_seconds(op: collections.abc.Callable[[], typing.Any]) -> float:
    """
    Seconds of the last graph that op() computes, when it is computed again.
    """

def ops_set_isa(name: str) -> None:
    """
    Kernels that need none better than this, from now on.
    """

def ops_top_keys(
    q: numpy.ndarray,
    k: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8],
    n_top: typing.SupportsInt | typing.SupportsIndex,
    excluded: typing.Annotated[numpy.typing.ArrayLike, numpy.int32] | None,
    tile: typing.SupportsInt | typing.SupportsIndex,
    offset: typing.SupportsInt | typing.SupportsIndex,
    backend: str,
    n_threads: typing.SupportsInt | typing.SupportsIndex,
) -> numpy.ndarray: ...
def quantize(
    path_in: bytes,
    path_out: bytes,
    type: typing.SupportsInt | typing.SupportsIndex,
    n_threads: typing.SupportsInt | typing.SupportsIndex,
) -> None: ...
def quantize_types() -> dict[str, int]:
    """
    What the core takes for a type of weights, by name.
    """

def serve(arguments: collections.abc.Sequence[bytes], texts: typing.Any) -> int:
    """
    Run llama-server with these arguments, the first its name, until a signal ends it. Returns its exit code.
    """

def split_text(text: str, patterns: collections.abc.Sequence[str]) -> list[str]:
    """
    The pieces of a text that a pre-tokenizer with these patterns makes of it.
    """

def tensor_starts(path: bytes) -> list[int]:
    """
    Where the tensors of a GGUF file begin; empty if it is none.
    """

def type_size(type: str) -> float:
    """
    Bytes per element.
    """

RANDOM_SEED: int = 4294967295
UPSTREAM_COMMIT: str = "b11549"
