"""The build: includes and imports, the notices of the compiled sources, and the source distribution."""

import ast
import re
import tarfile
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from scikit_build_core import build

ROOT = Path(__file__).parents[2]
NOTICES = "THIRD_PARTY_NOTICES.txt"
HOLDER = re.compile(r"Copyright(?:Text:)?(?: Copyright)?(?: \([cC]\))?[\d –-]*(?: |$)([A-Z][\w ]+)")
VENDORED = [ROOT / "vendor" / name for name in ("codecs", "pcre2")]
VENDORED += [ROOT / "vendor" / "llama.cpp" / name for name in ("src", "common", "vendor")]
PAGE = "python/h2o_llama/page/app"
VENDORED += [ROOT / "vendor" / "llama.cpp" / "ggml" / "src" / name for name in ("ggml-cpu", "ggml-cuda", "ggml-rpc")]
FETCHED = (
    *(f"vendor/{name}" for name in ("llama.cpp", "codecs", "pcre2")),
    f"{PAGE}/markdown/",
    ".venv",
    "build/",
)


def test_the_cores_includes_go_in_one_direction() -> None:
    """A part is a header with its source file."""
    source = ROOT / "src"
    files = [path for path in (source / "h2o").rglob("*.*") if path.suffix in (".h", ".cpp")]
    parts: dict[Path, set[Path]] = {path.relative_to(source).with_suffix(""): set() for path in files}
    for path in files:
        part = path.relative_to(source).with_suffix("")
        includes = {Path(name).with_suffix("") for name in re.findall(r'#include "([^"]+)"', path.read_text())}
        parts[part] |= (includes & parts.keys()) - {part}
    while parts:
        lowest = [part for part, below in parts.items() if not below & parts.keys()]
        assert lowest, f"these include each other: {sorted(parts)}"
        for part in lowest:
            del parts[part]


ROOMS = (
    *(
        "errors _internal",
        "_extraction _markup _prompt _thoughts config documents grammar lossless sampling",
        "embedding model models",
    ),
    *("sequence", "library", "chat", "inspect", "_sequence llama", "_bench _demo batch eval", "_api _cli _llm_plugin"),
)
"""Folders, and modules beside them, from the ground up: none imports from one above it."""


def test_the_packages_imports_go_in_one_direction() -> None:
    """Also those in functions, and for types. A module without an underscore is on a page of the manual."""
    root = ROOT / "python"
    files = {".".join(path.relative_to(root).with_suffix("").parts): path for path in root.rglob("*.py")}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                modules = {f"{node.module}.{alias.name}": str(node.module) for alias in node.names}
                found |= {
                    whole if whole in files else module for whole, module in modules.items() if "._core" not in whole
                }
        graph[name] = found & files.keys() - {name}
    TopologicalSorter(graph).prepare()  # raises CycleError
    floors = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms.split()}
    floor_of = {name: floors[name.split(".")[1]] for name in files if name.count(".") and name != "h2o_llama.__main__"}
    floor_of |= {"h2o_llama": len(ROOMS) - 1, "h2o_llama.__main__": len(ROOMS)}
    up = [(name, other) for name, others in graph.items() for other in others if floor_of[name] < floor_of[other]]
    assert up == []
    pages = " ".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    public = [name for name, path in files.items() if path.name != "__init__.py" and "._" not in name]
    assert [name for name in public if name not in pages] == []


# --- notices


def words(text: str) -> str:
    return " ".join(text.split())


def test_every_licence_file_is_in_them() -> None:
    notices = words((ROOT / NOTICES).read_text(encoding="utf-8"))
    files = [path for path in (ROOT / "vendor").glob("*/**/LICEN[SC]E*") if ".cache" not in path.parts]
    files += (ROOT / PAGE).rglob("LICENSE")
    assert len(files) >= 8
    for path in files:
        for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
            is_title = re.fullmatch(r"\W*(The )?(MIT|BSD|Unlicense)[ \w-]*(\(MIT\))?", words(paragraph))
            assert is_title or words(paragraph) in notices, f"{path}: {paragraph}"


def test_every_holder_is_in_them() -> None:
    notices = (ROOT / NOTICES).read_text(encoding="utf-8")
    holders = {}
    for path in (path for folder in VENDORED for path in folder.rglob("*.*")):
        if path.suffix in (".c", ".cpp", ".cu", ".h", ".hpp"):
            text = path.read_text(encoding="utf-8", errors="replace")
            for name in HOLDER.findall(text):
                holders[name.strip()] = path
    assert {"Yann Collet", "University of Cambridge", "Sean Barrett", "Niels Lohmann"} <= holders.keys()
    for holder, path in holders.items():
        assert holder in notices, path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_they_are_in_wheel_and_source_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    info = tmp_path / build.prepare_metadata_for_build_wheel(str(tmp_path))
    for name in ("LICENSE", NOTICES):
        assert (info / "licenses" / name).read_bytes() == (ROOT / name).read_bytes()
    with tarfile.open(tmp_path / build.build_sdist(str(tmp_path))) as archive:
        sizes = {member.name.partition("/")[2]: member.size for member in archive}
    names = sizes.keys()
    assert {"LICENSE", NOTICES, "src/h2o/llama-h2o.h", "vendor/fetch.py"} <= names
    assert not [name for name in names if name.startswith(FETCHED)]
    large = [name for name, size in sizes.items() if size > 300_000]
    assert large == ["python/h2o_llama/data/demo-qwen3-2m-f16.gguf"]
