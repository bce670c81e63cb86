"""Rows of the types that the codec knows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = {"u8": 1, "f16": 2, "bf16": 2, "f32": 4, "q8_0": 34, "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24}
DTYPES: dict[str, Any] = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32}


def typed(data: NDArray[np.uint8], type_: str) -> NDArray[Any]:
    return data.view(DTYPES.get(type_, np.uint8))
