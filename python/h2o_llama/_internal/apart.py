"""Calls in a process of their own, which does nothing else: the memory that it takes is the call's.

The process reads a function and its arguments from standard input and writes the result to standard output, pickled.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from inspect import isgenerator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from h2o_llama.errors import H2OError

P = ParamSpec("P")
T = TypeVar("T")


def call_apart(name: str, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a function of a module in a new process.

    Raises H2OError if the process fails; the message begins with `name`.
    """
    *_, result = iterate_apart(name, function, *arguments, **options)
    return result  # type: ignore[no-any-return]


def iterate_apart(name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[Any]:
    """What a generator makes there, each item at once; of another function its result."""
    # nothing is imported from the working folder, where `python -m` would look first
    code = f"import sys; sys.path[:] = filter(None, sys.path); from {__name__} import main; main()"
    path = os.pathsep.join(filter(None, sys.path))  # modules next to a script, too
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        pickle.dump((function, arguments, options), stdin)
        stdin.seek(0)
        command, environment = [sys.executable, "-W", "ignore", "-c", code], os.environ | {"PYTHONPATH": path}
        with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, env=environment) as process:
            assert process.stdout is not None
            try:
                while True:
                    yield pickle.load(process.stdout)
            except (EOFError, pickle.UnpicklingError):  # it has ended
                pass
            except BaseException:
                process.kill()
                raise
        stderr.seek(0)
        lines = stderr.read().decode(errors="replace").strip().splitlines()
    reason = lines[-1] if lines else f"exit code {process.returncode}"
    if process.returncode < 0:
        reason = f"signal {-process.returncode}; a process that takes too much memory gets signal 9"
    if process.returncode != 0:
        raise H2OError(f"{name} ended: {reason}")


def main() -> None:
    """What the new process runs."""
    function, arguments, options = pickle.load(sys.stdin.buffer)
    result = function(*arguments, **options)
    for item in result if isgenerator(result) else [result]:
        pickle.dump(item, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def resident_bytes(pid: int | str = "self", *, peak: bool = False) -> int | None:
    """The resident set of a process, or the largest that it has had; None where the system does not tell.

    Not by getrusage: there a child process begins with its parent's.
    """
    status = Path(f"/proc/{pid}/status")
    name = "VmHWM:" if peak else "VmRSS:"
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)
