"""What sparse attention costs on a model and a text: every number next to dense attention's."""

from h2o_llama.eval._evaluate import evaluate
from h2o_llama.eval._settings import Setting, sweep, window

__all__ = ["Setting", "evaluate", "sweep", "window"]
