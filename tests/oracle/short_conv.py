"""LFM2's short convolution: a layer whose only memory of the text is the last few tokens' inputs."""

from __future__ import annotations

import numpy as np

from .arrays import Array
from .gguf_model import ShortConv


def short_conv(mixer: ShortConv, x: Array, state: Array | None) -> tuple[Array, Array]:
    """Outputs [n_tokens, n_embd] of normalised hidden states x, and the state after them.

    The input is split into b, c and y; z = b * y; the output is w_out(c * conv(z)), where conv is causal and each
    channel has its own kernel. The state is the last width - 1 rows of z; it is None, zeros, before the first token.
    """
    b, c, y = np.split(mixer.w_in(x), 3, axis=1)
    kernel = mixer.kernel.astype(x.dtype)
    width = kernel.shape[1]
    if state is None:
        state = np.zeros((width - 1, x.shape[1]), x.dtype)
    z = np.concatenate([state, b * y])
    conv = sum(kernel[:, i] * z[i : i + len(x)] for i in range(width))
    return mixer.w_out(c * conv), z[len(x) :]
