"""Texts as vectors, in OpenAI's shapes."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.llama_cpp import understands
from h2o_llama._internal.machine import available_cpus, check_fits, core_errors
from h2o_llama.errors import UnsupportedModelError
from h2o_llama.models.rope import RopeOptions, as_core


class _Model(Protocol):
    """A `Model`, whose methods these functions are."""

    _owner: str
    _matmul_kernels: str
    _rope: RopeOptions
    _n_threads: int | None

    @property
    def _name(self) -> str: ...
    @property
    def _handle(self) -> _core.Model: ...
    @property
    def n_ctx_train(self) -> int: ...
    def tokenize(self, text: str | bytes) -> list[int]: ...


_POOLING = ("none", "mean", "cls", "last", "rank")  # by LLAMA_POOLING_TYPE
_STEP = 512

PoolingType = Literal["none", "mean", "cls", "last"]


class EmbedOptions(TypedDict, total=False):
    """Options of `embed`; see there."""

    normalize: bool
    truncate: bool
    n_threads: int | None


class Embedding(TypedDict):
    object: Literal["embedding"]
    embedding: list[float] | list[list[float]]
    index: int


class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(TypedDict):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


@understands
def embed(
    model: _Model,
    input: str | Sequence[str],
    *,
    pooling_type: PoolingType | None = None,
    **options: Unpack[EmbedOptions],
) -> NDArray[Any]:
    """The embedding of a text, or of each of several.

    H2O has no part in it: texts are read with dense attention, in a context of their own that no sequence notices. It
    is made anew for each call, so give many texts together.

    Raises ValueError if an argument is bad, or a text has no tokens; UnsupportedModelError if the model only ranks
    texts, or has an encoder and a decoder; H2OError if the computation fails.

    Parameters
    ----------
    input : str or list of str
        Texts.
    normalize : bool, default False
        Divide each vector by its Euclidean length.
    truncate : bool, default True
        Take only the first tokens of a text that exceeds the model's trained length; otherwise it is a ValueError.
    pooling_type : {"none", "mean", "cls", "last"}, optional
        How the vectors of a text's tokens become one: their mean, the first, the last; with "none" they do not. By
        default as the model's file says, and "none" where it says nothing.
    n_threads : int, optional
        Threads to compute with; by default as many as the `Llama` has, or one for each CPU this process may use.

    Returns
    -------
    ndarray of float32
        [n_embd], of n texts [n, n_embd]; with "none" [n_tokens, n_embd], of n texts an array [n] of such arrays.

    Examples
    --------
    >>> vector = model.embed("how a text is read", pooling_type="mean", normalize=True)
    >>> print(vector.shape, f"{np.linalg.norm(vector):.3f}")
    (192,) 1.000
    """
    vectors, _ = _embed(f"{model._owner}.embed", model, input, pooling_type, **options)
    if isinstance(input, str):
        return vectors[0]
    return np.array(vectors) if vectors and vectors[0].ndim == 1 else np.fromiter(vectors, dtype=object)


def _embed(
    owner: str,
    model: _Model,
    input: Any,
    pooling_type: PoolingType | None,
    normalize: bool = False,
    truncate: bool = True,
    n_threads: int | None = None,
) -> tuple[list[NDArray[np.float32]], int]:
    """The vectors, and the number of tokens."""
    core, texts = model._handle, [input] if isinstance(input, str) else input
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise check.bad_argument(owner, "input", "a text or a list of texts", texts)
    pooling = _pooling(owner, core, pooling_type)
    check.flag(owner, "normalize", normalize)
    threads = n_threads if n_threads is not None else model._n_threads or available_cpus()
    check.integer(owner, "n_threads", threads, 1, check.MAX_THREADS)
    ids = [model.tokenize(check.utf8(owner, f"input[{i}]", text)) for i, text in enumerate(texts)]
    if check.flag(owner, "truncate", truncate):
        ids = [tokens[: model.n_ctx_train] for tokens in ids]
    elif (longest := max(map(len, ids), default=0)) > model.n_ctx_train:
        raise ValueError(
            f"[{owner}] a text has {longest} tokens, but the model was trained for {model.n_ctx_train}: "
            "pass truncate=True or shorter texts"
        )
    is_whole = core.metadata.get(f"{_architecture(core)}.attention.causal") == "false"
    n_most = min(max(map(len, ids), default=0), 2**31 if is_whole else _STEP)
    check_fits(owner, "n_tokens", n_most, 4 * n_most * core.n_vocab, "{} for all of its logits")
    if not all(ids):
        raise ValueError(f"[{owner}] a text has no tokens")
    options = {"n_threads": threads, "rope": as_core(model._rope), "h2o": {"products": model._matmul_kernels}}
    with core_errors():
        hidden = _hidden_states(core, ids, is_whole, **options) if ids else []
    vectors = [_pooled(rows, pooling) for rows in hidden]
    if normalize:
        tiny = np.finfo(np.float32).tiny
        vectors = [vector / np.maximum(np.linalg.norm(vector, axis=-1, keepdims=True), tiny) for vector in vectors]
    return vectors, sum(map(len, ids))


def _hidden_states(
    core: _core.Model, texts: list[list[int]], is_whole: bool, **options: Any
) -> list[NDArray[np.float32]]:
    """Of the last layer, [n_tokens, n_embd] of each text. With is_whole tokens attend to those after them, too."""
    n_ctx = max(map(len, texts))
    for n_step in (n_ctx if is_whole else min(n_ctx, _STEP), n_ctx):
        options |= {"n_ctx": n_ctx, "n_batch": n_step, "n_ubatch": n_step}
        context = _core.Context(model=core, embeddings=True, **options)
        if context.has_memory or n_step == n_ctx:
            break  # else it is an encoder, which reads a text at once
    no_rows, hidden = np.empty((0, 0), np.float32), []
    for text in texts:
        context.clear()
        hidden.append(np.empty((len(text), core.n_embd_output), np.float32))
        for i in range(0, len(text), n_step):
            context.decode(
                np.array(text[i : i + n_step], np.int32), no_rows, hidden[-1][i : i + n_step], 0, False, None
            )
    return hidden


@understands
def create_embedding(
    model: _Model,
    input: str | Sequence[str],
    *,
    pooling_type: PoolingType | None = None,
    **options: Unpack[EmbedOptions],
) -> EmbeddingResponse:
    """Embeddings as OpenAI's interface has them. Options: as in `embed`.

    Examples
    --------
    >>> answer = model.create_embedding(["a text", "another"], pooling_type="mean")
    >>> [(item["index"], len(item["embedding"])) for item in answer["data"]], answer["usage"]
    ([(0, 192), (1, 192)], {'prompt_tokens': 13, 'total_tokens': 13})
    """
    found, n_tokens = _embed(f"{model._owner}.create_embedding", model, input, pooling_type, **options)
    return {
        "object": "list",
        "data": [{"object": "embedding", "embedding": vector.tolist(), "index": i} for i, vector in enumerate(found)],
        "model": model._name,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }


def _pooling(owner: str, core: _core.Model, pooling_type: str | None) -> str:
    if core.has_encoder:
        raise UnsupportedModelError(f"[{owner}] this is an encoder-decoder model, which is not supported")
    if pooling_type is not None:
        return check.choice(owner, "pooling_type", pooling_type, _POOLING[:4])
    own = _POOLING[int(core.metadata.get(f"{_architecture(core)}.pooling_type", "0"))]
    if own == "rank":
        raise UnsupportedModelError(
            f"[{owner}] this model ranks texts and has no embeddings of them: pass pooling_type for its hidden states"
        )
    return own


def _architecture(core: _core.Model) -> str:
    return core.metadata.get("general.architecture", "")


def _pooled(rows: NDArray[np.float32], pooling: str) -> NDArray[np.float32]:
    pooled: NDArray[np.float32] = rows if pooling == "none" else rows[0 if pooling == "cls" else -1]
    return rows.mean(axis=0) if pooling == "mean" else pooled
