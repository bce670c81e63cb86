"""Recall tasks of any length and depth, in the manner of RULER and of a needle in a haystack."""

from h2o_llama.eval.tasks.item import KINDS, KINDS_OF_STYLE, STYLES, Item, Turn, make_item

__all__ = ["KINDS", "KINDS_OF_STYLE", "STYLES", "Item", "Turn", "make_item"]
