"""What sparse attention costs on a model and a text: every number next to dense attention's."""

from h2o_llama.eval._evaluate import Setting as Setting
from h2o_llama.eval._evaluate import evaluate as evaluate
from h2o_llama.eval._evaluate import sweep as sweep
