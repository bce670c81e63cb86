"""Run the tests of upstream's server on `llama-server` of the installed package: python tools/check_server.py [-k WORDS]

They come from the pinned source distribution, and are run with H2O off and on. Their models are not there: the demo model
takes their place, so what a model says, and how many tokens a text has, is not looked at. Needs tools/requirements-server.txt.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "vendor"))

import fetch  # noqa: E402

from h2o_llama import _core, demo_model_path  # noqa: E402

H2O = ["--h2o-local", "8", "--h2o-heavy", "12", "--h2o-sinks", "2", "--h2o-lookup", "8"]

FILES = ("basic", "completion", "chat_completion", "slot_save", "security", "stream", "template", "tokenize", "metrics")

NOT_THERE = "needs a model or an image of the hub"
OTHER_TOKENS = "counts tokens, or knows the words, of another model"
LEFT_OUT: dict[str, str] = {}
"""Tests by what their names contain, with the reason."""

LEFT_OUT_WITH_H2O: dict[str, str] = {}

# What the tests' own module starts, but with a model that is there.
PLUGIN = f"""
import os, sys, types
sys.modules["wget"] = types.ModuleType("wget")
import utils

start = utils.ServerProcess.start

def start_local(self, *args, **kwargs):
    if self.model_hf_repo:
        self.model_hf_repo = self.model_hf_file = None
        self.model_file = {str(demo_model_path())!r}
    return start(self, *args, **kwargs)

utils.ServerProcess.start = start_local
utils.ServerPreset.load_all = staticmethod(lambda: None)
utils.match_regex = lambda regex, text: isinstance(text, str)
"""


def extract(folder: Path) -> None:
    """Upstream's tests, and the programs that stand in for what they need."""
    pin = fetch.read_pin(fetch.Layout(ROOT).requirements)
    prefix = pin.prefix + "tools/server/tests/"
    with tarfile.open(fetch.Layout(ROOT).cache / pin.release.sdist) as archive:
        for member in archive:
            name = member.name.removeprefix(prefix)
            file = archive.extractfile(member)
            if name != member.name and file is not None:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(file.read())
    (folder / "local_model.py").write_text(PLUGIN)


def run(folder: Path, h2o: bool, more: list[str]) -> bool:
    """Whether all tests pass."""
    program = folder / "llama-server"
    flags = " ".join(H2O) if h2o else ""
    program.write_text(f'#!/bin/sh\nexec "{Path(_core.__file__).parent / "llama-server"}" "$@" {flags}\n')
    program.chmod(0o755)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    left_out = [*LEFT_OUT, *(LEFT_OUT_WITH_H2O if h2o else ())]
    command = [sys.executable, "-m", "pytest", "-p", "local_model", "-q", "--no-header", "-rf", "--tb=short"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", *(f"unit/test_{name}.py" for name in FILES)]
    command += [word for name in left_out for word in ("--deselect", name)]
    environment = {"LLAMA_SERVER_BIN_PATH": str(program), "PORT": str(port), "PYTHONPATH": str(folder)}
    print(f"check_server: H2O {'on' if h2o else 'off'}", flush=True)
    return subprocess.run([*command, *more], cwd=folder, env={**os.environ, **environment}).returncode == 0


def main() -> None:
    for name, reason in (*LEFT_OUT.items(), *((f"{n}, with H2O", r) for n, r in LEFT_OUT_WITH_H2O.items())):
        print(f"left out: {name}: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        extract(Path(folder))
        good = [run(Path(folder), h2o, sys.argv[1:]) for h2o in (False, True)]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
