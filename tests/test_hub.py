"""`Llama.from_pretrained`, with a module that stands for the hub: nothing is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from h2o_llama import H2OWarning, Llama


class FakeHub:
    """Stands for the module huggingface_hub."""

    def __init__(self, files: list[str], path: Path) -> None:
        self.files = files
        self.path = path
        self.downloaded: list[tuple[str, str]] = []
        self.options: list[dict[str, Any]] = []
        self.cache: Path | None = None
        self.error: Exception | None = None

    def list_repo_files(self, repo_id: str, **options: Any) -> list[str]:
        self.options.append(options)
        if self.error is not None:
            raise self.error
        return self.files

    def hf_hub_download(self, repo_id: str, filename: str, **options: Any) -> str:
        self.downloaded.append((repo_id, filename))
        self.options.append(options)
        return str(self.path)

    def snapshot_download(self, repo_id: str, revision: str | None, local_files_only: bool) -> str:
        assert local_files_only
        if self.cache is None:
            raise FileNotFoundError("nothing is cached")
        return str(self.cache)

    def module(self) -> SimpleNamespace:
        names = ("list_repo_files", "hf_hub_download", "snapshot_download")
        return SimpleNamespace(**{name: getattr(self, name) for name in names})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> FakeHub:
    hub = FakeHub(FILES, tiny_model)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub.module())  # type: ignore[arg-type]
    return hub


FILES = ["README.md", "m-F16.gguf", "m-Q8_0.gguf", "sub/m-Q4_0-00001-of-00002.gguf", "sub/m-Q4_0-00002-of-00002.gguf"]


@pytest.mark.parametrize(
    ("filename", "downloaded"),
    [
        ({}, ["m-Q8_0.gguf"]),
        ({"filename": "m-F16.gguf"}, ["m-F16.gguf"]),
        ({"filename": "*Q4_0*"}, ["sub/m-Q4_0-00001-of-00002.gguf", "sub/m-Q4_0-00002-of-00002.gguf"]),
    ],
)
def test_from_pretrained(hub: FakeHub, filename: dict[str, str], downloaded: list[str]) -> None:
    who = {"revision": "v2", "token": "secret"}
    with Llama.from_pretrained("someone/m", **filename, **who, n_ctx=32, n_ubatch=16, h2o=None) as llm:
        assert llm.n_ctx == 32
    assert hub.options == [who] * (1 + len(downloaded))
    assert hub.downloaded == [("someone/m", name) for name in downloaded]


def test_from_pretrained_needs_one_match(hub: FakeHub) -> None:
    for filename, message in (
        ("*.gguf", "3 files match '.*' in someone/m, expected one; candidates: m-F16.gguf, m-Q8_0.gguf, sub/m-Q4_0"),
        ("*Q2_K.gguf", "no file matches '.*Q2_K.gguf' in someone/m, expected one; candidates: m-F16.gguf"),
    ):
        with pytest.raises(ValueError, match=message):
            Llama.from_pretrained("someone/m", filename)
    assert hub.downloaded == []


def test_from_pretrained_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match=r'pip install "h2o-llama\[hub\]"'):
        Llama.from_pretrained("someone/m")


def test_from_pretrained_without_a_network(hub: FakeHub, tiny_model: Path, tmp_path: Path) -> None:
    """Cached files are used with a warning; without any, the network's error is raised."""
    hub.error = ConnectionError("no network")
    with pytest.raises(ConnectionError, match="no network"):
        Llama.from_pretrained("someone/m")
    hub.cache = tmp_path
    (tmp_path / "m-Q8_0.gguf").symlink_to(tiny_model)
    with (
        pytest.warns(H2OWarning, match="no network: the earlier download of someone/m is used"),
        Llama.from_pretrained("someone/m", n_ctx=32, n_ubatch=16, h2o=None) as llm,
    ):
        assert llm.model_path == str(tmp_path / "m-Q8_0.gguf")
    with pytest.raises(ValueError, match="no file matches"):
        Llama.from_pretrained("someone/m", "*F16.gguf")
    assert hub.downloaded == []


def test_a_cache_that_lacks_a_part_is_not_used(hub: FakeHub, tmp_path: Path) -> None:
    hub.error, hub.cache = ConnectionError("no network"), tmp_path
    (tmp_path / "m-00001-of-00002.gguf").touch()
    with pytest.raises(ConnectionError, match="no network"):
        Llama.from_pretrained("someone/m", "*")


def test_a_refusal_of_the_hub_is_no_missing_network(hub: FakeHub, tiny_model: Path, tmp_path: Path) -> None:
    hub.cache, refusal = tmp_path, OSError("401: this model is gated")
    hub.error = refusal
    refusal.response = SimpleNamespace(status_code=401)  # type: ignore[attr-defined]
    (tmp_path / "m-Q8_0.gguf").symlink_to(tiny_model)
    with pytest.raises(OSError, match="gated"):
        Llama.from_pretrained("someone/m")
