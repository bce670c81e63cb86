"""Keep tokens by a scorer of your own: KeyDiff (arXiv:2504.15364), which keeps the keys that differ most from others.

    python examples/score_by_keys.py document.txt qwen2.5-coder-0.5b

It prints what attention loses on the document by memory sets of KeyDiff, of H2O's sums, and of the latest tokens alone.
"""

import sys
from pathlib import Path

import numpy as np

from h2o_llama import H2OConfig
from h2o_llama.eval import Setting, evaluate


def keydiff(layer, keys, values, attention):
    """How little each key resembles the mean of all keys' directions: [n_head_kv, n_tokens]."""
    directions = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    mean = directions.mean(axis=1, keepdims=True)
    return -(directions * mean).sum(axis=-1) / np.linalg.norm(mean, axis=-1)


S = 256
sizes = {"chunk_size": S, "sink_tokens": 4, "lookup_budget": 0}
settings = [
    Setting("KeyDiff", H2OConfig(**sizes, local_window=16, heavy_budget=64, scorer=keydiff)),
    Setting("sums of attention", H2OConfig(**sizes, local_window=16, heavy_budget=64, scorer="sum")),
    Setting("latest tokens", H2OConfig(**sizes, local_window=80, heavy_budget=0)),
]
text = Path(sys.argv[1]).read_text(encoding="utf-8")
for row in evaluate(sys.argv[2], settings, text=text, n_tokens=[4 * S]):
    print(f"{row['setting']}: perplexity {row['ppl']:.3f}, dense {row['ppl_dense']:.3f}, KL {row['kld_mean']:.4f}")
