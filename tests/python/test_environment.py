"""Every environment variable of ours that anything reads is in docs/environment.md, and no other one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATTERNS = ("src/**/*.*", "python/**/*.py", "tests/**/*.py", "tools/*", "vendor/*.py", "benchmarks/**/*.py")
# a string that is a name, or an f-string or message that begins with one: "H2O_LLAMA_SOURCE={…}
NAME = re.compile(r"""["']((?:H2O|LLAMACPP)_[A-Z0-9_]+)(?=["'=])""")


def test_the_page_has_every_variable() -> None:
    files = [path for pattern in PATTERNS for path in ROOT.glob(pattern) if path.is_file() and path != Path(__file__)]
    read = {name for path in files for name in NAME.findall(path.read_text(encoding="utf-8"))}
    read |= set(re.findall(r"^if\.env\.(\w+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE))
    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    named = {name for row in re.findall(r"^\|([^|]+)\|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    named = {name for name in named if name.startswith(("H2O_", "LLAMACPP_"))}
    assert {"H2O_ISA", "H2O_LLAMA_SOURCE", "H2O_LLAMA_WHEEL", "LLAMACPP_TEST_MODELFILE"} <= read
    assert named == read
