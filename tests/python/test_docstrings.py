"""The examples of docstrings run unchanged: on the demo model, with chunks of 64 tokens, in an empty folder."""

import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import h2o_llama
from h2o_llama import H2OConfig, Llama, demo_model_path
from inputs import Opened

PACKAGE = Path(h2o_llama.__file__).parent


def find_examples() -> Iterator[doctest.DocTest]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
            yield from (test for test in doctest.DocTestFinder().find(importlib.import_module(name)) if test.examples)


def open_llama() -> Llama:
    h2o = H2OConfig(chunk_size=64)
    return Llama(demo_model_path(), n_ctx=2048, n_threads=1, n_seq_max=2, h2o=h2o, keep_history=True)


@pytest.mark.parametrize("example", list(find_examples()), ids=lambda example: example.name)
def test_example(example: doctest.DocTest, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `llm`, `model` and what the package exports."""
    monkeypatch.chdir(tmp_path)
    llm = opened("llm", open_llama)
    example.globs |= {name: getattr(h2o_llama, name) for name in h2o_llama.__all__}
    example.globs |= {"np": np, "llm": llm, "model": llm.model}
    told: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=told.append)
    assert not failed, "".join(told)
