"""Plots of what `h2o-llama eval` and `bench` measured. Needs `pip install "h2o-llama[plot]"`.

What memory sets hold is drawn by `h2o-llama inspect --html`.

Every function returns a new figure and leaves pyplot alone. In a notebook a figure shows itself, after
`%matplotlib inline`.
"""

from importlib.util import find_spec

if find_spec("matplotlib") is None:
    raise ImportError('[h2o_llama.inspect.plots] needs matplotlib: pip install "h2o-llama[plot]"')

from h2o_llama.inspect.plots.evaluation import eval_plots
from h2o_llama.inspect.plots.speed import bench_plots

__all__ = ["bench_plots", "eval_plots"]
