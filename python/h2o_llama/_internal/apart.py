"""Calls in a process of their own, which does nothing else: the memory that it takes is the call's.

The process reads a function and its arguments from standard input and writes the result to standard output, pickled.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from h2o_llama.errors import H2OError

P = ParamSpec("P")
T = TypeVar("T")


def call_apart(name: str, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a function of a module in a new process.

    Raises H2OError if the process fails; the message begins with `name`.
    """
    # nothing is imported from the working folder, where `python -m` would look first
    code = f"import sys; sys.path[:] = filter(None, sys.path); from {__name__} import main; main()"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        input=pickle.dumps((function, arguments, options)),
        capture_output=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # modules next to a script, too
    )
    if done.returncode == 0:
        result: T = pickle.loads(done.stdout)
        return result
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    reason = lines[-1] if lines else f"exit code {done.returncode}"
    if done.returncode < 0:
        reason = f"signal {-done.returncode}; a process that takes too much memory gets signal 9"
    raise H2OError(f"{name} ended: {reason}")


def main() -> None:
    """What the new process runs."""
    function, arguments, options = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps(function(*arguments, **options)))


def resident_bytes(pid: int | str = "self", *, peak: bool = False) -> int | None:
    """The resident set of a process, or the largest that it has had; None where the system does not tell.

    Not by getrusage: there a child process begins with its parent's.
    """
    status = Path(f"/proc/{pid}/status")
    name = "VmHWM:" if peak else "VmRSS:"
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)
