"""Build with CUDA and check on the GPU: python tools/check_gpu.py

For any machine with an NVIDIA GPU and the CUDA toolkit. Makes its own virtual environment in build/gpu, runs upstream's
operator tests for our operators that the GPU has, then prefills the demo model on the CPU and on the GPU and compares.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "build" / "gpu"
COMPARE = """
import sys
import numpy as np
from h2o_llama import H2OConfig, Llama, demo_model_path

def prefill(n_gpu_layers, schedule):
    h2o = H2OConfig(local_window=64, heavy_budget=64, schedule=schedule)
    with Llama(demo_model_path(), n_ctx=4096, n_ubatch=512, n_gpu_layers=n_gpu_layers, h2o=h2o) as llm:
        llm.eval(llm.tokenize(open(np.__file__, "rb").read()[:4000]), logits="all")
        return llm.logits, [set(row) for layer in llm.kv.layers for row in llm.kv.memory_indices(layer)]

good = True
for schedule in ("single_pass", "two_phase"):
    (cpu, sets_cpu), (gpu, sets_gpu) = prefill(0, schedule), prefill(99, schedule)
    error = np.abs(cpu - gpu).max() / np.abs(cpu).max()
    shared = np.mean([len(a & b) / len(a) for a, b in zip(sets_cpu, sets_gpu)])
    print(f"{schedule}: logits differ by {error:.1e} of their maximum, {shared:.1%} of the memory sets are the same")
    good = good and error < 2e-2 and shared > 0.95
sys.exit(not good)
"""


def main() -> None:
    python = VENV / "bin" / "python"
    environment = {**os.environ, "CMAKE_ARGS": "-DGGML_CUDA=ON -DH2O_LLAMA_BUILD_BACKEND_TESTS=ON"}
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    build = ["-C", f"build-dir={VENV / 'build'}"]
    subprocess.run([python, "-m", "pip", "install", *build, ROOT], check=True, env=environment)
    tests = VENV / "build" / "bin" / "test-backend-ops"
    subprocess.run([tests, "test", "-b", "CUDA0", "-o", "MAX_ROWS,GET_ROWS"], check=True)
    subprocess.run([python, "-c", COMPARE], check=True)


if __name__ == "__main__":
    main()
