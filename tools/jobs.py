"""A program's work in several processes, so that what ends one of them is known."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable


def work_in_jobs(what: str, n: int, work: Callable[[range, int], None]) -> None:
    """work(numbers, seed), for a part of the numbers 0 to N - 1 in each process, as --WHAT N --seed S --jobs J say.

    Exits with an error that names what a process worked on when it died: the last line that it has printed.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument(f"--{what}", type=int, default=n, dest="n")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(range(arguments.work, arguments.n, arguments.jobs), arguments.seed)
        return
    options = [f"--{what}={arguments.n}", f"--seed={arguments.seed}", f"--jobs={arguments.jobs}"]
    command = [sys.executable, sys.argv[0], *options]
    jobs = [
        subprocess.Popen([*command, f"--work={i}"], stdout=subprocess.PIPE, text=True) for i in range(arguments.jobs)
    ]
    last = [(job.communicate()[0].splitlines() or ["nothing"])[-1] for job in jobs]
    failed = [
        f"{said}: exit status {job.returncode}" for job, said in zip(jobs, last, strict=True) if job.returncode != 0
    ]
    if failed:
        sys.exit(f"with --seed={arguments.seed}, {'; '.join(failed)}")
    print(f"{arguments.n} {what}: all refused, or can be gone on with")
