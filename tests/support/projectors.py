"""Small random projectors, as LLaVA has them, and images for them."""

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from models import finish

SIZE, PATCH = 24, 4
N_ROWS = (SIZE // PATCH) ** 2
"""Of an image."""

_N_EMBD, _N_FF, _N_LAYER = 32, 48, 2


def write_projector(path: Path, n_embd: int, kind: str = "mlp") -> Path:
    """A projector for models with rows of this length. The kind "gemma3" is one whose images attend both ways."""
    rng = np.random.default_rng(7)
    size = 2 * 4 * PATCH if kind == "gemma3" else SIZE  # which makes one row of 4 x 4 patches
    writer = GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", kind)
    writer.add_bool("clip.use_gelu", True)
    for name, number in (
        ("embedding_length", _N_EMBD),
        ("attention.head_count", 2),
        ("feed_forward_length", _N_FF),
        ("block_count", _N_LAYER),
        ("projection_dim", n_embd),
        ("image_size", size),
        ("patch_size", PATCH),
    ):
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.25, 0.25, 0.25])

    def add(name: str, *shape: int, scale: float | None = None) -> None:
        scale = shape[-1] ** -0.5 if scale is None else scale
        writer.add_tensor(name, (rng.normal(size=shape) * scale).astype(np.float32))

    def add_ones(name: str, n: int) -> None:
        writer.add_tensor(name, np.ones(n, np.float32))

    add("v.patch_embd.weight", _N_EMBD, 3, PATCH, PATCH, scale=0.2)
    add("v.position_embd.weight", (size // PATCH) ** 2, _N_EMBD, scale=1)
    for il in range(_N_LAYER):
        for name in ("q", "k", "v", "out"):
            add(f"v.blk.{il}.attn_{name}.weight", _N_EMBD, _N_EMBD)
        for name in ("ln1", "ln2"):
            add_ones(f"v.blk.{il}.{name}.weight", _N_EMBD)
            add(f"v.blk.{il}.{name}.bias", _N_EMBD, scale=0.1)
        add(f"v.blk.{il}.ffn_up.weight", _N_FF, _N_EMBD)
        add(f"v.blk.{il}.ffn_down.weight", _N_EMBD, _N_FF)
    if kind == "gemma3":
        add("mm.input_projection.weight", _N_EMBD, n_embd)
        add_ones("mm.soft_emb_norm.weight", _N_EMBD)
        add_ones("v.post_ln.weight", _N_EMBD)
    else:
        add("mm.0.weight", n_embd, _N_EMBD)
        add("mm.0.bias", n_embd, scale=0.1)
        add("mm.2.weight", n_embd, n_embd)
        add("mm.2.bias", n_embd, scale=0.1)
    finish(writer)
    return path


def picture(seed: int) -> NDArray[np.uint8]:
    """Random pixels, [height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """The file of an image."""
    height, width, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def data_url(image: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(image).decode()


def image_part(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def about(text: str, *images: bytes) -> dict[str, Any]:
    """A user's message with images before its text."""
    return {"role": "user", "content": [*(image_part(data_url(i)) for i in images), {"type": "text", "text": text}]}
