"""The model and the text that a command line names."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from h2o_llama import H2OConfig, Llama, demo_model_path
from h2o_llama.loading import load_model


def model_file(name: str) -> Path:
    """The path of a model; 'demo' is the one in this package."""
    return demo_model_path() if name == "demo" else Path(name)


def open_model(
    path: Path, n_ctx: int, chunk: int, threads: int | None, gpu_layers: int, h2o: H2OConfig | None
) -> Llama:
    """The model with a context, as the options that `run` and `inspect` share ask for it."""
    return Llama(
        path,
        n_ctx=n_ctx,
        n_batch=max(4096, chunk),
        n_ubatch=chunk,
        n_threads=threads,
        n_gpu_layers=gpu_layers,
        h2o=h2o,
    )


def read_prompt(file: Path | None, prompt: str) -> bytes:
    """The file's text and `prompt` after it."""
    if file is None and not prompt:
        raise typer.BadParameter("give a text by --file, --prompt or both")
    if file is None:
        return prompt.encode()
    text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    return text + prompt.encode()


def tokenize(model: Path, text: bytes, special: bool = False) -> list[int]:
    """Token ids of a text, before there is a context: its size depends on how many they are.

    Raises ValueError if the text has no tokens.
    """
    tokens = load_model(model, n_gpu_layers=0, verbose=False).tokenize(text, True, special)
    if not tokens:
        raise ValueError("the text is empty")
    return tokens
