"""Random LoRA adapters of a model, written by the tests themselves, and the same added to its weights."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFWriter

from models import finish

Array = npt.NDArray[np.float32]

RANK = 4
ALPHA = 6.0
# The weights that an adapter changes, by their names in a layer; a model has some of them. MLA's queries and latents
# are left out: llama.cpp multiplies by them without looking at adapters.
CHANGED = (
    *("attn_q", "attn_k", "attn_v", "attn_output", "shortconv.in_proj"),
    *("ffn_gate", "ffn_down", "ffn_gate_exps", "ffn_down_exps", "ffn_up_shexp"),
)


@dataclass
class Adapter:
    """The factors of each weight's change: A [.., rank, n_in] and B [.., n_out, rank]."""

    architecture: str
    factors: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    alpha: float = ALPHA

    def write(self, path: Path, **metadata: str) -> Path:
        """Its file. Optional metadata: `type`, `architecture`, `kind`, and `tokens` of an activated one."""
        writer = GGUFWriter(path, metadata.get("architecture", self.architecture))
        writer.add_type(metadata.get("type", "adapter"))
        writer.add_string("adapter.type", metadata.get("kind", "lora"))
        writer.add_float32("adapter.lora.alpha", self.alpha)
        if "tokens" in metadata:
            writer.add_array("adapter.alora.invocation_tokens", list(metadata["tokens"].encode()))
        for name, (a, b) in self.factors.items():
            writer.add_tensor(name + ".lora_a", a)
            writer.add_tensor(name + ".lora_b", b)
        finish(writer)
        return path

    def merge_into(self, model: Path, path: Path, scale: float = 1.0) -> Path:
        """A copy of a model in F32 with this added to its weights."""
        shutil.copy(model, path)
        reader = GGUFReader(path, "r+")
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        for name, (a, b) in self.factors.items():
            added = np.float32(scale * self.alpha / a.shape[-2]) * (b.astype(np.float64) @ a)
            tensors[name].data[...] += added.astype(np.float32)
        reader.data.flush()
        return path


def random_adapter(model: Path, rank: int = RANK, seed: int = 0, gain: float = 0.6, embedding: bool = False) -> Adapter:
    """Of a model's attention, feed-forward networks and experts; with a gain of 1 it is as large as the weights are."""
    reader = GGUFReader(model)
    rng = np.random.default_rng(seed)
    adapter = Adapter(str(reader.fields["general.architecture"].contents()))

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape, dtype=np.float32)

    for tensor in reader.tensors:
        n_in, n_out, *experts = map(int, tensor.shape) if len(tensor.shape) > 1 else (0, 0)
        which = tensor.name.removesuffix(".weight").split(".", 2)[-1]
        if which in CHANGED:
            a = normal(*experts, rank, n_in)
            size = gain / (ALPHA / rank) / np.sqrt(n_in * rank)
            adapter.factors[tensor.name] = a, normal(*experts, n_out, rank) * np.float32(size)
        elif embedding and tensor.name == "token_embd.weight":
            # A row of the table for each token: the change of a looked-up row is B · A[token].
            adapter.factors[tensor.name] = normal(n_out, rank), normal(n_in, rank) * np.float32(gain / rank)
    return adapter
