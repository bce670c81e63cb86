"""OpenVINO GenAI: see worker.py. Its option "sparse" names a mode of sparse attention; without it, it is dense.

"batch" is how many tokens it reads at once, by default the whole prompt: with XAttention and less, 2026.4.1 writes
garbage.

It gives no logits, but the log-probabilities of a prompt's own tokens. It takes token ids, as the tokenizer that it
makes of a GGUF file cuts every text at 8,192 tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from worker import main


class OpenVINO:
    def __init__(self, job: dict[str, Any]) -> None:
        self.version = f"OpenVINO GenAI {genai.__version__}"
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
        (found,) = self.pipe.generate([_tensor(ids)], [_config(n_gen + 1)])
        return found.perf_metrics.get_ttft().mean / 1000, found.perf_metrics.get_tpot().mean / 1000

    def logprobs(self, ids: list[int], job: dict[str, Any]) -> None:
        request = self.pipe.add_request(0, _tensor(ids), _config(1, echo=True, logprobs=1))
        while self.pipe.has_non_finished_requests():
            self.pipe.step()
        (found,) = request.read_all()
        np.save(job["logprobs"], np.float32(found.generated_log_probs[job["first"] + 1 : job["stop"] + 1]))


def _tensor(ids: list[int]) -> ov.Tensor:
    return ov.Tensor(np.array([ids], np.int64))


def _config(n_new: int, **options: Any) -> genai.GenerationConfig:
    return genai.GenerationConfig(max_new_tokens=n_new, ignore_eos=True, do_sample=False, **options)


if __name__ == "__main__":
    main(OpenVINO)
