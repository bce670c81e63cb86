"""What the benchmarks have in common: H2O's defaults, and texts."""

from __future__ import annotations

from pathlib import Path

from h2o_llama import H2OConfig, Llama

CHUNK_SIZE = 1024
DEFAULT = H2OConfig()


def parts_of(model: str, text: Path, n_tokens: int, n: int) -> list[str]:
    """The first n parts of a text, so many tokens each."""
    with Llama(model, n_ctx=1, n_batch=1, n_ubatch=1, h2o=None) as llm:
        tokens = llm.tokenize(text.read_bytes()[: 12 * n * n_tokens])
        return [llm.detokenize(tokens[i * n_tokens :][:n_tokens]).decode(errors="replace") for i in range(n)]
