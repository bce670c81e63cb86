"""Whole-model numpy implementation of dense and H2O prefill: what the library is compared with.

It reads the GGUF with the `gguf` package and shares no code with the library. Clarity goes before speed; a tiny model
with 4,096 tokens still takes only seconds. `model` below is a `GGUFModel`.

    DenseOracle(model).logits(tokens)            ordinary causal attention
    OracleTwoPhase(model, S, L, H, A).eval(...)  the two-phase schedule, one prefill call at a time
"""

from .dense import DenseOracle
from .gguf_model import GGUFModel, UnsupportedModel
from .selection import select_memory
from .softmax_state import SoftmaxState, empty_state, fuse, softmax_state
from .two_phase import OracleTwoPhase

__all__ = [
    "DenseOracle",
    "GGUFModel",
    "OracleTwoPhase",
    "SoftmaxState",
    "UnsupportedModel",
    "empty_state",
    "fuse",
    "select_memory",
    "softmax_state",
]
