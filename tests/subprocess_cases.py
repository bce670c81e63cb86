"""Bad input in a process of its own, which must survive it.

Run as a program: reads a JSON list of [name, code] from stdin, executes each code, and writes a line of JSON for each:
[name, exception type or null, message]. A crash shows as a missing line and a return code.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """`code` must raise `error` with a message that contains `fragment`."""

    name: str
    code: str
    error: str
    fragment: str


@dataclass(frozen=True)
class Outcome:
    """What the process did: for each case (exception type or None, message), and how it ended."""

    returncode: int
    stdout: str
    stderr: str
    raised: dict[str, tuple[str | None, str]]


def run_cases(cases: list[Case], prelude: str) -> Outcome:
    """Run `prelude` once and then the code of every case in one new process."""
    text = json.dumps([prelude, [[case.name, case.code] for case in cases]])
    process = subprocess.run(
        [sys.executable, str(Path(__file__))], input=text, capture_output=True, text=True, timeout=300
    )
    lines = process.stdout.splitlines()
    raised = {name: (kind, message) for name, kind, message in (json.loads(line) for line in lines if line[:1] == "[")}
    other = "\n".join(line for line in lines if line[:1] != "[")
    return Outcome(process.returncode, other, process.stderr, raised)


def main() -> None:
    prelude, cases = json.loads(sys.stdin.read())
    for name, code in cases:
        namespace: dict[str, object] = {}
        exec(prelude, namespace)
        kind, message = None, ""
        try:
            exec(code, namespace)
        except BaseException as error:
            kind, message = type(error).__name__, str(error)
        print(json.dumps([name, kind, message]), flush=True)


if __name__ == "__main__":
    main()
