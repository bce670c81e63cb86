"""The demo model in PyTorch: Qwen3's architecture, small enough to train on one CPU core."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelConfig:
    """The sizes that the GGUF file's metadata repeats."""

    n_layer: int = 4
    n_embd: int = 192
    n_ff: int = 512
    n_head: int = 6
    n_head_kv: int = 2
    head_dim: int = 64
    n_vocab: int = 260
    rope_base: float = 1e6
    norm_eps: float = 1e-6


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, with a weight."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rope_tables(positions: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines [batch, 1, n, head_dim / 2] for positions [batch, n]."""
    half = config.head_dim // 2
    inverse = config.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = (positions[:, None, :, None].double() * inverse).float()
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """NEOX-style rotation: element i pairs with element i + head_dim / 2."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    """Causal grouped-query attention with a norm on every query and key head."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.c = c
        self.q = nn.Linear(c.n_embd, c.n_head * c.head_dim, bias=False)
        self.k = nn.Linear(c.n_embd, c.n_head_kv * c.head_dim, bias=False)
        self.v = nn.Linear(c.n_embd, c.n_head_kv * c.head_dim, bias=False)
        self.o = nn.Linear(c.n_head * c.head_dim, c.n_embd, bias=False)
        self.q_norm = RMSNorm(c.head_dim, c.norm_eps)
        self.k_norm = RMSNorm(c.head_dim, c.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, n, _ = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(batch, n, -1, self.c.head_dim).transpose(1, 2)

        q = rotate(self.q_norm(heads(self.q(x))), cos, sin)
        k = rotate(self.k_norm(heads(self.k(x))), cos, sin)
        v = heads(self.v(x))
        group = self.c.n_head // self.c.n_head_kv
        k, v = k.to(v.dtype).repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = F.scaled_dot_product_attention(q.to(v.dtype), k, v, is_causal=True)
        return self.o(out.transpose(1, 2).reshape(batch, n, -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(c.n_embd, c.n_ff, bias=False)
        self.up = nn.Linear(c.n_embd, c.n_ff, bias=False)
        self.down = nn.Linear(c.n_ff, c.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm, added to the stream."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(c.n_embd, c.norm_eps)
        self.attn = Attention(c)
        self.ffn_norm = RMSNorm(c.n_embd, c.norm_eps)
        self.ffn = FeedForward(c)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class DemoModel(nn.Module):
    """Tokens [batch, n] to logits [batch, n, n_vocab]."""

    def __init__(self, config: ModelConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or ModelConfig()
        self.embed = nn.Embedding(c.n_vocab, c.n_embd)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.n_layer))
        self.norm = RMSNorm(c.n_embd, c.norm_eps)
        self.output = nn.Linear(c.n_embd, c.n_vocab, bias=False)
        self._init_weights()

    def _init_weights(self) -> None:
        """Small normal weights; what adds to the stream starts at zero."""
        nn.init.normal_(self.embed.weight, std=0.5)
        nn.init.normal_(self.output.weight, std=0.02)
        for layer in self.layers:
            nn.init.zeros_(layer.attn.o.weight)
            nn.init.zeros_(layer.ffn.down.weight)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is None:
            positions = torch.arange(tokens.shape[1])[None]
        cos, sin = rope_tables(positions, self.config)
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.output(self.norm(x))
