"""Build with CUDA and check on the GPU: python tools/check_gpu.py

For any machine with an NVIDIA GPU and the CUDA toolkit. Makes its own virtual environment in build/gpu, runs upstream's
operator tests for our operators that they know, and those of our kernels against NumPy, some once more under NVIDIA's
compute-sanitizer, if that is there: it finds races and wrong addresses. Then compares the demo model on the CPU and on
the GPU, runs the tests against the NumPy oracle on the GPU, and measures H2O with eviction beside dense flash
attention.

    python tools/check_gpu.py --stand-in

compares without a GPU: in its place the CPU without H2O's own operator, so that attention is composed, as on GPUs that
lack it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "build" / "gpu"
COMPARE = """
import os, sys
import numpy as np
from h2o_llama import H2OConfig, Llama, demo_model_path

stand_in = sys.argv[1:] == ["--stand-in"]
configs = {
    "single_pass": H2OConfig(local_window=64, heavy_budget=64, chunk_size=512),
    "two_phase": H2OConfig(local_window=64, heavy_budget=64, chunk_size=512, schedule="two_phase"),
    "evict, distant": H2OConfig(local_window=64, heavy_budget=64, chunk_size=512, evict=True),
    "evict, sum": H2OConfig(local_window=64, heavy_budget=64, chunk_size=512, scorer="sum", evict=True),
    "evict, dense layer": H2OConfig(local_window=64, heavy_budget=64, chunk_size=512, evict=True, dense_layers=[1]),
}

def run(h2o, gpu):
    os.environ["H2O_NO_FUSED_ATTENTION"] = "1" if gpu and stand_in else "0"
    layers = 99 if gpu and not stand_in else 0
    with Llama(demo_model_path(), n_ctx=4096, n_gpu_layers=layers, h2o=h2o) as llm:
        text = llm.tokenize(open(np.__file__, "rb").read()[:4000])
        llm.eval(text[:3900], logits="all")
        logits = [llm.logits]
        sets = [set(row) for layer in llm.kv.layers for row in llm.kv.memory_indices(layer)]
        for token in text[3900:]:
            llm.eval([token], decode=True)
            logits.append(llm.logits)
        return np.concatenate(logits), sets

good = True
for name, h2o in configs.items():
    (cpu, sets_cpu), (gpu, sets_gpu) = run(h2o, False), run(h2o, True)
    error = np.abs(cpu - gpu).max() / np.abs(cpu).max()
    shared = np.mean([len(a & b) / len(a) for a, b in zip(sets_cpu, sets_gpu)])
    print(f"{name}: logits differ by {error:.1e} of their maximum, {shared:.1%} of the memory sets are the same")
    good = good and error < 5e-2 and shared > 0.95
sys.exit(not good)
"""


def main() -> None:
    if sys.argv[1:] == ["--stand-in"]:
        sys.exit(subprocess.run([sys.executable, "-c", COMPARE, "--stand-in"]).returncode)
    python = VENV / "bin" / "python"
    environment = {**os.environ, "CMAKE_ARGS": "-DGGML_CUDA=ON -DH2O_LLAMA_BUILD_BACKEND_TESTS=ON"}
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    build = ["-C", f"build-dir={VENV / 'build'}"]
    subprocess.run([python, "-m", "pip", "install", *build, f"{ROOT}[test]"], check=True, env=environment)
    tests = VENV / "build" / "bin" / "test-backend-ops"
    subprocess.run([tests, "test", "-b", "CUDA0", "-o", "MAX_ROWS,GET_ROWS"], check=True)
    kernels: list[str | Path] = [python, "-m", "pytest", "-q", "-n", "0", "tests/test_cuda_kernels.py"]
    on_device = os.environ | {"H2O_TEST_CUDA_BACKEND": "CUDA0"}
    subprocess.run(kernels, check=True, cwd=ROOT, env=on_device)
    if sanitizer := shutil.which("compute-sanitizer"):
        for tool in ("memcheck", "racecheck"):
            command = [
                sanitizer,
                "--tool",
                tool,
                "--error-exitcode",
                "1",
                *kernels,
                "-k",
                "lists or top_keys or extremes",
            ]
            subprocess.run(command, check=True, cwd=ROOT, env=on_device)
    subprocess.run([python, "-c", COMPARE], check=True)
    on_gpu = os.environ | {"H2O_TEST_GPU_LAYERS": "99"}
    oracle = ["tests/test_h2o_evict.py", "tests/test_h2o_single_pass_schedule.py", "-k", "oracle"]
    subprocess.run([python, "-m", "pytest", "-q", "-n", "0", *oracle], check=True, cwd=ROOT, env=on_gpu)
    make = "from random_model import ModelSpec, model_file; print(model_file(ModelSpec()))"
    made = subprocess.run([python, "-c", make], check=True, cwd=ROOT / "benchmarks", text=True, stdout=subprocess.PIPE)
    bench = ["bench", made.stdout.strip(), "--gpu-layers", "99", "--n-prompt", "4096,16384,65536,131072"]
    bench += ["--depth", "16384,131072", "--schedule", "single_pass", "--decode", "memory", "--scorer", "sum"]
    subprocess.run([VENV / "bin" / "h2o-llama", *bench, "--lookup", "0", "--evict"], check=True)


if __name__ == "__main__":
    main()
