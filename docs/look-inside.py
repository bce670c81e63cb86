# %% [markdown]
# # Look inside
#
# Which tokens of a text does a model keep? This notebook reads a text with H2O and looks. It uses the small model that
# comes with the package: 2 million parameters, one token per byte. It needs `pip install matplotlib`. Jupyter opens the
# file with [jupytext](https://jupytext.readthedocs.io), VS Code without.
#
# ## Read a text
#
# The text is a file of Python's own library. Chunks have 512 tokens here, and a memory set 128 positions.
# `keep_history=True` keeps the memory sets of all chunks.

# %%
import json.decoder
from pathlib import Path

from IPython.display import display
from matplotlib.figure import Figure

from h2o_llama import H2OConfig, Llama, demo_model_path

# %matplotlib inline
text = Path(json.decoder.__file__).read_bytes()[:6000]
h2o = H2OConfig(chunk_size=512, sink_tokens=4, local_window=60, heavy_budget=64)
llm = Llama(demo_model_path(), h2o=h2o, keep_history=True)
llm.eval(llm.tokenize(text))
print(llm.kv.n_tokens, "tokens in", llm.kv.chunk_index, "chunks; layers", llm.kv.layers)

# %% [markdown]
# ## A memory set
#
# Every layer has a memory set for each KV head: positions in the text, ascending. The first positions are the sinks,
# the last the local window; between them are the heavy hitters.

# %%
sets = llm.kv.memory_indices(layer=3)
print(sets.dtype, sets.shape)
print(sets[:, :12])

# %% [markdown]
# The heavy hitters of head 0 of layer 3 are positions in the text, so they can be read: each line ends with one.

# %%
heavy = llm.kv.heavy_hitters(layer=3, head=0)
for position in heavy[:12]:
    print(position, text[max(position - 40, 0) : position + 1])

# %% [markdown]
# ## Scores
#
# A score is the attention that a position has received so far, from tokens further away than the local window. Heavy
# hitters have the highest mean over these tokens, so a position is not kept for its age alone. A position outside the
# memory set receives nothing, so its score stays the same.

# %%
scores = llm.kv.scores(layer=3)[0]
figure = Figure(figsize=(8, 3), layout="constrained")
axes = figure.subplots()
axes.plot(scores, color="0.7", linewidth=0.6)
axes.plot(heavy, scores[heavy], "o", markersize=3, label="kept at the end")
axes.set(xlabel="position", ylabel="score", yscale="log", ylim=(1e-4, None))
axes.legend()
display(figure)

# %% [markdown]
# ## What a question reads
#
# The default has no heavy hitters, and its last tokens, the question, read everything. `keep_attention=True` keeps how
# much: for each position the sum of the question's attention weights.

# %%
with Llama(demo_model_path(), h2o=H2OConfig(chunk_size=512)) as asked:
    body, question = asked.tokenize(b"k17=4829;\n\n" + text), asked.tokenize(b"k17=")
    asked.eval(body)
    asked.eval(question, dense_tail=len(question), keep_attention=True)
    weights = sum(asked.kv.attention(layer, head) for layer in asked.kv.layers for head in range(2))[4 : len(body) - 40]
best = int(weights.argmax()) + 4
print(best, (b"k17=4829;\n\n" + text)[best : best + 20])

# %%
print("K and V:", llm.kv.stats.kv_bytes, "bytes; scores and memory sets:", llm.kv.stats.state_bytes)
llm.close()

# %% [markdown]
# `h2o-llama eval` measures what this costs, and `h2o-llama inspect` makes a page of every head's kept tokens.
