"""Configuration of H2O."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from h2o_llama import _check, _core

_OWNER = "H2OConfig"

SCORERS = tuple(_core.scorer_names())
"""How heavy hitters can be chosen, the default first."""

_MAX_LAYERS = 512  # LLAMA_H2O_MAX_LAYERS

_DEFAULT_CHUNK = 1024
"""Tokens of a chunk that the default sizes are for."""

# What is not given depends on whether anything is evicted.
_CHOSEN: Any = None
_KEEPING = {"heavy_budget": 320, "lookup_budget": 128, "decode": "full"}
_EVICTING = {"heavy_budget": 448, "lookup_budget": 0, "decode": "memory"}
_STORING = {**_KEEPING, "decode": "memory"}


@dataclass(frozen=True)
class H2OConfig:
    """What the memory sets hold and how a prompt is computed.

    A prompt is cut into chunks of S tokens (S is `Llama`'s `n_ubatch`). A chunk attends to itself and to a memory set
    of M = `sink_tokens` + `local_window` + `heavy_budget` tokens before it, chosen per layer and KV head.

    Parameters
    ----------
    local_window : int, default 60
        L: the last L positions of a chunk are always in its memory set. At most S.
    heavy_budget : int, default 320
        H: how many heavy hitters (the highest-ranking of the other positions) a memory set holds. With `evict`
        and no cold store the default is 448, as there is no lookup.
    sink_tokens : int, default 4
        A: the first A positions of the sequence are always kept. L + H + A must be at least 1.
    scorer : str, default "distant"
        How positions are ranked; w(q, p) is the softmax weight of query q on position p, summed over the query heads
        of the KV head, and the sums are over queries that saw p.
        "distant": the mean of w over the queries at least L positions after p.
        "key_diff": -(k(p)/|k(p)|) . (mean of k/|k| over p's chunk), k without RoPE: keys unlike the others of their
        chunk (KeyDiff, Park et al. 2025, arXiv:2504.15364): without lookup, what finds a hidden fact again. Layers that
        change their keys after RoPE are ranked by "sum" instead, with a warning.
        "sum": the sum of w (H2O).
    pooling : int, default 0
        A position ranks as high as the best candidate up to this many positions away: what matters is kept with its
        neighbours (SnapKV pools 7 positions, which is 3).
    schedule : {"single_pass", "two_phase"}
        "single_pass": every chunk goes through the model once; one softmax over its memory set and itself.
        "two_phase": attention within all chunks first, attention to the memory sets in a second pass.
    decode : {"full", "memory"}
        "full": generated tokens attend to everything before them, at a cost that grows with the text.
        "memory": they attend to what a token of a prompt does: the memory sets, their chunk, lookups of their own. A
        token then costs the same at any depth, but for what it takes to read an index of keys. They are scored as a
        prompt's are.
        Default "full", with `evict` "memory".
    evict : bool, default False
        Drop K and V of what no memory set holds, when its chunk is closed: the cache has room for M + S positions, and
        the text may have any length. What was dropped cannot be attended to, but for what lookup brings back from a
        cold store. Needs "single_pass" and decode="memory", which are its defaults then, and either lookup_budget=0 or
        a cold store.
    cold_store : str, path or None, default None
        Where evicted K and V go: "memory" of the host, or a folder, in which they are in a temporary file that is gone
        with the process. They are brought back when a query looks them up. They take as many bytes as without `evict`.
        None: they are gone.
    lookup_budget : int, default 128
        B: how many further positions a query attends to, found as `retrieval` says. 0 is none, and the default with
        `evict` and no cold store.
    retrieval : {"ngrams", "index"}
        "ngrams": by the text, around earlier occurrences of a token, a pair, a triple; the same for all layers and
        heads. They are the newest that a query and those before it have asked for, so each stays until B newer ones
        have come.
        "index": by the keys, of which a copy in 4 bits is kept. Every query chooses for itself, in each layer and KV
        head, the B positions before its chunk whose keys fit best and that are not in the memory set. Less is lost, at
        a cost that grows with the text, slowly. Needs attention as one operator (layers on the CPU, flash attention not
        off) and heads whose size is a multiple of 32.
    tile : int, default 8
        T, with "ngrams": a query adds ceil(B/T) positions at most. With a smaller T they are more, and stay for less
        long.
    dense_layers : int or sequence of int, default 0
        Layers that attend to everything before them, at a cost that grows with the text: so many first ones, or these.
        They have neither scores nor memory sets, and are not among `kv.layers`. Needs "single_pass".
    score_type : {"f32", "bf16"}
        Type in which a position's score (attention received so far) is kept; "bf16" rounds after every addition.

    Raises
    ------
    ValueError
        If a value has the wrong type or is out of range.

    References
    ----------
    Zhang et al. 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
    arXiv:2306.14048.
    """

    local_window: int = 60
    heavy_budget: int = _CHOSEN
    sink_tokens: int = 4
    scorer: str = SCORERS[0]
    pooling: int = 0
    schedule: Literal["single_pass", "two_phase"] = "single_pass"
    decode: Literal["full", "memory"] = _CHOSEN
    evict: bool = False
    score_type: Literal["f32", "bf16"] = "f32"
    lookup_budget: int = _CHOSEN
    tile: int = 8
    dense_layers: int | Sequence[int] = ()
    retrieval: Literal["ngrams", "index"] = "ngrams"
    cold_store: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        evict = _check.flag(_OWNER, "evict", self.evict)
        self._check_cold_store(evict)
        defaults = _KEEPING if not evict else _EVICTING if self.cold_store is None else _STORING
        for name, value in defaults.items():
            if getattr(self, name) is _CHOSEN:
                object.__setattr__(self, name, value)
        least = {"local_window": 0, "heavy_budget": 0, "sink_tokens": 0, "pooling": 0, "lookup_budget": 0, "tile": 1}
        for name, low in least.items():
            # NumPy integers become int, so that equal configurations look equal.
            object.__setattr__(self, name, _check.integer(_OWNER, name, getattr(self, name), low))
        if not 1 <= self.memory_size <= _check.INT32_MAX:
            raise ValueError(
                f"[{_OWNER}] local_window + heavy_budget + sink_tokens must be from 1 to {_check.INT32_MAX}, "
                f"got {self.memory_size}; for dense attention pass h2o=None to Llama"
            )
        _check.choice(_OWNER, "scorer", self.scorer, SCORERS)
        _check.choice(_OWNER, "schedule", self.schedule, ("single_pass", "two_phase"))
        object.__setattr__(self, "dense_layers", _layers(self.dense_layers))
        if self.dense_layers and self.schedule != "single_pass":
            raise ValueError(f"[{_OWNER}] dense_layers need schedule='single_pass', got {self.schedule!r}")
        _check.choice(_OWNER, "decode", self.decode, ("full", "memory"))
        _check.choice(_OWNER, "retrieval", self.retrieval, ("ngrams", "index"))
        _check.choice(_OWNER, "score_type", self.score_type, ("f32", "bf16"))
        needed: dict[str, Any] = {"schedule": "single_pass", "decode": "memory"}
        if self.cold_store is None:
            needed["lookup_budget"] = 0
        elif self.lookup_budget > 0:
            needed["retrieval"] = "ngrams"
        for name, value in needed.items():
            if evict and getattr(self, name) != value:
                hint = ", unless there is a cold_store" if name == "lookup_budget" else ""
                raise ValueError(
                    f"[{_OWNER}] evict=True needs {name}={value!r}{hint}, got {getattr(self, name)!r}: what is evicted "
                    "cannot be attended to any more"
                )

    @classmethod
    def for_chunk_size(cls, n_ubatch: int, **given: Any) -> H2OConfig:
        """With these parameters. Sizes that are not given are the defaults, in proportion for chunks of under 1,024."""
        default, share = cls(**given), min(n_ubatch / _DEFAULT_CHUNK, 1.0)
        sizes = {
            "local_window": int(share * default.local_window),
            "heavy_budget": max(1, int(share * default.heavy_budget)),
            "sink_tokens": min(default.sink_tokens, n_ubatch // 8),
            "lookup_budget": int(share * default.lookup_budget),
        }
        return cls(**(sizes | given))

    def _check_cold_store(self, evict: bool) -> None:
        if self.cold_store is None:
            return
        if not isinstance(self.cold_store, str | os.PathLike) or not str(self.cold_store):
            raise ValueError(
                f"[{_OWNER}] cold_store must be 'memory', the path of a folder or None, got {self.cold_store!r}"
            )
        if not evict:
            raise ValueError(f"[{_OWNER}] cold_store is for what is evicted: it needs evict=True")
        object.__setattr__(self, "cold_store", os.fspath(self.cold_store))

    @property
    def has_key_index(self) -> bool:
        """Whether a copy of the keys is kept, to find positions by."""
        return self.retrieval == "index" and self.lookup_budget > 0

    @property
    def memory_size(self) -> int:
        """M, the number of positions in a full memory set."""
        return self.local_window + self.heavy_budget + self.sink_tokens


def _layers(value: int | Sequence[int]) -> tuple[int, ...]:
    """The first n layers, or those that are named, ascending."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(sorted({_check.integer(_OWNER, "dense_layers", layer, 0, _MAX_LAYERS - 1) for layer in value}))
    return tuple(range(_check.integer(_OWNER, "dense_layers", value, 0, _MAX_LAYERS)))
