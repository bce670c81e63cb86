"""Configuration of H2O."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_llama import _core
from h2o_llama._internal import check

_OWNER = "H2OConfig"

OPTIONS = {option.name: option for option in _core.h2o_options()}
"""What the core knows of each option: its kind, range, choices, default and help."""

SCORERS = tuple(OPTIONS["scorer"].choices)
"""How heavy hitters can be chosen, the default first."""

Scorer: TypeAlias = Callable[[int, NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]], ArrayLike]
"""A scorer in Python: `H2OConfig.scorer`."""

_MAX_LAYERS = 512  # LLAMA_H2O_MAX_LAYERS

# Default sizes for chunks of _CHUNK tokens or more; shorter ones have them in proportion.
_CHUNK = 1024
_CHUNK_ON_A_GPU = 2048  # with which an H200 reads fastest (docs/gpu.md)
_LOCAL_WINDOW, _SINK_TOKENS = 60, 4

PRESETS = {"fast": (128, 512), "balanced": (0, 3072), "faithful": (0, 4096)}
"""The defaults of H and B, by preset."""

# H where nothing is looked up.
_WITHOUT_LOOKUP = {"fast": 192, "balanced": 448, "faithful": 896}

_FOLLOWS: Any = None


# A value that was not given but follows from others. `dataclasses.replace` hands it on, and it follows anew.
class _FollowingInt(int):
    pass


class _FollowingStr(str):
    pass


@dataclass(frozen=True, kw_only=True, repr=False)
class H2OConfig:
    """What the memory sets hold and how a prompt is computed.

    A prompt is cut into chunks of S tokens. A chunk attends to itself and to a memory set
    of M = `sink_tokens` + `local_window` + `heavy_budget` tokens before it, chosen per layer and KV head.

    Omitted values follow from the given ones: sizes depend on the chunk's, the defaults below are for chunks of 1,024
    tokens and more. Two configurations are equal if the same values were given, so they stay equal under
    `dataclasses.replace`. `repr` shows these values.

    Raises ValueError if a value has the wrong type or is out of range.

    Parameters
    ----------
    local_window : int, default 60
        L: the last L positions of a chunk are always in its memory set. At most S.
    heavy_budget : int, default 0
        H: how many heavy hitters (the highest-ranking of the other positions) a memory set holds. The default is 448
        where nothing is looked up (with the preset "balanced"). With 0 nothing is ranked, and no scores are kept.
    sink_tokens : int, default 4
        A: the first A positions of the sequence are always kept. L + H + A must be at least 1.
    chunk_size : int, default 1024
        S: tokens of a chunk.
    scorer : str or callable, default "distant"
        How positions are ranked; w(q, p) is the softmax weight of query q on position p, summed over the KV
        head's query heads, and the sums are over queries that saw p.

        - "distant": the mean of w over the queries at least L positions after p.
        - "sum": the sum of w (H2O).
        - "block_ema": whole blocks of positions, by the sum of their scores, which are moving averages over the chunks:
          see `research`.
        - a callable is called for each layer when a chunk is complete, as scorer(layer, keys, values, attention): K and
          V float32 [n_head_kv, n_tokens, head_dim] as `kv.keys` and `kv.values` have them, and the sums of "sum",
          float32 [n_head_kv, n_tokens]. It returns scores [n_head_kv, n_tokens], finite, and higher ones are kept. It
          must not call the `Llama`. If it raises, the call ends with its error and has changed nothing. Needs
          "single_pass" and a heavy_budget, and neither `evict` nor a `library`.
    schedule : {"single_pass", "two_phase"}
        - "single_pass": every chunk goes through the model once; one softmax over its memory set and itself.
        - "two_phase": attention within all chunks first, attention to the memory sets in a second pass.
    decode : {"full", "memory"}
        Default "full", with `evict` "memory".

        - "full": generated tokens attend to everything before them, at a cost that grows with the text.
        - "memory": they attend as a prompt's tokens do: to the memory sets, their chunk, lookups of their own. A
          token then costs the same at any depth, except for reading an index of keys. They are scored as a
          prompt's are.
    evict : bool, default False
        Drop K and V of positions outside of memory sets when their chunk is closed: the cache holds M + S positions,
        and the text may have any length. Dropped positions cannot be attended to, unless lookup brings them back from a
        cold store. Needs "single_pass" and decode="memory", which are its defaults then, and either lookup_budget=0 or
        a cold store.
    cold_store : str, path or None, default None
        Where evicted K and V go: "memory" of the host, or a folder, where a temporary file holds them until the
        process ends. They are brought back when a query looks them up, and take as many bytes as without `evict`.
        None: they are lost.
    lookup_budget : int, default 3072
        B: how many further positions a query attends to, found by an index of keys: a copy in 4 bits. The queries of a
        tile choose together, in each layer and KV head, positions before their chunk that are not in the memory set:
        those to which some query of the tile has the highest logits. In the ninth chunk they choose B, in chunk c
        B * (c/8)^0.75: the loss then grows little with the text. The copy holds n_ctx tokens, and stays in memory with
        a cold store, too. It needs attention as one operator (layers on the CPU or CUDA, flash attention not off) and
        heads whose size is a multiple of 32. 0 is none: the default with `evict` and no cold store, and, with a
        warning, where `Llama` finds that the model or its devices have no index.
    dense_layers : int or sequence of int, default 0
        Layers that attend to everything before them, at a cost that grows with the text: the first n, or a list.
        They have neither scores nor memory sets, and are not among `kv.layers`. Needs "single_pass".
    preset : {"fast", "balanced", "faithful"}, default "balanced"
        How large H and B are where they are not given: 128 and 512, 0 and 3,072, or 0 and 4,096. Where nothing is
        looked up, H is 192, 448 or 896.
    research : mapping, optional
        Parameters of experiments, by name. Each can be read as an attribute of the configuration.

        - "tile" (int, default 32): T, the consecutive queries that share their lookups. Tiles begin with the chunk.
          Where a prompt is split within a tile, the queries of each part choose for themselves.
        - "positions" ("text" or "cache"): the positions of kept tokens beyond the trained length T, with `evict`.
          "text": as in the text; beyond about 1.5 T the model writes nonsense. "cache": from the chunk on that ends
          beyond T, keys that are more than T - S before the chunk are rotated to that distance, so that no distance is
          longer than T. K takes M more rows. Needs plain RoPE on keys, M + S of at most T, and no cold store. It is the
          default with `evict` and no cold store, except where `Llama` finds that the model's keys cannot be rotated.
        - "block_tokens" (int, default 16), "ema_alpha" (float, default 0.5): of the scorer "block_ema". When a chunk is
          closed, a score becomes ema_alpha times itself plus (1 - ema_alpha) times the mean of w over the chunk's
          queries and query heads. S must be a multiple of block_tokens; L, H and A are rounded up to one.
        - "shared_heads" (bool, default False): all KV heads of a layer keep the same positions, by the mean of their
          scores.
        - "keep_ratio" (float, default None): a memory set holds this part of the text before it, rounded up (to whole
          blocks with "block_ema"), but at least sinks and local window, and at most M. H is the most that it may hold,
          by default the ratio's share of n_ctx tokens.

    References
    ----------
    Zhang et al. 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
    arXiv:2306.14048.

    Examples
    --------
    >>> H2OConfig(evict=True).memory_size, H2OConfig(evict=True).decode
    (512, 'memory')
    >>> H2OConfig(preset="fast").lookup_budget, H2OConfig(chunk_size=256).local_window
    (512, 15)
    >>> H2OConfig(chunk_size=256, research={"tile": 16})
    H2OConfig(chunk_size=256, research={'tile': 16})
    """

    local_window: int = _FOLLOWS
    heavy_budget: int = _FOLLOWS
    sink_tokens: int = _FOLLOWS
    scorer: str | Scorer = SCORERS[0]
    schedule: Literal["single_pass", "two_phase"] = "single_pass"
    decode: Literal["full", "memory"] = _FOLLOWS
    evict: bool = False
    lookup_budget: int = _FOLLOWS
    tile: int = field(default=32, init=False)
    dense_layers: int | Sequence[int] = ()
    cold_store: str | os.PathLike[str] | None = None
    positions: Literal["text", "cache"] = field(default=_FOLLOWS, init=False)
    block_tokens: int = field(default=16, init=False)
    ema_alpha: float = field(default=0.5, init=False)
    shared_heads: bool = field(default=False, init=False)
    keep_ratio: float | None = field(default=None, init=False)
    chunk_size: int = _CHUNK
    preset: Literal["fast", "balanced", "faithful"] = "balanced"
    research: InitVar[Mapping[str, Any]] = MappingProxyType({})

    def __post_init__(self, research: Mapping[str, Any]) -> None:
        if not isinstance(research, Mapping) or not set(research) <= set(_research_names()):
            raise check.bad_argument(_OWNER, "research", f"a mapping with keys of {_research_names()}", research)
        object.__setattr__(self, "research", dict(research))  # `dataclasses.replace` reads it
        for each in fields(self):
            value = getattr(self, each.name) if each.init else research.get(each.name, each.default)
            if each.default is None and (value is None or isinstance(value, _FollowingInt | _FollowingStr)):
                value = None  # not given
            else:
                value = _checked(each.name, value)
            object.__setattr__(self, each.name, value)
        for name, value in self._following().items():
            if getattr(self, name) is None:
                following = _FollowingStr(value) if isinstance(value, str) else _FollowingInt(value)
                object.__setattr__(self, name, following)
        if self.scorer == "block_ema":
            self._round_up_to_blocks()
        if callable(self.scorer):
            heavy = "at least 1" if self.heavy_budget == 0 else self.heavy_budget
            for name, expected in (("evict", False), ("schedule", "single_pass"), ("heavy_budget", heavy)):
                if getattr(self, name) != expected:
                    said = f"{expected} with a scorer in Python"
                    raise check.bad_argument(_OWNER, name, said, getattr(self, name))
        if self.keep_ratio == 0:
            raise check.bad_argument(_OWNER, "keep_ratio", "above 0 and at most 1", self.keep_ratio)
        try:
            _core.check_h2o(self.as_text())
        except ValueError as error:
            raise ValueError(str(error).replace("[h2o]", f"[{_OWNER}]")) from None

    def _given(self) -> dict[str, Any]:
        """The values that are not defaults and do not follow from others, as arguments."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if self.was_given(each.name)}
        given = {each.name: values[each.name] for each in fields(self) if values.get(each.name) != each.default}
        research = {name: given.pop(name) for name in _research_names() if name in given}
        return {**given, "research": research} if research else given

    def __eq__(self, other: object) -> bool:
        return self._given() == other._given() if isinstance(other, H2OConfig) else NotImplemented

    def __repr__(self) -> str:
        return f"H2OConfig({', '.join(f'{name}={value!r}' for name, value in self._given().items())})"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "H2OConfig":
        """Of all values by their names, with the keys of `research`: the inverse of `dataclasses.asdict`."""
        if not isinstance(values, Mapping):
            raise TypeError(f"[H2OConfig] from_dict needs a mapping of names to values, got {values!r}")
        names = _research_names()
        return cls(
            **{name: value for name, value in values.items() if name not in names},
            research={name: value for name, value in values.items() if name in names},
        )

    def with_research(self, **values: Any) -> "H2OConfig":
        """The same with other values of `research`."""
        return replace(self, research={**vars(self)["research"], **values})

    def _following(self) -> dict[str, int | str]:
        """Values of omitted fields."""
        share = min(self.chunk_size / _CHUNK, 1.0)
        has_lookup = not self.evict or self.cold_store is not None
        heavy_budget, lookup_budget = PRESETS[self.preset]
        if not has_lookup or self.lookup_budget == 0:
            heavy_budget, lookup_budget = _WITHOUT_LOOKUP[self.preset], 0
        res: dict[str, int | str] = {
            "local_window": int(share * _LOCAL_WINDOW),
            "sink_tokens": min(_SINK_TOKENS, self.chunk_size // 8),
            "lookup_budget": int(share * lookup_budget),
            "decode": "memory" if self.evict else "full",
            "positions": "text" if has_lookup else "cache",
        }
        if self.keep_ratio is None:
            at_least = 0 if heavy_budget == 0 and res["sink_tokens"] else 1
            res["heavy_budget"] = max(at_least, int(share * heavy_budget))
        return res

    def _round_up_to_blocks(self) -> None:
        for name in ("local_window", "heavy_budget", "sink_tokens"):
            size = getattr(self, name)
            if size is not None and size % self.block_tokens:
                kind = type(size)  # whether it was given
                object.__setattr__(self, name, kind(-(-size // self.block_tokens) * self.block_tokens))

    def as_text(self) -> dict[str, str]:
        """Every option by its name, as the core and command lines take it.

        Examples
        --------
        >>> H2OConfig(dense_layers=2).as_text()["dense_layers"]
        '0,1'
        """
        values = {name: getattr(self, name) for name in option_names()}
        return {name: _text(value) for name, value in values.items() if value is not None}

    @property
    def has_bounded_memory(self) -> bool:
        """Whether a text may be of any length: nothing that is kept grows with it."""
        return self.evict and not self.dense_layers and not self.has_key_index

    def for_context(self, n_ctx: int) -> "H2OConfig":
        """With the size that `keep_ratio` comes to."""
        if self.heavy_budget is not None or self.keep_ratio is None:
            return self
        n_kept = math.ceil(self.keep_ratio * n_ctx)
        return replace(self, heavy_budget=max(0, n_kept - self.local_window - self.sink_tokens))

    def was_given(self, name: str) -> bool:
        """Whether a value was given, and does not follow from others."""
        return not isinstance(getattr(self, name), _FollowingInt | _FollowingStr)

    @property
    def has_key_index(self) -> bool:
        """Whether a copy of the keys is kept, to find positions by."""
        return self.lookup_budget > 0

    @property
    def memory_size(self) -> int:
        """M, the number of positions in a full memory set.

        With `keep_ratio` and no `heavy_budget`, `Llama.h2o` has it; before, it is without heavy hitters.
        """
        return self.local_window + (self.heavy_budget or 0) + self.sink_tokens


def named_config(owner: str, h2o: Any, on_gpu: bool = False) -> Any:
    """The argument `h2o` of `owner`, with the configuration in the place of a preset's name.

    "auto" has larger chunks on a GPU. The type of other values is not checked.
    """
    if not isinstance(h2o, str):
        return h2o
    check.choice(owner, "h2o", h2o, ("auto", *PRESETS))
    if h2o != "auto":
        return H2OConfig(preset=cast(Any, h2o))
    return H2OConfig(chunk_size=_CHUNK_ON_A_GPU) if on_gpu else H2OConfig()


def uses_gpu(n_gpu_layers: int) -> bool:
    """Whether layers are on a GPU."""
    return n_gpu_layers != 0 and bool(_core.layer_devices([]))


def option_names() -> list[str]:
    """The fields of `H2OConfig` that the core knows: not `preset`, for one, which only gives defaults to others."""
    return [each.name for each in fields(H2OConfig) if each.name in OPTIONS]


def _research_names() -> list[str]:
    return [each.name for each in fields(H2OConfig) if not each.init]


def _checked(name: str, value: Any) -> Any:
    """The value, in the range and of the kind that the core's table says. NumPy's integers become int."""
    if name == "preset":
        return check.choice(_OWNER, name, value, PRESETS)
    option = OPTIONS[name]
    if name == "scorer" and callable(value):
        return value
    if option.kind == "number":
        return check.integer(_OWNER, name, value, int(option.min), int(option.max))
    if option.kind == "part":
        return None if value is None and name == "keep_ratio" else check.real(_OWNER, name, value, 0.0, 1.0)
    if option.kind == "switch":
        return check.flag(_OWNER, name, value)
    if option.kind == "choice":
        return check.choice(_OWNER, name, value, option.choices)
    if option.kind == "layers":
        return _layers(value)
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise check.bad_argument(_OWNER, name, "'memory', the path of a folder or None", value)
    return os.fspath(value)


def _text(value: Any) -> str:
    if callable(value):
        return "sum"  # what a scorer in Python is given
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _layers(value: int | Sequence[int]) -> tuple[int, ...]:
    """The first n layers, or the given ones, ascending."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(sorted({check.integer(_OWNER, "dense_layers", layer, 0, _MAX_LAYERS - 1) for layer in value}))
    return tuple(range(check.integer(_OWNER, "dense_layers", value, 0, _MAX_LAYERS)))
