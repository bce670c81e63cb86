"""Plots with matplotlib, for notebooks and reports. Needs `pip install "h2o-llama[plot]"`.

Every function returns a new figure and leaves pyplot alone. In a notebook a figure shows itself, after
`%matplotlib inline`.
"""

from importlib.util import find_spec

if find_spec("matplotlib") is None:
    raise ImportError('[h2o_llama.plots] needs matplotlib: pip install "h2o-llama[plot]"')

from h2o_llama.plots.codec import codec_plots
from h2o_llama.plots.evaluation import eval_plots
from h2o_llama.plots.memory import captured_mass, membership, overlap, stability
from h2o_llama.plots.speed import bench_plots

__all__ = ["bench_plots", "captured_mass", "codec_plots", "eval_plots", "membership", "overlap", "stability"]
