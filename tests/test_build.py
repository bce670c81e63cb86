"""CMake's message when a requirement of the build is missing: one message, and no source tree."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import cmake
import ninja
import pytest

REPOSITORY = Path(__file__).parent.parent

pytestmark = pytest.mark.slow


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that configuring reads, without a source tree or a download."""
    root = tmp_path / "checkout"
    (root / "vendor").mkdir(parents=True)
    shutil.copy(REPOSITORY / "CMakeLists.txt", root)
    shutil.copytree(REPOSITORY / "cmake", root / "cmake")
    for name in ("fetch.py", "apply_patch.py", "requirements.txt"):
        shutil.copy(REPOSITORY / "vendor" / name, root / "vendor")
    return root


def configure_error(checkout: Path, *options: str, **environment: str) -> str:
    """The error that configuring stops with, as one line."""
    result = subprocess.run(
        [
            *(Path(cmake.CMAKE_BIN_DIR) / "cmake", "-S", checkout, "-B", checkout / "build", "-G", "Ninja", *options),
            *(f"-DCMAKE_MAKE_PROGRAM={Path(ninja.BIN_DIR) / 'ninja'}", f"-DPython_EXECUTABLE={sys.executable}"),
        ],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert not (checkout / "vendor" / "llama.cpp").exists()
    assert result.stderr.count("CMake Error") == 1
    return " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ([], {"CC": "no-such-compiler"}, "no working C and C++17 compiler found (CC='no-such-compiler', CXX='"),
        (["-DGGML_CUDA=ON"], {"CUDACXX": "no-such-compiler"}, "GGML_CUDA is on, and nvcc was not found"),
        (["-DGGML_VULKAN=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_Vulkan=ON"], {}, "GGML_VULKAN is on, and Vulkan's headers"),
    ],
)
def test_what_is_missing_is_named(
    checkout: Path, options: list[str], environment: dict[str, str], expected: str
) -> None:
    assert expected in configure_error(checkout, *options, **environment)


def test_the_cores_includes_go_in_one_direction() -> None:
    """A part is a header with its source file."""
    source = REPOSITORY / "src"
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


def test_the_packages_imports_go_in_one_direction() -> None:
    """Also those for types. A module without an underscore is on a page of the manual."""
    root = REPOSITORY / "python"
    files = {".".join(path.relative_to(root).with_suffix("").parts): path for path in root.rglob("*.py")}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    core = "h2o_llama._core"

    def imported(body: list[ast.stmt]) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.If):
                yield from imported(node.body)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    yield name if name in files or name == core else str(node.module)

    graph = {name: set(imported(ast.parse(path.read_text()).body)) & files.keys() for name, path in files.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError
    pages = " ".join(page.read_text() for page in (REPOSITORY / "docs").rglob("*.md"))
    public = [name for name, path in files.items() if path.name != "__init__.py" and "._" not in name]
    assert [name for name in public if name not in pages] == []
