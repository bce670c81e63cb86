"""The gate's prompts: real texts, and a single repeated token, the usual input of engines' benchmarks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from h2o_llama.llama import Llama
from h2o_llama.model import Model

Tokens = NDArray[np.int32]

LENGTHS = {"short": 1_100, "medium": 2_600, "long": 7_500}
TURNS = 3_000
PLACES = {"short": 8, "medium": 4, "long": 2, "turns": 4}
"""How many of each: the answer to a single short one says little."""

_TURN_BYTES = 1_500


def prompts(llm: Model | Llama, text: bytes, tokens: Tokens, n_after: int) -> Iterator[tuple[str, list[Tokens]]]:
    """Names and tokens, n_after more than the prompt: parts all over the text, and of a conversation made of it."""
    for name, n in LENGTHS.items():
        yield name, _parts(tokens, PLACES[name], n + n_after)
    yield "turns", _parts(np.array(_turns(llm, text), dtype=np.int32), PLACES["turns"], TURNS + n_after)


def synthetic(llm: Model | Llama, n: int) -> Tokens:
    return np.full(n, min(16, llm.n_vocab - 1), dtype=np.int32)


def _parts(tokens: Tokens, n_parts: int, n: int) -> list[Tokens]:
    """`n_parts` parts of n tokens each, the first at the beginning, the last at the end."""
    if len(tokens) < n:
        raise ValueError(f"[gate] the text must have at least {n:,} tokens, it has {len(tokens):,}")
    starts = np.linspace(0, len(tokens) - n, n_parts).astype(int)
    return [tokens[start : start + n] for start in starts]


def _turns(llm: Model | Llama, text: bytes) -> list[int]:
    """Two sides in turn, by the model's chat template where it has one."""
    words = text[-40 * _TURN_BYTES :].decode(errors="ignore")
    pieces = [words[i : i + _TURN_BYTES] for i in range(0, len(words), _TURN_BYTES)]
    messages = [{"role": ("user", "assistant")[i % 2], "content": piece} for i, piece in enumerate(pieces)]
    if "tokenizer.chat_template" not in llm.metadata:
        return llm.tokenize("\n\n".join(pieces))
    return llm.tokenize(llm.apply_chat_template(messages, add_generation_prompt=False), parse_special=True)
