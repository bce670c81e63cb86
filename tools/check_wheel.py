"""Try a wheel in a fresh virtual environment: python tools/check_wheel.py h2o_llama-*.whl [pytest's arguments]

Runs the demo and H2O's tests with the CPU backend that ggml takes on this machine. Then the tests again with fewer
backends, as an older CPU would have it, and H2O's kernels for such CPUs. For Linux.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from quiet import run

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("attention_*", "codec", "h2o_*", "llama_api", "ops", "top_keys_op")

# The best CPU backend that stays in the package, and its H2O kernels; the installed package first.
CPUS = ((None, None), ("haswell", "avx2"), ("x64", "portable"), ("armv8.0_1", None))

WHICH = """
import re
from h2o_llama import _core
print(*set(re.findall("libggml-cpu-[^/]+[.]so", open("/proc/self/maps").read())), _core.ops_isas()[0])
"""


def main() -> None:
    if sys.platform != "linux" or len(sys.argv) < 2:
        sys.exit(__doc__)
    wheel = Path(sys.argv[1]).resolve()
    files = [path for name in TESTS for path in sorted((ROOT / "tests").glob(f"test_{name}.py"))]
    tests = sys.argv[2:] or list(map(str, files))
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", folder)
        programs = Path(folder) / "bin"
        run(programs / "pip", "install", f"{wheel}[test]")
        (lib,) = Path(folder).glob("lib/python*/site-packages/h2o_llama/lib")
        for backend, kernel in CPUS:
            if backend and not (lib / f"libggml-cpu-{backend}.so").exists():
                continue  # of another architecture
            for path in lib.glob("libggml-cpu-*.so") if backend else ():
                if path.name not in (f"libggml-cpu-{backend}.so", "libggml-cpu-x64.so"):
                    path.unlink()
            environment = {**os.environ, **({"H2O_ISA": kernel} if kernel else {})}
            demo = [programs / "h2o-llama", "demo", "--html", f"{folder}/demo.html"]
            for command in (
                [programs / "python", "-c", WHICH],
                *([] if backend else [demo]),  # on the oldest CPUs it takes many minutes
                [programs / "python", "-m", "pytest", "-q", *tests],
            ):
                if status := subprocess.run(command, env=environment, cwd=ROOT).returncode:
                    sys.exit(f"check_wheel: {' '.join(map(str, command[:3]))}: exit status {status}")


if __name__ == "__main__":
    main()
