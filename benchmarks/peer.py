"""One peer of peers.py: reads a job as JSON on standard input, and writes what came of it, as JSON, to a file.

Each peer is run by a Python of its own, which needs nothing else. A job has "peer", "model" (a GGUF file), "ids" (the
prompt), "n_gen", "n_threads", "options" (the peer's own), "result" (the file) and, to save the log-probabilities after
the positions from "first" to before "stop", "logprobs": a file for NumPy's float32 [n, n_vocab], or [n] of the next
token of the prompt alone.
"""

import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

N_WARM = 128
"""Tokens that are read before anything is timed."""


class H2OLlama:
    def __init__(self, job: dict[str, Any]) -> None:
        from h2o_llama import H2OConfig, Llama, __version__, _core
        from h2o_llama.sequence.generating import DENSE_TAIL

        options = dict(job["options"])
        h2o = options.pop("h2o", None)
        self.version = f"h2o-llama {__version__}, llama.cpp {_core.UPSTREAM_COMMIT[:9]}"
        self.dense_tail = DENSE_TAIL
        self.llm = Llama(
            job["model"],
            n_ctx=len(job["ids"]) + job["n_gen"] + 1,
            n_threads=job["n_threads"],
            h2o=None if h2o is None else H2OConfig.from_dict(h2o),
            **options,
        )

    def speed(self, ids: list[int], n_gen: int) -> tuple[float, float]:
        self.llm.reset()
        return timed(time.perf_counter(), self._generate(ids), n_gen)

    def _generate(self, ids: list[int]) -> Iterator[int]:
        """The most probable tokens, whether or not the text ends; as `Llama.generate`, which has a dense tail too."""
        self.llm.eval(ids, dense_tail=self.dense_tail)
        while True:
            token = int(self.llm.logits[-1].argmax())
            yield token
            self.llm.eval([token], decode=True)

    def logprobs(self, ids: list[int], job: dict[str, Any]) -> Any:
        if job["first"] > 0:
            self.llm.eval(ids[: job["first"]])
        self.llm.eval(ids[job["first"] : job["stop"]], logits="all")
        logits = self.llm.logits - self.llm.logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


class OpenVINO:
    """Its option "sparse" names a mode of sparse attention; without it, it is dense.

    "batch" is how many tokens it reads at once, by default the whole prompt: with XAttention and less, 2026.4.1 writes
    garbage. It gives no logits, but the log-probabilities of a prompt's own tokens. It takes token ids, as the
    tokenizer that it makes of a GGUF file cuts every text at 8,192 tokens.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        import openvino as ov
        import openvino_genai as genai

        self.version = f"OpenVINO GenAI {genai.__version__}"
        self.tensor = lambda ids: ov.Tensor(np.array([ids], np.int64))
        self.config = lambda n, **options: genai.GenerationConfig(
            max_new_tokens=n, ignore_eos=True, do_sample=False, **options
        )
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = job["options"].get("batch", len(job["ids"]))
        scheduler.enable_prefix_caching = False
        if "sparse" in job["options"]:
            sparse = genai.SparseAttentionConfig()
            sparse.mode = getattr(genai.SparseAttentionMode, job["options"]["sparse"])
            scheduler.use_sparse_attention = True
            scheduler.sparse_attention_config = sparse
        properties = {"INFERENCE_NUM_THREADS": job["n_threads"]}
        self.pipe = genai.ContinuousBatchingPipeline(job["model"], scheduler, "CPU", properties)

    def speed(self, ids: list[int], n_gen: int) -> tuple[float, float]:
        (found,) = self.pipe.generate([self.tensor(ids)], [self.config(n_gen + 1)])
        return found.perf_metrics.get_ttft().mean / 1000, found.perf_metrics.get_tpot().mean / 1000

    def logprobs(self, ids: list[int], job: dict[str, Any]) -> Any:
        request = self.pipe.add_request(0, self.tensor(ids), self.config(1, echo=True, logprobs=1))
        while self.pipe.has_non_finished_requests():
            self.pipe.step()
        (found,) = request.read_all()
        return found.generated_log_probs[job["first"] + 1 : job["stop"] + 1]


def timed(start: float, tokens: Iterator[int], n_gen: int) -> tuple[float, float]:
    """Seconds to the first token, and of each one after it; `start` is of `time.perf_counter`."""
    times = [time.perf_counter() for _ in islice(tokens, n_gen + 1)]
    return times[0] - start, (times[-1] - times[0]) / n_gen


def peak_rss() -> int | None:
    """The largest resident set that this process has had, in bytes; None where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


if __name__ == "__main__":
    job = json.load(sys.stdin)
    peer = {"h2o": H2OLlama, "openvino": OpenVINO}[job["peer"]](job)
    found: dict[str, Any] = {"version": peer.version}
    if "logprobs" in job:
        np.save(job["logprobs"], np.float32(peer.logprobs(job["ids"], job)))
    else:
        peer.speed(job["ids"][:N_WARM], 2)
        cpu, wall = time.process_time(), time.perf_counter()
        found["first_s"], found["token_s"] = peer.speed(job["ids"], job["n_gen"])
        found["cpu_share"] = (time.process_time() - cpu) / (time.perf_counter() - wall) / job["n_threads"]
        found["peak_rss"] = peak_rss()
    Path(job["result"]).write_text(json.dumps(found))
