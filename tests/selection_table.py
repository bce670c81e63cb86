"""Memory sets worked out by hand: scores, previous set, S, c, L, H, A -> positions kept, -1 padded.

Shared by the oracle's own test and the library's.
"""

import numpy as np

SELECTION_TABLE = [
    ([9, 1, 8, 2, 7, 3], [], 6, 0, 2, 2, 0, [0, 2, 4, 5]),  # local window and the two best of the rest
    ([1, 1, 1, 1], [], 4, 0, 1, 2, 0, [0, 1, 3]),  # ties go to the lower position
    ([0, 5, 5, 5], [], 4, 0, 1, 1, 0, [1, 3]),  # a tie at the threshold too
    ([5, 1, 9, 0], [], 4, 0, 0, 2, 0, [0, 2]),  # no local window
    ([5, 1, 9, 0], [], 4, 0, 3, 0, 0, [1, 2, 3]),  # no heavy hitters
    ([0, 0, 9, 8, 7, 1], [], 6, 0, 1, 1, 2, [0, 1, 2, 5]),  # sinks do not use the heavy budget
    ([1, 2, 3, 4], [], 4, 0, 2, 4, 0, [0, 1, 2, 3, -1, -1]),  # fewer candidates than H: padding
    ([1, 2, 3, 4], [], 4, 0, 3, 1, 3, [0, 1, 2, 3, -1, -1, -1]),  # sinks and local window overlap
    ([9, 1, 7, 6, 1, 2, 3, 4], [0, 1, 3], 4, 1, 1, 2, 0, [0, 3, 7]),  # old ones come from memory only
    ([9, 1, 7, 6, 1, 2, 10, 4], [0, 1, 3], 4, 1, 1, 2, 0, [0, 6, 7]),  # old ones compete with the chunk
    ([1, 2, 9, 3, 1, 2, 3, 4], [0, 1, 3], 4, 1, 1, 2, 0, [3, 6, 7]),  # evicted ones never return
    ([1, np.nan, 0, 2], [], 4, 0, 1, 2, 0, [0, 2, 3]),  # NaN ranks below everything
    ([np.inf, 1, np.inf, 2], [], 4, 0, 1, 2, 0, [0, 2, 3]),  # inf ranks above everything
]
