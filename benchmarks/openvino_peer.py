"""OpenVINO GenAI in the race of peers.py, which calls each function in a process of its own.

Token ids go in, as the tokenizer that it makes of a GGUF file cuts every text at 8,192 tokens. `sparse` names a mode of
sparse attention, "" is dense. `batch` is how many tokens it reads at once, 0 the whole prompt: with XAttention and
less, 2026.4.1 writes garbage.
"""

from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from h2o_llama._internal.apart import resident_bytes

VERSION = f"OpenVINO GenAI {genai.__version__}"
N_WARM = 128
"""Tokens that are read before anything is timed."""


def _open(model: str, n_tokens: int, n_threads: int, sparse: str, batch: int) -> Any:
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = batch or n_tokens
    scheduler.enable_prefix_caching = False
    if sparse:
        config = genai.SparseAttentionConfig()
        config.mode = getattr(genai.SparseAttentionMode, sparse)
        scheduler.use_sparse_attention, scheduler.sparse_attention_config = True, config
    return genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": n_threads})


def _config(n: int, **options: Any) -> Any:
    return genai.GenerationConfig(max_new_tokens=n, ignore_eos=True, do_sample=False, **options)


def speed(model: str, ids: list[int], n_gen: int, n_threads: int, sparse: str, batch: int) -> tuple[float, float, int]:
    """Seconds to the first token, seconds of each one after it, and the most bytes that the process held."""
    pipe = _open(model, len(ids), n_threads, sparse, batch)
    for part in (ids[:N_WARM], ids):
        (found,) = pipe.generate([ov.Tensor(np.array([part], np.int64))], [_config(n_gen + 1)])
    figures = found.perf_metrics
    return figures.get_ttft().mean / 1000, figures.get_tpot().mean / 1000, resident_bytes(peak=True) or 0


def logprobs(model: str, ids: list[int], n_threads: int, sparse: str) -> list[float]:
    """Of the prompt's own tokens: it gives no logits."""
    pipe = _open(model, len(ids), n_threads, sparse, 0)
    request = pipe.add_request(0, ov.Tensor(np.array([ids], np.int64)), _config(1, echo=True, logprobs=1))
    while pipe.has_non_finished_requests():
        pipe.step()
    (found,) = request.read_all()
    return list(found.generated_log_probs)
