"""What the benchmarks have in common: H2O's defaults, and texts."""

from __future__ import annotations

from pathlib import Path

from h2o_llama import H2OConfig, Model

CHUNK_SIZE = 1024
DEFAULT = H2OConfig()


def parts_of(model: str, text: Path, n_tokens: int, n: int) -> list[str]:
    """The first n parts of a text, so many tokens each."""
    with Model(model) as it:
        tokens = it.tokenize(text.read_bytes()[: 12 * n * n_tokens])
        return [it.detokenize(tokens[i * n_tokens :][:n_tokens]).decode(errors="replace") for i in range(n)]
