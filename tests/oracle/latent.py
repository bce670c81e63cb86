"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434), with the matrices of K and V absorbed.

The cache has one row for all heads: a latent c, and a key with RoPE. A head's key without RoPE is W_k c, so its product
with a query is that of c with W_kᵀ q; and the values' weighted sum is W_v times the weighted sum of latents. So it is
attention of many heads to one KV head, whose keys are [c, key with RoPE] and whose values are c.
"""

from __future__ import annotations

import numpy as np

from .arrays import Array, IntArray
from .gguf_model import GGUFModel, LatentAttention
from .norm import rms_norm
from .rope import rotated


def latent_query(model: GGUFModel, il: int, mixer: LatentAttention, x: Array, positions: IntArray) -> Array:
    """Queries [n_head, n_tokens, rank + n_rope] of normalised hidden states x."""
    hp, latent = model.hparams, model.hparams.latent
    assert latent is not None
    if mixer.wq_a is not None:
        assert mixer.q_a_norm is not None
        x = rms_norm(mixer.wq_a(x), mixer.q_a_norm, hp.rms_eps)
    q = mixer.wq(x).reshape(len(x), hp.n_head[il], latent.n_nope + latent.n_rope)
    in_latent_space = mixer.wk_b(q[..., : latent.n_nope].transpose(1, 0, 2))
    with_rope = rotated(q[..., latent.n_nope :], positions, hp.rope[il], neox=hp.rope_neox)
    return np.concatenate([in_latent_space, with_rope.transpose(1, 0, 2)], axis=-1)


def latent_key_value(
    model: GGUFModel, il: int, mixer: LatentAttention, x: Array, positions: IntArray
) -> tuple[Array, Array]:
    """Keys [1, n_tokens, rank + n_rope] and values [1, n_tokens, rank] of normalised hidden states x."""
    hp, latent = model.hparams, model.hparams.latent
    assert latent is not None
    row = mixer.wkv_a(x)
    c = rms_norm(row[:, : latent.rank], mixer.kv_a_norm, hp.rms_eps)
    with_rope = rotated(row[:, None, latent.rank :], positions, hp.rope[il], neox=hp.rope_neox)[:, 0]
    return np.concatenate([c, with_rope], axis=-1)[None], c[None]
