"""Whole-model numpy implementation of dense and H2O prefill: what the library is compared with.

It reads the GGUF with the `gguf` package and shares no code with the library. Clarity goes before speed; a tiny model
with 4,096 tokens still takes only seconds. `model` below is a `GGUFModel`: Llama, Qwen2 and 3, Gemma 3 (sliding
windows), LFM2 (short convolutions), DeepSeek-V2 (latents, experts). H2O is for layers that attend to the whole text.

    OracleSequence(model, S, L, H, A)            H2O: eval(tokens) is one prefill call, decode_step(token) one token
    OracleSequence(model, S, L, H, A, B=, T=)    and lookups: a tile's queries choose by keys in 4 bits
    OracleTwoPhase(model, S, L, H, A)            the same with the other schedule
    dense(model, tokens)                         ordinary causal attention: a text in one chunk
    …(model, S, L, H, A, decode="memory")        generated tokens attend as a prompt's do
    …(model, S, L, H, A, positions="cache")      past the trained length no key is further away than that
"""

from .model import GGUFModel, UnsupportedModel, read_model
from .sequence import OracleSequence, OracleTwoPhase, dense

# By the library's names.
SCHEDULES: dict[str, type[OracleSequence]] = {"single_pass": OracleSequence, "two_phase": OracleTwoPhase}

__all__ = ["SCHEDULES", "GGUFModel", "OracleSequence", "UnsupportedModel", "dense", "read_model"]
