"""Memory sets worked out by hand: scores, previous set, S, c, L, H, A -> positions kept, -1 padded.

Shared by the oracle's own test and the library's.
"""

import numpy as np
import pytest

SELECTION_TABLE = [
    pytest.param([9, 1, 8, 2, 7, 3], [], 6, 0, 2, 2, 0, [0, 2, 4, 5], id="local window and the two best of the rest"),
    pytest.param([1, 1, 1, 1], [], 4, 0, 1, 2, 0, [0, 1, 3], id="ties go to the lower position"),
    pytest.param([0, 5, 5, 5], [], 4, 0, 1, 1, 0, [1, 3], id="a tie at the threshold too"),
    pytest.param([5, 1, 9, 0], [], 4, 0, 0, 2, 0, [0, 2], id="no local window"),
    pytest.param([5, 1, 9, 0], [], 4, 0, 3, 0, 0, [1, 2, 3], id="no heavy hitters"),
    pytest.param([0, 0, 9, 8, 7, 1], [], 6, 0, 1, 1, 2, [0, 1, 2, 5], id="sinks do not use the heavy budget"),
    pytest.param([1, 2, 3, 4], [], 4, 0, 2, 4, 0, [0, 1, 2, 3, -1, -1], id="fewer candidates than H: padding"),
    pytest.param([1, 2, 3, 4], [], 4, 0, 3, 1, 3, [0, 1, 2, 3, -1, -1, -1], id="sinks and local window overlap"),
    pytest.param([9, 1, 7, 6, 1, 2, 3, 4], [0, 1, 3], 4, 1, 1, 2, 0, [0, 3, 7], id="old ones come from memory only"),
    pytest.param([9, 1, 7, 6, 1, 2, 10, 4], [0, 1, 3], 4, 1, 1, 2, 0, [0, 6, 7], id="old ones compete with the chunk"),
    pytest.param([1, 2, 9, 3, 1, 2, 3, 4], [0, 1, 3], 4, 1, 1, 2, 0, [3, 6, 7], id="evicted ones never return"),
    pytest.param([1, np.nan, 0, 2], [], 4, 0, 1, 2, 0, [0, 2, 3], id="NaN ranks below everything"),
    pytest.param([np.inf, 1, np.inf, 2], [], 4, 0, 1, 2, 0, [0, 2, 3], id="inf ranks above everything"),
]
