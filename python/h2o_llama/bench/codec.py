"""What the codec makes of a model's K and V: what `h2o-llama codec` runs."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h2o_llama import codec
from h2o_llama.bench.prompt import prompt_tokens
from h2o_llama.errors import H2OError
from h2o_llama.llama import Llama

Row = dict[str, Any]
Part = Literal["K", "V"]
KVType = Literal["f16", "bf16", "f32"]

# How the rows of a layer become frames: one of all, an upper bound; of some chunks each; of a chunk each.
VIEWS = ("aggregate", "groups", "chunks")

# No frames, but each row by itself: what a cold store holds.
ROWS = "rows"

# Measured in groups beside what is chosen.
PREDICTORS = tuple(name for name in codec.PREDICTORS if name != "auto")
CODES = tuple(name for name in codec.CODECS if name not in ("auto", "raw"))

_PLANES = {"f16": ("high", "low"), "bf16": ("high", "low"), "f32": ("highest", "high", "low", "lowest")}


@dataclass(frozen=True)
class CodecPlan:
    """What to measure: the first tokens of a text, read by one prefill, with K and V of a type.

    A frame is of `chunk` tokens, or of a `group` of chunks. The fastest of the `repetitions` of each frame counts.
    """

    n_tokens: int
    chunk: int = 256
    group: int = 8
    type: KVType = "f16"
    repetitions: int = 3

    def rows_per_frame(self, view: str) -> int:
        return {"aggregate": self.n_tokens, "groups": self.chunk * self.group, "chunks": self.chunk}[view]


class Tensor(NamedTuple):
    """K or V of a layer: [n_tokens, n_head_kv * head_dim] of the cache's type, bf16 as uint16."""

    layer: int
    part: Part
    values: NDArray[Any]


@dataclass(frozen=True)
class CodecReport:
    """Everything that the command says: on what, of what and how it was measured, and the rows of `measure`."""

    machine: dict[str, Any]
    model: dict[str, Any]
    plan: dict[str, Any]
    rows: list[Row]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def read_tensors(weights: Path, text: bytes | None, plan: CodecPlan, n_threads: int, n_gpu_layers: int) -> list[Tensor]:
    """K and V of all layers after the first tokens of a text, as the cache holds them.

    Raises ValueError if the text has fewer tokens; H2OError if the model has no K/V that H2O can read.
    """
    with Llama(
        weights,
        n_ctx=plan.n_tokens,
        n_batch=max(4096, plan.n_tokens),
        n_threads=n_threads,
        n_gpu_layers=n_gpu_layers,
        type_k=plan.type,
        type_v=plan.type,
    ) as llm:
        if llm.h2o is None:
            raise H2OError("[codec] K and V of this model cannot be read: H2O does not work with it")
        llm.eval(prompt_tokens(llm, text, plan.n_tokens))
        return tensors_of(llm, plan.type)


def tensors_of(llm: Llama, type: KVType) -> list[Tensor]:
    """What a cache of this type holds."""
    tensors = []
    for layer in llm.kv.layers:
        tensors.append(Tensor(layer, "K", _as_stored(llm.kv.keys(layer), type)))
        tensors.append(Tensor(layer, "V", _as_stored(llm.kv.values(layer), type)))
    return tensors


def _as_stored(values: NDArray[np.float32], type: KVType) -> NDArray[Any]:
    """[n_head_kv, n_tokens, head_dim] float32 -> [n_tokens, n], of the type that it was converted from."""
    rows = np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(values.shape[1], -1)
    if type == "bf16":
        return (rows.view(np.uint32) >> 16).astype(np.uint16)
    return rows.astype({"f16": np.float16, "f32": np.float32}[type])


def measure(
    tensors: Sequence[Tensor], plan: CodecPlan, progress: Callable[[str, int, int], None] = lambda *_: None
) -> list[Row]:
    """Encode and decode every tensor in every view, by rows, and with every predictor and code in groups.

    Returns
    -------
    list of dict
        For each tensor, view, predictor and code: "layer", "part" ("K" or "V"), "view", "predictor", "codec",
        "raw_bytes", "stored_bytes" (of the frames), "ratio", "encode_per_s", "decode_per_s" (bytes of K and V per
        second, on one core), "rows", "kept_rows" (not equal to an earlier one), and "planes": for each "name",
        "raw_bytes", "stored_bytes" and how many frames chose which of "predictors". By rows, with a code made from the
        first chunk, nothing is chosen: there are no planes.
    """
    rows = []
    for i, tensor in enumerate(tensors):
        progress("K and V", i, len(tensors))
        rows += [_measure(tensor, plan, *case) for case in _cases()]
        rows.append(_measure_rows(tensor, plan))
    progress("K and V", len(tensors), len(tensors))
    return rows


def measure_chosen(tensors: Sequence[Tensor], plan: CodecPlan) -> list[Row]:
    """The same, only in groups and as it would be stored."""
    return [_measure(tensor, plan, "groups", "auto", "auto") for tensor in tensors]


def _cases() -> Iterator[tuple[str, str, str]]:
    """View, predictor, code."""
    yield from ((view, "auto", "auto") for view in VIEWS)
    yield from (("groups", predictor, "auto") for predictor in PREDICTORS)
    yield from (("groups", "auto", code) for code in CODES)


def _measure(tensor: Tensor, plan: CodecPlan, view: str, predictor: str, code: str) -> Row:
    n = plan.rows_per_frame(view)
    frames = []
    encode_s = decode_s = 0.0
    for start in range(0, len(tensor.values), n):
        block = tensor.values[start : start + n]
        options: dict[str, Any] = {"type": plan.type, "predictor": predictor, "equal_rows": predictor == "auto"}
        frame, seconds = _fastest(plan.repetitions, lambda: codec.encode(block, code, **options))  # type: ignore[arg-type]  # noqa: B023
        encode_s += seconds
        found, seconds = _fastest(plan.repetitions, lambda: codec.decode(frame))  # noqa: B023
        decode_s += seconds
        _check_same(tensor, found, block)
        frames.append(codec.inspect(frame))
    return _row(tensor, view, predictor, code, sum(f.stored_bytes for f in frames), encode_s, decode_s) | {
        "rows": sum(f.n_rows for f in frames),
        "kept_rows": sum(f.kept_rows for f in frames),
        "planes": [_plane(frames, i, name) for i, name in enumerate(_PLANES[plan.type])],
    }


def _measure_rows(tensor: Tensor, plan: CodecPlan) -> Row:
    code = codec.RowCode(tensor.values[: plan.chunk], type=plan.type)
    encoded, encode_s = _fastest(plan.repetitions, lambda: code.encode(tensor.values))
    found, decode_s = _fastest(plan.repetitions, lambda: code.decode(encoded))
    _check_same(tensor, found, tensor.values)
    n = len(tensor.values)
    return _row(tensor, ROWS, "auto", "auto", len(encoded.data), encode_s, decode_s) | {
        "rows": n,
        "kept_rows": n,
        "planes": [],
    }


def _check_same(tensor: Tensor, found: NDArray[Any], expected: NDArray[Any]) -> None:
    if found.tobytes() != expected.tobytes():
        raise H2OError(f"[codec] {tensor.part} of layer {tensor.layer} came back changed: please report this")


def _row(tensor: Tensor, view: str, predictor: str, code: str, stored: int, encode_s: float, decode_s: float) -> Row:
    raw = tensor.values.nbytes
    return {
        "layer": tensor.layer,
        "part": tensor.part,
        "view": view,
        "predictor": predictor,
        "codec": code,
        "raw_bytes": raw,
        "stored_bytes": stored,
        "ratio": raw / stored,
        "encode_per_s": raw / encode_s,
        "decode_per_s": raw / decode_s,
    }


def _plane(frames: Sequence[codec.Frame], index: int, name: str) -> Row:
    """One plane in all frames; in a frame without planes it is stored as it is."""
    n_planes = len(_PLANES[frames[0].type])
    row: Row = {"name": name, "raw_bytes": 0, "stored_bytes": 0}
    predictors: Counter[str] = Counter()
    for frame in frames:
        if frame.planes:
            plane = frame.planes[index]
            sizes, predictor = (plane.raw_bytes, plane.stored_bytes), plane.predictor
        else:
            sizes, predictor = (frame.raw_bytes // n_planes,) * 2, "raw"
        row["raw_bytes"] += sizes[0]
        row["stored_bytes"] += sizes[1]
        predictors[predictor] += 1
    return row | {"predictors": dict(predictors)}


def _fastest(repetitions: int, f: Callable[[], Any]) -> tuple[Any, float]:
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        result = f()
        seconds.append(time.perf_counter() - start)
    return result, min(seconds)
