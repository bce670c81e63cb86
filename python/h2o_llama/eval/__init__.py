"""What sparse attention costs on a model and a text: every number next to dense attention's."""

from h2o_llama.eval._rows import evaluate
from h2o_llama.eval._settings import Setting, evicting, sweep, window

__all__ = ["Setting", "evaluate", "evicting", "sweep", "window"]
