"""Array types of the oracle, for the reader: NumPy's static types cannot tell their dtypes apart in expressions."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy.typing as npt

# float32 or float64.
Array: TypeAlias = npt.NDArray[Any]
# Positions or token ids.
IntArray: TypeAlias = npt.NDArray[Any]
BoolArray: TypeAlias = npt.NDArray[Any]
