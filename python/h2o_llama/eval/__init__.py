"""What sparse attention costs on a model and a text: every number next to dense attention's."""

from h2o_llama.eval._settings import Setting, evicting, sweep, window
from h2o_llama.eval._tasks import Continuation, Perplexity, evaluate

__all__ = ["Continuation", "Perplexity", "Setting", "evaluate", "evicting", "sweep", "window"]
