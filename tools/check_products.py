"""Test kernels of products that this CPU may not have: python tools/check_products.py

AVX-VNNI's run with AVX-512's instruction of the same meaning, where the CPU has AVX-512 VNNI. Shapes, weights and
bounds: tests/test_products.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np

from quiet import run

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from test_products import FLOATS, TYPES, check, columns_of, ggml_type, unit, weights_of  # noqa: E402

DRIVER = ROOT / "tests" / "products_driver.cpp"
KERNELS = ROOT / "src" / "ggml" / "product"
INCLUDES = (f"-I{ROOT}/src", *(f"-isystem{ROOT}/vendor/llama.cpp/ggml/{d}" for d in ("include", "src", "src/ggml-cpu")))
FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-maybe-uninitialized", "-static", *INCLUDES)

AVX2 = ("-march=haswell", "-DVL=8")
SAME_BY_AVX512 = ("-D__AVXVNNI__", "-D_mm256_dpbusd_avx_epi32=_mm256_dpbusd_epi32")
WAYS = {
    "avx2": (),
    "avxvnni": ("-mavx512vl", "-mavx512vnni", *SAME_BY_AVX512),
}


def main() -> None:
    (ROOT / "build").mkdir(exist_ok=True)
    for isa, options in WAYS.items():
        program = ROOT / "build" / f"products-{isa}"
        if isa == "avxvnni" and "avx512_vnni" not in Path("/proc/cpuinfo").read_text():
            sys.exit("check_products: AVX-512 VNNI is missing")
        sources = (DRIVER, KERNELS / "cpu" / "packed.cpp", "-x", "c++", KERNELS / "kernels" / "simd.h")
        run("c++", *FLAGS, *AVX2, *options, "-DKERNEL=kernel_of_type", *sources, "-o", program)
        check_cases(isa, program)


def check_cases(isa: str, program: Path) -> None:
    rng = np.random.default_rng(0)
    cases = []
    for type_name in TYPES:
        for n_columns in (1, 2, 3, 4, 5, 6, 8, 9, 13, 30, 45, 70):
            n = unit(type_name) * int(rng.integers(1, 2600 // unit(type_name)))
            scales = [65504.0, 6e-8, 0.0, 1.0] if n_columns % 3 == 0 else None
            weights = weights_of(rng, type_name, int(rng.integers(1, 80)), n, scales)
            cases.append((type_name, weights, columns_of(rng, n_columns, n)))

    parts = []
    for type_name, weights, x in cases:
        rounded = x if type_name in FLOATS else gguf.quants.quantize(x, ggml_type("q8_0"))
        parts.append(f"{ggml_type(type_name).value} {len(weights)} {x.shape[1]} {len(x)}\n".encode())
        parts += [weights.tobytes(), rounded.tobytes()]
    output = subprocess.run(program, input=b"".join(parts), stdout=subprocess.PIPE, check=True).stdout

    results = np.frombuffer(output, dtype=np.float32)
    for type_name, weights, x in cases:
        size = len(weights) * len(x)
        check(type_name, weights, x, results[:size].reshape(len(x), -1))
        results = results[size:]
    assert len(results) == 0
    print(f"{isa}: {len(cases)} products are right")


if __name__ == "__main__":
    main()
