"""What the codec makes of a model's K and V: what `python benchmarks/codec_sizes.py` runs."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h2o_llama import codec
from h2o_llama.bench import prompt_tokens
from h2o_llama.errors import H2OError
from h2o_llama.llama import Llama

Row = dict[str, Any]
Part = Literal["K", "V"]
KVType = Literal["f16", "bf16", "f32"]

# How the rows of a layer become frames: one of all, an upper bound; of some chunks each; of a chunk each; and of some
# chunks, where each row can be decoded alone, as in a cold store.
VIEWS = ("aggregate", "groups", "chunks", "rows")

# Measured in groups beside what is chosen.
PREDICTORS = tuple(name for name in codec.PREDICTORS if name != "auto")

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
        group = self.chunk * self.group
        return {"aggregate": self.n_tokens, "groups": group, "chunks": self.chunk, "rows": group}[view]


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
    """Encode and decode every tensor in every view, and with every predictor in groups.

    Returns
    -------
    list of dict
        For each tensor, view and predictor: "layer", "part" ("K" or "V"), "view", "predictor", "raw_bytes",
        "stored_bytes" (of the frames), "ratio", "encode_per_s", "decode_per_s" (bytes of K and V per second, on one
        core), "rows", "stored_rows" (not equal to an earlier one), "coded_frames" (which are not as the rows were), and
        "planes": for each "name" and how many frames chose which of "predictors", or left it as it was ("as it is").
    """
    cases = [*((view, "auto") for view in VIEWS), *(("groups", predictor) for predictor in PREDICTORS)]
    rows = []
    for i, tensor in enumerate(tensors):
        progress("K and V", i, len(tensors))
        rows += [_measure(tensor, plan, *case) for case in cases]
    progress("K and V", len(tensors), len(tensors))
    return rows


def measure_chosen(tensors: Sequence[Tensor], plan: CodecPlan) -> list[Row]:
    """The same, only in groups and as it would be stored."""
    return [_measure(tensor, plan, "groups", "auto") for tensor in tensors]


def _measure(tensor: Tensor, plan: CodecPlan, view: str, predictor: str) -> Row:
    n = plan.rows_per_frame(view)
    options: dict[str, Any] = {
        "type": plan.type,
        "predictor": predictor,
        "unit_rows": 1 if view == "rows" else None,
    }
    frames = []
    encode_s = decode_s = 0.0
    for start in range(0, len(tensor.values), n):
        block = tensor.values[start : start + n]
        frame, seconds = _fastest(plan.repetitions, lambda: codec.encode(block, **options))  # noqa: B023
        encode_s += seconds
        found, seconds = _fastest(plan.repetitions, lambda: codec.decode(frame))  # noqa: B023
        decode_s += seconds
        if found.tobytes() != block.tobytes():
            raise H2OError(f"[codec] {tensor.part} of layer {tensor.layer} came back changed: please report this")
        frames.append(codec.inspect(frame))
    raw, stored = tensor.values.nbytes, sum(f.stored_bytes for f in frames)
    return {
        "layer": tensor.layer,
        "part": tensor.part,
        "view": view,
        "predictor": predictor,
        "raw_bytes": raw,
        "stored_bytes": stored,
        "ratio": raw / stored,
        "encode_per_s": raw / encode_s,
        "decode_per_s": raw / decode_s,
        "rows": sum(f.n_rows for f in frames),
        "stored_rows": sum(f.stored_rows for f in frames),
        "coded_frames": sum(f.is_coded for f in frames),
        "planes": [
            {"name": name, "predictors": dict(Counter(_how(f.planes[i]) for f in frames))}
            for i, name in enumerate(_PLANES[plan.type])
        ],
    }


def _how(plane: codec.Plane) -> str:
    return plane.predictor if plane.is_coded else "as it is"


def _fastest(repetitions: int, f: Callable[[], Any]) -> tuple[Any, float]:
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        result = f()
        seconds.append(time.perf_counter() - start)
    return result, min(seconds)
