"""Commands whose output is shown only if they fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(*command: str | Path) -> None:
    """Run a command, or end this program with the command's exit status and output."""
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode != 0:
        program = Path(sys.argv[0]).stem
        sys.exit(f"{program}: {' '.join(map(str, command))}: exit status {result.returncode}\n{result.stdout}")
