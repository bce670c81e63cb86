"""Run upstream's command-line tools with the H2O flags: python tools/check_tools.py build/…/bin

Every tool reads the demo model and a prompt of four chunks, with each schedule. The debug log must show that it was so
(llama-cli lets the end of a prompt attend to everything), and a bad value must be refused with a message. What
`h2o_llama.eval` measures must be what llama-perplexity measures on the same tokens.
"""

import math
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from h2o_llama import H2OConfig, demo_model_path
from h2o_llama._cli.options import upstream_options
from h2o_llama._demo.document import standard_library_text
from h2o_llama.eval import Setting, evaluate

MODEL = demo_model_path()
CHUNK = 512
H2O = ["--h2o-chunk", str(CHUNK), "--h2o-local", "64", "--h2o-heavy", "64", "-b", "2048", "-ub", str(CHUNK)]

EVALUATED = (
    H2OConfig(local_window=32, heavy_budget=64),
    H2OConfig(
        local_window=64, heavy_budget=32, sink_tokens=0, lookup_budget=50, dense_layers=[0, 2], research={"tile": 64}
    ),
    H2OConfig(local_window=64, heavy_budget=32, scorer="sum", schedule="two_phase", lookup_budget=0),
    H2OConfig(local_window=32, heavy_budget=64, evict=True, dense_layers=[1]),
    H2OConfig(local_window=32, heavy_budget=32, evict=True, cold_store="memory", lookup_budget=50),
    H2OConfig(
        local_window=32,
        heavy_budget=416,
        sink_tokens=16,
        scorer="block_ema",
        lookup_budget=0,
        research={"ema_alpha": 0.75, "shared_heads": True, "keep_ratio": 0.2},
    ),
)
# Keys of a row, and what llama-perplexity calls them. It rounds dense attention's logarithms to 16 bits, and
# prints 6 decimals.
STATISTICS = {
    "ppl": r"Mean PPL\(Q\) +: +([\d.]+)",
    "ppl_dense": r"Mean PPL\(base\) +: +([\d.]+)",
    "kld_mean": r"Mean +KLD: +(-?[\d.]+)",
    "same_top": r"Same top p: +([\d.]+)",
}


def run(command: list[str | Path], ok: bool = True) -> str:
    """Output and log of a command that must succeed (or fail, but not by a signal)."""
    result = subprocess.run(
        command,
        env={**os.environ, "H2O_DEBUG_PHASES": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=300,
    )
    if (result.returncode != 0) if ok else (result.returncode <= 0):
        sys.exit(f"check_tools: {' '.join(map(str, command))}: exit status {result.returncode}\n{result.stdout}")
    return result.stdout


# What llama-perplexity does, and then its log is flushed: a thread of its own writes the log, the program does not wait
# for it at the end, and so the last lines, with the results, are often lost.
PERPLEXITY = """
import ctypes, sys
folder, *arguments = sys.argv[1:]
words = [b"llama-perplexity", *map(str.encode, arguments)]
common = ctypes.CDLL(f"{folder}/libh2o-llama-common.so")
main = ctypes.CDLL(f"{folder}/libllama-perplexity-impl.so")._Z16llama_perplexityiPPc
status = main(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None))
log = common._Z15common_log_mainv
log.restype = ctypes.c_void_p
common._Z16common_log_flushP10common_log(ctypes.c_void_p(log()))
sys.exit(status)
"""


def require(condition: bool, what: str, output: str) -> None:
    if not condition:
        sys.exit(f"check_tools: {what}\n{output}")


def require_schedule(schedule: str, tool: str, output: str) -> None:
    """Single steps, or second phases, which the first chunk may lack. Chunk 3 ends in a dense tail of llama-cli's."""
    first, step = ({0}, "single_pass") if schedule == "single_pass" else (set(), "2")
    chunks = {int(chunk) for chunk in re.findall(rf"\[H2O\] phase=(?:{step}|tail) chunk_idx=(\d+)", output)}
    require(first | {1, 2, 3} <= chunks <= {0, 1, 2, 3}, f"{tool}: {schedule} has the chunks {chunks}", output)


def check_perplexity(tool: Path, folder: Path) -> None:
    """Two windows of four chunks; and a scorer that there is not."""
    n_tokens, chunk = 1024, 256
    text = standard_library_text(2 * n_tokens)
    file, logits = folder / "windows.txt", folder / "dense"
    file.write_bytes(text)
    arguments: list[str | Path] = ["-m", MODEL, "-f", file, "-t", "2", "--kl-divergence-base", logits]
    arguments += ["-c", str(n_tokens), "-b", str(n_tokens), "-ub", str(chunk)]
    run([tool, *arguments])
    for h2o in (replace(h2o, chunk_size=chunk) for h2o in EVALUATED):
        given = ["--kl-divergence", "-ctk", "q8_0", "-ctv", "q8_0", *upstream_options(h2o)]  # evaluate's
        output = run([sys.executable, "-c", PERPLEXITY, tool.parent, *arguments, *given])
        (row,) = evaluate(MODEL, [Setting.of(h2o)], text=text, n_tokens=[n_tokens], windows=2)
        row["same_top"] *= 100
        for key, pattern in STATISTICS.items():
            found = re.search(pattern, output)
            close = found is not None and math.isclose(float(found[1]), row[key], rel_tol=1e-3, abs_tol=2e-6)
            require(close, f"{row['setting']}: eval's {key} is {row[key]}, llama-perplexity's is another", output)
    output = run([tool, *arguments, "--kl-divergence", "--h2o-heavy", "64", "--h2o-scorer", "best"], ok=False)
    require(
        "bad value 'best'" in output and "distant, sum or block_ema" in output,
        "llama-perplexity does not name the error",
        output,
    )


def main() -> None:
    tools = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        prompt = Path(folder) / "prompt.txt"
        prompt.write_bytes(standard_library_text(4 * CHUNK - 100))
        for tool in ("llama-completion", "llama-cli"):
            generate: list[str | Path] = ["-m", MODEL, "-f", prompt, "-n", "4", "-c", "4096", "-t", "2"]
            generate += ["--no-warmup", "-st"]
            for schedule in ("single_pass", "two_phase"):
                output = run([tools / tool, *generate, *H2O, "--h2o-schedule", schedule])
                require_schedule(schedule, tool, output)
            output = run([tools / tool, *generate, "--h2o-schedule", "both"], ok=False)
            require("single_pass or two_phase" in output, f"{tool} does not name the error", output)
        check_perplexity(tools / "llama-perplexity", Path(folder))
    print("check_tools: llama-cli, llama-completion and llama-perplexity run with H2O")


if __name__ == "__main__":
    main()
