"""Argument checks. Every failure is a ValueError: "[owner] name must be ..., got ..."."""

import json
import math
import operator
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The core counts in int32 and uint32; no sane size is larger than the smaller of the two.
INT32_MAX = 2**31 - 1

MAX_THREADS = 512  # GGML_MAX_N_THREADS

_JSON_DEPTH = 64


def bad_argument(owner: str, name: str, expected: str, value: object) -> ValueError:
    text = repr(value)
    return ValueError(f"[{owner}] {name} must be {expected}, got {text if len(text) <= 80 else text[:77] + '...'}")


def _as_int(value: object) -> int | None:
    """The integer that `value` is (a NumPy one too, but no bool), or None."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def integer(owner: str, name: str, value: object, low: int, high: int = INT32_MAX) -> int:
    number = _as_int(value)
    if number is None or not low <= number <= high:
        expected = f"an integer of at least {low}" if high == INT32_MAX else f"an integer from {low} to {high}"
        raise bad_argument(owner, name, expected, value)
    return number


def real(owner: str, name: str, value: object, low: float, high: float = math.inf) -> float:
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    try:
        number = float(value) if is_number else math.nan  # type: ignore
    except OverflowError:  # an int
        number = math.inf
    if not (math.isfinite(number) and low <= number <= high):
        expected = f"a finite number from {low:g} to {high:g}" if math.isfinite(high) else f"a finite number >= {low:g}"
        raise bad_argument(owner, name, expected, value)
    return number


def flag(owner: str, name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise bad_argument(owner, name, "True or False", value)
    return bool(value)


def optional_flag(owner: str, name: str, value: object) -> bool | None:
    """None, as null in OpenAI's requests, is the default."""
    return None if value is None else flag(owner, name, value)


def utf8(owner: str, name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # json.loads makes such a text of an escaped half of a character
        found = f"{text[error.start]!r} at character {error.start}"
        raise ValueError(f"[{owner}] {name} must be text that UTF-8 can hold, got {found}") from None


def choice(owner: str, name: str, value: object, choices: Collection[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise bad_argument(owner, name, "one of " + ", ".join(map(repr, choices)), value)
    return value


def callables(owner: str, name: str, value: Any) -> list[Any]:
    """One callable, a list of them, or None, as a list."""
    found = [] if value is None else [value] if callable(value) and not isinstance(value, list) else value
    if not isinstance(found, list | tuple) or not all(map(callable, found)):
        raise bad_argument(owner, name, "callable, a list of callables, or None", value)
    return list(found)


def token_ids(owner: str, tokens: Sequence[int] | NDArray[np.integer[Any]], n_vocab: int) -> NDArray[np.int32]:
    """Token ids as int32 [n], n may be 0. Takes sequences of integers and integer arrays [n]."""
    expected = f"a sequence of token ids from 0 to {n_vocab - 1}"
    if isinstance(tokens, np.ndarray):
        if tokens.ndim != 1 or (tokens.dtype.kind not in "iu" and tokens.size > 0):
            raise bad_argument(owner, "tokens", expected, tokens)
        ids = tokens
    else:
        if isinstance(tokens, str | bytes | bytearray):
            raise bad_argument(owner, "tokens", expected + " (use tokenize for text)", tokens)
        try:
            tokens = list(tokens)
        except TypeError:
            raise bad_argument(owner, "tokens", expected, tokens) from None
        ids = _integers(tokens)
    bad = np.flatnonzero((ids < 0) | (ids >= n_vocab))
    if len(bad) > 0:
        i = int(bad[0])
        value = tokens[i].item() if isinstance(tokens, np.ndarray) else tokens[i]
        raise bad_argument(owner, f"tokens[{i}]", f"a token id from 0 to {n_vocab - 1}", value)
    return ids.astype(np.int32)


def _integers(values: list[Any]) -> NDArray[np.int64]:
    """int64 [n]; -1 for values that are not integers, or larger than any token id."""
    if set(map(type, values)) <= {int} and -1 <= min(values, default=0) <= max(values, default=0) <= INT32_MAX:
        return np.array(values, dtype=np.int64)  # two loops that are not Python's
    numbers = [_as_int(value) for value in values]
    return np.array([-1 if n is None or not -1 <= n <= INT32_MAX else n for n in numbers], dtype=np.int64)


def json_text(owner: str, name: str, value: object) -> str:
    """`value` as JSON. The core's readers are recursive."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"[{owner}] {name} must be what JSON can say: {error}") from None
    if _depth(value) > _JSON_DEPTH:
        raise ValueError(f"[{owner}] {name} must not be nested more than {_JSON_DEPTH} levels deep")
    return text


def _depth(value: object) -> int:
    """How deep lists and mappings are nested, counted no further than needed."""
    layer, depth = [value], 0
    while layer and depth <= _JSON_DEPTH:
        parts = [v.values() if isinstance(v, dict) else v for v in layer if isinstance(v, dict | list | tuple)]
        layer = [item for part in parts for item in part]
        depth += 1
    return depth


def float_array(owner: str, name: str, value: ArrayLike, shape: Sequence[int | None]) -> NDArray[np.float32]:
    """`value` as contiguous float32 of the given shape; None stands for any size."""
    expected = "an array of numbers of shape [" + ", ".join("n" if n is None else str(n) for n in shape) + "]"
    try:
        array = np.asarray(value)
    except ValueError:  # ragged
        raise bad_argument(owner, name, expected, value) from None
    if array.dtype.kind not in "fiu":
        raise bad_argument(owner, name, expected, value)
    if array.ndim != len(shape) or any(want not in (None, got) for want, got in zip(shape, array.shape, strict=True)):
        raise ValueError(f"[{owner}] {name} must be {expected}, got shape {list(array.shape)}")
    return np.ascontiguousarray(array, dtype=np.float32)
