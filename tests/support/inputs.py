"""Models and prompts that tests run on."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from h2o_llama import Llama

Result = TypeVar("Result")

# Path of a fixture model by its name in the table of conftest.py.
ModelByName = Callable[[str], Path]

# opened(name, open_, *arguments): a fixture of conftest.py.
Opened = Callable[..., "Llama"]

# A model of the user's choice; every test with a `model_path` also runs against it.
EXTERNAL_MODEL = os.environ.get("LLAMACPP_TEST_MODELFILE")

# Factor for the length of attacks (bad requests, damaged files, killed processes), and their seed.
LONGER = float(os.environ.get("H2O_TEST_LONGER", "1"))
SEED = int(os.environ.get("H2O_TEST_SEED", "0"))


def on_a_small_stack(call: Callable[[], Result]) -> Result:
    """What a call returns or raises in a thread of 256 KiB."""
    before = threading.stack_size(256 * 1024)
    try:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call).result()
    finally:
        threading.stack_size(before)


def is_external(path: Path) -> bool:
    return EXTERNAL_MODEL is not None and path == Path(EXTERNAL_MODEL)


def random_tokens(n: int, n_vocab: int = 256, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, n_vocab, n).tolist()
    return ids


def repetitive_tokens(n: int, n_vocab: int = 256, seed: int = 0) -> list[int]:
    """Four passages of few ids in random order, one token in eight changed: most n-grams come again."""
    rng = np.random.default_rng(seed)
    passages = rng.integers(0, min(n_vocab, 40), (4, 9))
    tokens = passages[rng.integers(0, 4, n // 9 + 1)].ravel()[:n]
    ids: list[int] = np.where(rng.random(n) < 1 / 8, rng.integers(0, n_vocab, n), tokens).tolist()
    return ids


def split(tokens: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Cut into calls of the given sizes, which add up to the number of tokens."""
    assert sum(sizes) == len(tokens)
    ends = np.cumsum(sizes)
    return [list(tokens[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def slowly(*values: str) -> list[Any]:
    """Values of a parameter for which a test is slow."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def small(n_examples: int = 30) -> settings:
    """Of Hypothesis: the same examples each time. `flash_attn` sets an environment variable for all of them alike."""
    checks = [HealthCheck.function_scoped_fixture]
    return settings(max_examples=n_examples, deadline=None, derandomize=True, suppress_health_check=checks)
