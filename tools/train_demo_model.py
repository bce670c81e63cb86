"""Train the demo model on one CPU core, in about 35 minutes with the defaults if the core is free.

Muon moves the layers' matrices, AdamW everything else. Contexts grow from stage to stage. Every step draws its own
data from (seed, step), so a run that is resumed sees what an uninterrupted one would have seen.

The defaults are what the shipped model was trained with, cosines included: the plan's length changed on the way.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from demo_data import Corpus, Sample, TextSource, load_corpus, make_sample
from demo_model import DemoModel

DEFAULT_STAGES = "256x16:400,512x8:300,1024x4:450,2048x2:250,4096x1:100,8192x1:60"
DEFAULT_HORIZONS = "400:2520,1150:3130,1400:2070,1500:1750,1560:1560"


@dataclass(frozen=True)
class Stage:
    """`steps` steps of `batch` contexts of `context` tokens."""

    context: int
    batch: int
    steps: int


def parse_stages(text: str) -> list[Stage]:
    """Stages written as CONTEXTxBATCH:STEPS, separated by commas."""
    stages = []
    for part in text.split(","):
        shape, steps = part.split(":")
        context, batch = shape.split("x")
        stages.append(Stage(int(context), int(batch), int(steps)))
    return stages


def stage_at(stages: list[Stage], step: int) -> Stage:
    """The stage that a step belongs to."""
    for stage in stages:
        if step < stage.steps:
            return stage
        step -= stage.steps
    raise ValueError("step is past the last stage")


def parse_horizons(text: str) -> list[tuple[int, int]]:
    """Pairs written as UNTIL:HORIZON: before step UNTIL the cosine ends at HORIZON."""
    return [(int(until), int(horizon)) for until, horizon in (part.split(":") for part in text.split(","))]


def horizon_at(horizons: list[tuple[int, int]], step: int) -> int:
    """Where the cosine that holds at a step ends."""
    return next((horizon for until, horizon in horizons if step < until), horizons[-1][1])


def rate_factor(step: int, horizon: int, warmup: int, floor: float) -> float:
    """Linear warm-up, then a cosine down to `floor` at the horizon, and flat from there."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, horizon - warmup))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def make_optimizers(model: DemoModel, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the embedding, the output and the norms."""
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=muon_lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def set_rate(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """Scale every optimizer's rate by the schedule's factor."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("base_lr", group["lr"]) * factor


def make_batch(source: TextSource, stage: Stage, seed: int, step: int) -> list[Sample]:
    """The contexts of one step, a function of (seed, step)."""
    rng = np.random.default_rng([seed, step])
    return [make_sample(source, stage.context, rng) for _ in range(stage.batch)]


def stack(arrays: list[np.ndarray]) -> Tensor:
    """One tensor from equal arrays."""
    return torch.from_numpy(np.stack(arrays))


def train_step(model: DemoModel, samples: list[Sample]) -> dict[str, float]:
    """Gradients of the weighted loss; returns text nats per byte and the answers' nats and accuracy."""
    tokens = stack([s.tokens for s in samples])
    weights, is_answer = stack([s.weights for s in samples]), stack([s.is_answer for s in samples])
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens[:, :-1], stack([s.positions for s in samples]))
    targets = tokens[:, 1:]
    losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    (losses * weights).sum().div(weights.sum()).backward()
    with torch.no_grad():
        is_text = (weights > 0) & ~is_answer
        right = (logits.argmax(-1) == targets)[is_answer].float()
        return {
            "text": losses[is_text].mean().item(),
            "answer": losses[is_answer].mean().item() if right.numel() else math.nan,
            "accuracy": right.mean().item() if right.numel() else math.nan,
        }


def save_checkpoint(path: Path, model: DemoModel, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    """Everything needed to go on, written beside the target and then renamed."""
    state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step}
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)


def load_checkpoint(path: Path, model: DemoModel, optimizers: list[torch.optim.Optimizer]) -> int:
    """Restore a run; returns the next step."""
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return state["step"]


def train(args: argparse.Namespace, corpus: Corpus) -> None:
    """The whole run."""
    torch.manual_seed(args.seed)
    model = DemoModel()
    optimizers = make_optimizers(model, args.muon_lr, args.adam_lr)
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint = args.out / "checkpoint.pt"
    first = load_checkpoint(checkpoint, model, optimizers) if args.resume else 0
    stages, horizons = parse_stages(args.stages), parse_horizons(args.horizons)
    total = sum(s.steps for s in stages)
    source = TextSource(corpus.train)
    log: list[dict[str, float]] = []
    tokens, began = 0, time.monotonic()
    for step in range(first, total):
        stage = stage_at(stages, step)
        set_rate(optimizers, rate_factor(step, horizon_at(horizons, step), args.warmup, args.floor))
        log.append(train_step(model, make_batch(source, stage, args.seed, step)))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        tokens += stage.context * stage.batch
        if (step + 1) % args.log_every == 0:
            means = "  ".join(f"{k} {np.nanmean([x[k] for x in log]):.3f}" for k in log[0])
            seconds = time.monotonic() - began
            print(f"step {step + 1}/{total}  context {stage.context}  {means}  {tokens / seconds:.0f} tokens/s  "
                  f"{tokens / 1e6:.2f} M tokens  {seconds / 60:.1f} min", flush=True)  # fmt: skip
            log.clear()
        if (step + 1) % args.save_every == 0 or step + 1 == total:
            save_checkpoint(checkpoint, model, optimizers, step + 1)


def parse_args() -> argparse.Namespace:
    """The defaults are the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/demo-model"), help="where checkpoints go")
    parser.add_argument("--stages", default=DEFAULT_STAGES, help="CONTEXTxBATCH:STEPS, separated by commas")
    parser.add_argument("--horizons", default=DEFAULT_HORIZONS, help="UNTIL:HORIZON, the cosine's end before a step")
    parser.add_argument("--seed", type=int, default=20240607)
    parser.add_argument("--muon-lr", type=float, default=5e-3)
    parser.add_argument("--adam-lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=50, help="steps")
    parser.add_argument("--floor", type=float, default=0.02, help="the last step's rate, as a part of the full one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args()


def main() -> None:
    """Command line."""
    args = parse_args()
    torch.set_num_threads(args.threads)
    corpus = load_corpus()
    print(f"{len(corpus.train)} files, {sum(map(len, corpus.train)) / 1e6:.1f} MB; {len(corpus.held_out)} held out")
    train(args, corpus)


if __name__ == "__main__":
    main()
