"""Turn a checkpoint of train_demo_model.py into the GGUF file that ships with the package."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from demo_gguf import write_gguf
from demo_model import DemoModel

DEFAULT_MODEL = Path(__file__).parent.parent / "python/h2o_llama/data/demo-qwen3-2m-f16.gguf"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?", default=Path("build/demo-model/checkpoint.pt"))
    parser.add_argument("--out", type=Path, default=DEFAULT_MODEL)
    args = parser.parse_args()
    state = torch.load(args.checkpoint, weights_only=True)
    model = DemoModel()
    model.load_state_dict(state["model"])
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(model, args.out)
    print(f"{args.out}: step {state['step']}, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
