"""Compare the package's logits for the demo model with PyTorch's, float32 on both sides, from the same GGUF file."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from demo_data import TextSource, load_corpus
from demo_gguf import read_gguf
from export_demo_model import DEFAULT_MODEL


def held_out_tokens(n: int) -> np.ndarray:
    """The first n tokens that a fixed seed draws from the held-out files."""
    return TextSource(load_corpus().held_out).draw(n, np.random.default_rng(0))


def torch_logits(path: Path, tokens: np.ndarray) -> np.ndarray:
    """Logits [n, n_vocab] of the training framework."""
    with torch.inference_mode():
        return read_gguf(path)(torch.from_numpy(tokens)[None])[0].numpy()


def package_logits(path: Path, tokens: np.ndarray) -> np.ndarray:
    """Logits [n, n_vocab] of the package, dense attention."""
    from h2o_llama import Llama

    n = len(tokens)
    options = {"flash_attn": "off", "h2o": None, "type_k": "f32", "type_v": "f32", "n_gpu_layers": 0}
    with Llama(str(path), n_ctx=n, n_batch=n, n_ubatch=min(n, 512), **options) as llm:
        llm.eval(tokens.tolist(), logits="all")
        return np.array(llm.logits, np.float32)


def report(reference: np.ndarray, other: np.ndarray) -> None:
    """Maximum differences, the relative one against the largest logit of its position."""
    difference = np.abs(reference - other)
    scale = np.abs(reference).max(axis=1, keepdims=True)
    agree = (reference.argmax(1) == other.argmax(1)).mean()
    print(
        f"{len(reference)} tokens: max abs {difference.max():.3e}, max relative {(difference / scale).max():.3e}, "
        f"mean abs {difference.mean():.3e}, same best token {agree:.4f}"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL)
    parser.add_argument("--text", type=Path, help="a file to run instead of held-out text")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--save", type=Path, help="write tokens and PyTorch logits to this .npz; no package needed")
    args = parser.parse_args()
    text = np.frombuffer(args.text.read_bytes(), np.uint8).astype(np.int64) if args.text else None
    saved: dict[str, np.ndarray] = {}
    for n in args.lengths:
        tokens = text[:n] if text is not None else held_out_tokens(n)
        reference = torch_logits(args.model, tokens)
        if args.save:
            saved |= {f"tokens_{n}": tokens.astype(np.int32), f"logits_{n}": reference}
        else:
            report(reference, package_logits(args.model, tokens))
    if args.save:
        np.savez_compressed(args.save, **saved)


if __name__ == "__main__":
    main()
