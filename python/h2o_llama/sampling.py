"""llama.cpp's sampler chain."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._thoughts import Thoughts
from h2o_llama.grammar import LlamaGrammar, compile_grammar

_OWNER = "Llama.generate"
_FLOAT32_MAX = 3.4e38
_PENALTY_TOKENS = 64  # llama.cpp's penalty_last_n
_DRY_TOKENS = 1 << 20
_BREAKER_BYTES = 40  # MAX_CHAR_LEN of llama_sampler_init_dry

_NUMBERS = {
    "temperature": (0, _FLOAT32_MAX),
    **dict.fromkeys(("top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold"), (0, 1)),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), (-_FLOAT32_MAX, _FLOAT32_MAX)),
    **dict.fromkeys(("repeat_penalty", "dry_multiplier", "mirostat_tau", "mirostat_eta"), (0, _FLOAT32_MAX)),
    "dry_base": (1, _FLOAT32_MAX),
}
_INTEGERS = {
    "top_k": (0, check.INT32_MAX),
    "mirostat_mode": (0, 2),
    "dry_allowed_length": (0, check.INT32_MAX),
    "dry_penalty_last_n": (0, _DRY_TOKENS),
}
"""What numbers may be."""

LogitsProcessor = Callable[[NDArray[np.int32], NDArray[np.float32]], Any]


class SamplingOptions(TypedDict, total=False):
    """Keyword arguments of `Sampling`; None is the default of each, as null is in OpenAI's requests."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    seed: int | None
    grammar: LlamaGrammar | str | None
    logit_bias: Mapping[int, float] | None
    logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None
    typical_p: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    dry_sequence_breakers: Sequence[str] | None
    mirostat_mode: int | None
    mirostat_tau: float | None
    mirostat_eta: float | None


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the logits.

    Processors come first, then biases, penalties, DRY, top-k, typical, top-p, min-p, XTC and temperature. Mirostat
    takes the place of all from top-k on but temperature. With a grammar, a token that does not fit it is drawn again
    among the others.

    Raises ValueError if a value has the wrong type or is out of range, or the grammar is invalid.

    Parameters
    ----------
    temperature : float, default 0.8
        Divides logits. 0 is greedy: the most probable token, always.
    top_k : int, default 40
        Draw among the k most probable tokens only; 0 is off.
    top_p : float, default 0.95
        Draw among the fewest tokens whose probabilities add up to p; 1 is off.
    min_p : float, default 0.05
        Drop tokens less probable than min_p times the most probable one; 0 is off.
    repeat_penalty : float, default 1.0
        Divisor of positive logits (factor of negative ones) of tokens seen in the last 64; 1 is off.
    frequency_penalty, presence_penalty : float, default 0.0
        Subtract this from the logit of a token seen in the last 64: once per occurrence, or once; 0 is off.
    seed : int or None, default None
        Seed of the draw, 0 to 2**32 - 2; None draws differently every time.
    grammar : LlamaGrammar, str or None, default None
        What may be generated; a str is llama.cpp's GBNF.
    logit_bias : mapping from token id to float, optional
        What to add to the logits of tokens; -inf forbids one.
    logits_processor : callable, or sequence of callables, optional
        Each is called as processor(input_ids, logits) before a token is drawn, int32 [n_tokens] and float32 [n_vocab],
        and returns the logits to use. It must not call back into the `Llama`.
    typical_p : float, default 1.0
        Draw among the fewest tokens whose probabilities add up to p, those first whose information is nearest to the
        entropy (Meister et al., 2022); 1 is off.
    xtc_probability, xtc_threshold : float, default 0.0 and 0.1
        With this probability, drop all tokens at least as probable as the threshold but the least probable of them;
        0, or a threshold above 0.5, is off.
    dry_multiplier, dry_base : float, default 0.0 and 1.75
        A token that would continue a repetition of n tokens loses multiplier * base ** (n - dry_allowed_length);
        multiplier 0 is off.
    dry_allowed_length : int, default 2
        Shorter repetitions lose nothing.
    dry_penalty_last_n : int, default 1024
        How many tokens back repetitions are looked for.
    dry_sequence_breakers : sequence of str, default newline, colon, quotation mark and asterisk
        No repetition goes beyond one of these.
    mirostat_mode : {0, 1, 2}, default 0
        Mirostat 1 or 2 (Basu et al., 2021) instead of truncation: draws have the information tau on average; 0 is off.
    mirostat_tau, mirostat_eta : float, default 5.0 and 0.1
        The information in bits, and the rate at which drawn tokens correct it.

    Examples
    --------
    >>> Sampling(temperature=0).top_k
    40
    >>> Sampling(top_p=2.0)
    Traceback (most recent call last):
        ...
    ValueError: [Llama.generate] top_p must be a finite number from 0 to 1, got 2.0
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    grammar: LlamaGrammar | str | _core.Grammar | None = None
    logit_bias: Mapping[int, float] | None = None
    logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None = None
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 1024
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    mirostat_mode: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1

    @classmethod
    def of(cls, owner: str, given: SamplingOptions) -> "Sampling":
        """By keyword arguments of `owner`. Raises TypeError if it has no such argument."""
        check_names(owner, given, SamplingOptions)
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return cls(**options)

    def __post_init__(self) -> None:
        for name, limits in _NUMBERS.items():
            check.real(_OWNER, name, getattr(self, name), *limits)
        for name, (low, high) in _INTEGERS.items():
            check.integer(_OWNER, name, getattr(self, name), low, high)
        if self.repeat_penalty == 0:
            raise check.bad_argument(_OWNER, "repeat_penalty", "greater than 0", self.repeat_penalty)
        check_seed(_OWNER, self.seed)
        self.processors  # noqa: B018 (checks them)
        breakers = self.dry_sequence_breakers
        if not isinstance(breakers, list | tuple) or not all(isinstance(b, str) and _is_breaker(b) for b in breakers):
            expected = f"a list of str of 1 to {_BREAKER_BYTES} bytes"
            raise check.bad_argument(_OWNER, "dry_sequence_breakers", expected, breakers)

    @property
    def processors(self) -> list[LogitsProcessor]:
        """The logits processors as a list."""
        return check.callables(_OWNER, "logits_processor", self.logits_processor)

    def _biases(self, n_vocab: int) -> list[tuple[int, float]]:
        if self.logit_bias is None:
            return []
        if not isinstance(self.logit_bias, Mapping):
            raise check.bad_argument(_OWNER, "logit_bias", "a mapping from token ids to numbers", self.logit_bias)
        biases = []
        for token, bias in self.logit_bias.items():
            id_ = int(token) if isinstance(token, str) and token.isdecimal() else token  # JSON has no other keys
            check.integer(_OWNER, "logit_bias' token id", id_, 0, n_vocab - 1)
            if bias != -math.inf:
                check.real(_OWNER, "logit_bias", bias, -_FLOAT32_MAX, _FLOAT32_MAX)
            biases.append((int(id_), float(bias)))
        return biases

    def compiled(self, model: _core.Model) -> "Sampling":
        """The same, checked against a model, with the grammar read."""
        self._biases(model.n_vocab)
        return replace(self, grammar=compile_grammar(_OWNER, model, self.grammar))

    def make_sampler(self, model: _core.Model) -> "Sampler":
        """A new chain: penalties, the grammar and the random state start afresh."""
        core = _core.Sampler(
            model,
            {name: float(getattr(self, name)) for name in (*_NUMBERS, *_INTEGERS)},
            _core.RANDOM_SEED if self.seed is None else int(self.seed),
            list(self.dry_sequence_breakers),
            self._biases(model.n_vocab),
            compile_grammar(_OWNER, model, self.grammar),
        )
        n_dry = int(self.dry_penalty_last_n) if self.dry_multiplier > 0 else 0
        return Sampler(core, self.processors, max(_PENALTY_TOKENS, n_dry))


class Sampler:
    """Draws the tokens of one text."""

    def __init__(self, core: _core.Sampler, processors: list[LogitsProcessor], n_past: int) -> None:
        self._core = core
        self._n_past = n_past
        self._processors = processors
        self.thoughts: Thoughts | None = None
        """Of a model that thinks."""

    def accept(self, ids: NDArray[np.int32]) -> None:
        """Tokens of the prompt; penalties and DRY see the last ones."""
        for token in ids[-self._n_past :].tolist():
            self._core.accept(token, False)

    def sample(self, context: _core.Context, logits: NDArray[np.float32]) -> int:
        """The next token, by the last one's logits, which do not change."""
        thoughts = self.thoughts
        constrained = thoughts is None or not thoughts.is_open or thoughts.has_grammar
        token = None if thoughts is None else thoughts.forced()
        if token is None:
            token = self._draw(context, self._processed(context, logits), constrained)
            token = token if thoughts is None else thoughts.instead_of(token)
        self._core.accept(token, constrained)
        if thoughts is not None:
            thoughts.add(token)
        return token

    def _draw(self, context: _core.Context, logits: NDArray[np.float32], constrained: bool) -> int:
        """A text whose thoughts were ended for it has an answer, unless that can have no token."""
        token = self._core.sample(logits, constrained)
        while self.thoughts is not None and self.thoughts.must_answer and self.thoughts.is_end(token):
            logits = logits.copy()
            logits[token] = -np.inf
            if np.isneginf(logits).all():
                break
            token = self._core.sample(logits, constrained)
        return token

    def _processed(self, context: _core.Context, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._processors:
            return logits
        logits = logits.copy()
        for processor in self._processors:
            result = processor(context.tokens, logits)
            logits = check.float_array(_OWNER, "what logits_processor returns", result, logits.shape)
        if np.isnan(logits).any() or np.isposinf(logits).any():
            raise ValueError(f"[{_OWNER}] logits_processor must return numbers below infinity, got some that are not")
        return logits


def _is_breaker(text: str) -> bool:
    data = text.encode(errors="replace")
    return 1 <= len(data) <= _BREAKER_BYTES and b"\0" not in data and data.decode() == text


def check_names(owner: str, given: Mapping[str, Any], known: type) -> None:
    """Raise TypeError if `owner` has no such keyword argument."""
    for name in given:
        if name not in known.__annotations__:
            raise TypeError(f"[{owner}] unexpected keyword argument {name!r}")


def check_seed(owner: str, seed: int | None) -> int | None:
    """The largest uint32 is llama.cpp's "random"."""
    return None if seed is None else check.integer(owner, "seed", seed, 0, _core.RANDOM_SEED - 1)
