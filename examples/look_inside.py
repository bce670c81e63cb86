"""See what a model keeps of a document: python look_inside.py document.txt [MODEL]

Shows memory sets: for a layer in the middle, what every KV head holds of the text besides its end, best first, and how
much of one memory set is still in the next.
"""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

from h2o_llama import H2OConfig, Llama

path, *model = sys.argv[1:]
h2o = H2OConfig(chunk_size=256, local_window=32, heavy_budget=32)

with Llama(model[0] if model else "qwen2.5-coder-0.5b", h2o=h2o, keep_history=True) as llm:
    tokens = llm.tokenize(Path(path).read_text(encoding="utf-8"))
    llm.eval(tokens)
    layer = llm.kv.layers[len(llm.kv.layers) // 2]
    print(f"{llm.kv.n_tokens} tokens in {llm.kv.chunk_index} chunks, {llm.kv.memory_size} positions in a memory set")
    scores = llm.kv.scores(layer)
    for head in range(len(scores)):
        heavy = llm.kv.heavy_hitters(layer, head)
        best = heavy[np.argsort(-scores[head, heavy], kind="stable")][:10]
        pieces = [llm.detokenize([tokens[i]]).decode(errors="replace") for i in best]
        print(f"layer {layer}, head {head}:", *(f"{i}:{piece!r}" for i, piece in zip(best, pieces, strict=True)))
    sets = [memory[layer] for memory in llm.kv.history]
    shared = [np.isin(after[0], before[0]).mean() for before, after in pairwise(sets)]
    print(f"of a memory set of head 0, {np.mean(shared):.0%} was in the one before it")
