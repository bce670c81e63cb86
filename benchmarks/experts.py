"""Prefill of a mixture of experts: dense attention and H2O, each with upstream's products and with H2O's.

    python benchmarks/experts.py
    python benchmarks/experts.py --types f16 --n-tokens 2048

The model has layers of Qwen3-30B-A3B's shape, next to no vocabulary, and random weights: by default in the types of a
Q4_K_M file. All take turns; time is that of the CPU, so that other processes matter little.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import gguf
import numpy as np
import typer
from numpy.typing import NDArray

from h2o_llama import Llama
from h2o_llama._internal.machine import cpu_model
from random_model import CACHE
from settings import DEFAULT

N_EMBD, N_FF, N_HEAD, N_HEAD_KV, HEAD_SIZE = 2048, 768, 32, 4, 128
N_EXPERT, N_USED = 128, 8
N_VOCAB = 256

# The type of most weights, and of values and down projections in every second layer.
TYPES = {"q4_k_m": ("q4_K", "q6_K"), "f16": ("f16", "f16"), "bf16": ("bf16", "bf16"), "q8_0": ("q8_0", "q8_0")}

WAYS: dict[str, dict[str, Any]] = {
    "dense, upstream's products": {"h2o": None, "products": "upstream"},
    "dense, own products": {"h2o": None, "products": "own"},
    "H2O, upstream's products": {"h2o": DEFAULT, "products": "upstream"},
    "H2O": {"h2o": DEFAULT},
}


def main(
    n_tokens: Annotated[int, typer.Option(help="Tokens of the prompt.", min=1)] = 4096,
    types: Annotated[str, typer.Option(help=f"Types of weights: {', '.join(TYPES)}.")] = "q4_k_m",
    layers: Annotated[int, typer.Option(help="Layers.", min=1)] = 2,
    threads: Annotated[int, typer.Option(help="Threads.", min=1)] = 1,
    repeats: Annotated[int, typer.Option(help="Prefills of each kind, after one that does not count.", min=1)] = 3,
) -> None:
    """Print a Markdown table: milliseconds of CPU time for a token and layer, and upstream's over it."""
    path = model_file(types, layers)
    tokens = np.random.default_rng(0).integers(0, N_VOCAB, n_tokens, dtype=np.int32)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    with ExitStack() as stack:
        opened = {
            name: stack.enter_context(Llama(path, n_ctx=n_tokens, n_threads=threads, **options))
            for name, options in WAYS.items()
        }
        for _ in range(repeats + 1):
            for name, llm in opened.items():
                llm.reset()
                start = time.process_time()
                llm.eval(tokens)
                seconds[name].append(time.process_time() - start)

    taken = {name: median(values[1:]) for name, values in seconds.items()}
    first = next(iter(taken.values()))
    print(f"{cpu_model()}, {types}, {n_tokens:,} tokens, {threads} thread(s)\n")
    print("| | ms | |\n| --- | --: | --: |")
    for name, value in taken.items():
        print(f"| {name} | {1e3 * value / n_tokens / layers:.3f} | {first / value:.2f} |")


def model_file(types: str, n_layer: int) -> Path:
    """Path of the model's GGUF, which is made on first use (about 400 MB a layer in Q4_K_M's types)."""
    path = CACHE / f"qwen3moe-{n_layer}x{N_EMBD}-{N_EXPERT}-{types}.gguf"
    if not path.exists():
        CACHE.mkdir(exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        _write(temporary, types, n_layer)
        temporary.replace(path)
    return path


def random_weights(rng: np.random.Generator, type_name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Bytes of a type, [..., bytes of a row], of weights of the size that leaves activations theirs."""
    size = 1 / np.sqrt(shape[-1])
    ggml_type = gguf.GGMLQuantizationType[type_name.upper()]
    n_numbers, n_bytes = gguf.GGML_QUANT_SIZES[ggml_type]
    if type_name not in ("q4_K", "q6_K"):  # gguf does not quantize to these
        numbers = size * rng.standard_normal((1, *shape[-2:]), dtype=np.float32)
        rows = gguf.quants.quantize(numbers, ggml_type).view(np.uint8)
        return np.broadcast_to(rows.reshape(*shape[-2:-1], -1), (*shape[:-1], rows.shape[-1])).copy()
    units = rng.integers(0, 256, (*shape[:-1], shape[-1] // n_numbers, n_bytes), dtype=np.uint8)
    if type_name == "q4_K":  # scale*number - minimum, both scales up to 63, numbers up to 15
        units[..., :4] = np.float16([size / 200, 7.5 * size / 200]).view(np.uint8)
    else:  # scales up to 127, numbers up to 32
        units[..., -2:] = np.float16([size / 1400]).view(np.uint8)
    return units.reshape(*shape[:-1], -1)


def _write(path: Path, types: str, n_layer: int) -> None:
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_name("h2o-llama benchmark")
    writer.add_context_length(131072)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(N_FF * N_USED)
    writer.add_expert_count(N_EXPERT)
    writer.add_expert_used_count(N_USED)
    writer.add_expert_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("no_vocab")

    rng = np.random.default_rng(0)
    most, better = TYPES[types]

    def add(name: str, type_name: str, *shape: int) -> None:
        raw = gguf.GGMLQuantizationType[type_name.upper()]
        writer.add_tensor(f"{name}.weight", random_weights(rng, type_name, shape), raw_dtype=raw)

    def add_norm(name: str, n: int) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(n, dtype=np.float32))

    add("token_embd", better, N_VOCAB, N_EMBD)  # also the output layer: embeddings are tied
    add_norm("output_norm", N_EMBD)
    for il in range(n_layer):
        prefix = f"blk.{il}."
        best = better if il % 2 == 0 else most
        add_norm(prefix + "attn_norm", N_EMBD)
        add(prefix + "attn_q", most, N_HEAD * HEAD_SIZE, N_EMBD)
        add(prefix + "attn_k", most, N_HEAD_KV * HEAD_SIZE, N_EMBD)
        add(prefix + "attn_v", best, N_HEAD_KV * HEAD_SIZE, N_EMBD)
        add(prefix + "attn_output", most, N_EMBD, N_HEAD * HEAD_SIZE)
        add_norm(prefix + "attn_q_norm", HEAD_SIZE)
        add_norm(prefix + "attn_k_norm", HEAD_SIZE)
        add_norm(prefix + "ffn_norm", N_EMBD)
        writer.add_tensor(f"{prefix}ffn_gate_inp.weight", rng.standard_normal((N_EXPERT, N_EMBD), dtype=np.float32))
        add(prefix + "ffn_gate_exps", most, N_EXPERT, N_FF, N_EMBD)
        add(prefix + "ffn_up_exps", most, N_EXPERT, N_FF, N_EMBD)
        add(prefix + "ffn_down_exps", best, N_EXPERT, N_EMBD, N_FF)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    typer.run(main)
