"""A sample in a process of its own: its peak memory is that of one mode.

The process reads what to measure from standard input and writes what it found to standard output, both pickled.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from h2o_llama.bench.case import Case, Sample, Tokens
from h2o_llama.errors import H2OError
from h2o_llama.kv import KVStats

_COMMAND = (sys.executable, "-c", "from h2o_llama.bench.alone import main; main()")
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Alone:
    """What a process that did nothing else took.

    Attributes
    ----------
    sample : Sample
    peak_rss : int or None
        The largest resident set that it had, in bytes; None where the system does not tell. Weights count as far as
        they were read: they are pages of the model's file.
    stats : KVStats
        What its context held at the end.
    """

    sample: Sample
    peak_rss: int | None
    stats: KVStats


def measure_alone(case: Case, model_path: str, tokens: Tokens) -> Alone:
    """Measure a case in a new process.

    Raises
    ------
    H2OError
        If the process fails.
    """
    task = pickle.dumps((case, model_path, tokens[: case.n_used]))
    done = subprocess.run(_COMMAND, input=task, capture_output=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit code {done.returncode}"
        if done.returncode < 0:
            reason = f"signal {-done.returncode}; a process that takes too much memory gets signal 9"
        raise H2OError(
            f"[bench] the process that measures {case.mode.name} at {case.n_tokens:,} tokens ended: {reason}"
        )
    result: Alone = pickle.loads(done.stdout)
    return result


def peak_rss() -> int | None:
    """The largest resident set that this process has had, in bytes.

    Not by getrusage: there a child process begins with its parent's.
    """
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def main() -> None:
    """What the new process runs."""
    case, model_path, tokens = pickle.load(sys.stdin.buffer)
    with case.open(model_path) as llm:
        case.warm(llm, tokens)
        result = Alone(case.measure(llm, tokens), peak_rss(), llm.kv.stats)
    sys.stdout.buffer.write(pickle.dumps(result))
