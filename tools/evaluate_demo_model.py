"""Measure the demo model in PyTorch: nats per byte on held-out files, and exact recall by distance."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from demo_data import ANSWER_DIGITS, EOS, KEYS, VALUE_RANGE, answer, definition, load_corpus, question
from demo_gguf import read_gguf
from demo_model import DemoModel
from export_demo_model import DEFAULT_MODEL

BUCKETS = ((0, 1024), (1024, 2048), (2048, 4096), (4096, 8192), (8192, 16384))
TEXT_BEFORE = 512
DISTRACTORS = 7


def logits_of(model: DemoModel, tokens: np.ndarray) -> torch.Tensor:
    """Logits [n, n_vocab] in float32."""
    with torch.inference_mode():
        return model(torch.from_numpy(tokens.astype(np.int64))[None])[0]


def joined(files: list[bytes], rng: np.random.Generator) -> np.ndarray:
    """All files in random order, an EOS after each."""
    pieces = [np.append(np.frombuffer(files[i], np.uint8).astype(np.int64), EOS) for i in rng.permutation(len(files))]
    return np.concatenate(pieces)


def text_nats(model: DemoModel, files: list[bytes], context: int, trials: int, rng: np.random.Generator) -> np.ndarray:
    """Mean loss at every position of a context [context]."""
    text = joined(files, rng)
    total = np.zeros(context)
    for _ in range(trials):
        start = int(rng.integers(len(text) - context - 1))
        tokens = text[start : start + context + 1]
        losses = F.cross_entropy(logits_of(model, tokens[:-1]), torch.from_numpy(tokens[1:]), reduction="none")
        total += losses.numpy()
    return total / trials


def recall_prompt(text: bytes, distance: int, rng: np.random.Generator) -> tuple[bytes, int]:
    """A document with one definition about `distance` bytes before the final question, and others anywhere."""
    start = int(rng.integers(len(text) - distance - TEXT_BEFORE))
    lines = text[start : start + distance + TEXT_BEFORE].splitlines(keepends=True)
    starts = np.cumsum([0] + [len(line) for line in lines[:-1]])
    keys = rng.choice(KEYS, DISTRACTORS + 1, replace=False)
    values = rng.integers(*VALUE_RANGE, DISTRACTORS + 1)
    places = [int(np.searchsorted(starts, TEXT_BEFORE)), *rng.integers(1, len(lines), DISTRACTORS).tolist()]
    for place, key, value in sorted(zip(places, keys, values, strict=True), reverse=True):
        lines.insert(place, definition(int(key), int(value)))
    document = b"".join(lines)
    document += b"" if document.endswith(b"\n") else b"\n"
    return document + question(int(keys[0])), int(values[0])


def recall(model: DemoModel, text: bytes, distance: int, trials: int, rng: np.random.Generator) -> float:
    """How often greedy decoding gives all digits; the digits are predicted together, which is the same."""
    right = 0
    for _ in range(trials):
        prompt, value = recall_prompt(text, distance, rng)
        digits = answer(value)[:ANSWER_DIGITS]
        tokens = np.frombuffer(prompt + digits, np.uint8)
        predicted = logits_of(model, tokens[:-1])[-ANSWER_DIGITS:].argmax(-1)
        right += predicted.tolist() == list(digits)
    return right / trials


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--text-trials", type=int, default=20)
    parser.add_argument("--recall-trials", type=int, default=50)
    parser.add_argument("--distances", type=int, nargs="*", default=[256, 1024, 2048, 3072, 4096, 6144, 8192])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rng = np.random.default_rng(args.seed)
    model, held_out = read_gguf(args.model), load_corpus().held_out
    if args.text_trials:
        nats = text_nats(model, held_out, args.context, args.text_trials, rng)
        for low, high in BUCKETS:
            if high <= args.context:
                print(f"text, positions {low}-{high}: {nats[low:high].mean():.3f} nats/byte", flush=True)
    text = b"".join(f for f in held_out if b"import " in f and b"def " in f)
    for distance in args.distances:
        share = recall(model, text, distance, args.recall_trials, rng)
        print(f"recall at {distance} bytes: {share:.3f} of {args.recall_trials}", flush=True)


if __name__ == "__main__":
    main()
