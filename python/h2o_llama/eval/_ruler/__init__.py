"""RULER: tasks of any length that a model answers out of a long text."""

from h2o_llama.eval._ruler.task import KINDS, Ruler, RulerMean, ruler_mean

__all__ = ["KINDS", "Ruler", "RulerMean", "ruler_mean"]
