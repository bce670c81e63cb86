"""RULER: tasks of any length that a model answers out of a long text."""

from h2o_llama.eval.ruler.item import KINDS
from h2o_llama.eval.ruler.mean import RulerMean, ruler_mean
from h2o_llama.eval.ruler.task import Ruler

__all__ = ["KINDS", "Ruler", "RulerMean", "ruler_mean"]
