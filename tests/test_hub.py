"""`Llama.from_pretrained`, with a module that stands for the hub: nothing is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from h2o_llama import Llama


class FakeHub:
    """Stands for the module huggingface_hub."""

    def __init__(self, files: list[str], path: Path) -> None:
        self.files = files
        self.path = path
        self.downloaded: list[tuple[str, str]] = []

    def list_repo_files(self, repo_id: str) -> list[str]:
        return self.files

    def hf_hub_download(self, repo_id: str, filename: str) -> str:
        self.downloaded.append((repo_id, filename))
        return str(self.path)

    def module(self) -> SimpleNamespace:
        return SimpleNamespace(list_repo_files=self.list_repo_files, hf_hub_download=self.hf_hub_download)


FILES = ["README.md", "m-F16.gguf", "m-Q8_0.gguf", "sub/m-Q4_0-00001-of-00002.gguf", "sub/m-Q4_0-00002-of-00002.gguf"]


@pytest.mark.parametrize(
    ("filename", "downloaded"),
    [
        ({}, ["m-Q8_0.gguf"]),
        ({"filename": "m-F16.gguf"}, ["m-F16.gguf"]),
        ({"filename": "*Q4_0*"}, ["sub/m-Q4_0-00001-of-00002.gguf", "sub/m-Q4_0-00002-of-00002.gguf"]),
    ],
)
def test_from_pretrained(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path, filename: dict[str, str], downloaded: list[str]
) -> None:
    hub = FakeHub(FILES, tiny_model)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub.module())  # type: ignore[arg-type]
    with Llama.from_pretrained("someone/m", **filename, n_ctx=32, n_ubatch=16, h2o=None) as llm:
        assert llm.n_ctx == 32
    assert hub.downloaded == [("someone/m", name) for name in downloaded]


@pytest.mark.parametrize(
    ("filename", "message"),
    [
        (
            "*.gguf",
            "3 files match '.*' in someone/m, expected one; candidates: m-F16.gguf, m-Q8_0.gguf, sub/m-Q4_0-00001",
        ),
        ("*Q2_K.gguf", "no file matches '.*Q2_K.gguf' in someone/m, expected one; candidates: m-F16.gguf"),
    ],
)
def test_from_pretrained_needs_one_match(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path, filename: str, message: str
) -> None:
    hub = FakeHub(FILES, tiny_model)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub.module())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        Llama.from_pretrained("someone/m", filename)
    assert hub.downloaded == []


def test_from_pretrained_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match=r'pip install "h2o-llama\[hub\]"'):
        Llama.from_pretrained("someone/m")
