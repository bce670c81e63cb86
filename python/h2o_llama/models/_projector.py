"""Images as a model reads them."""

import hashlib
import os
import threading
from collections import OrderedDict
from typing import Any

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._prompt import Prompt
from h2o_llama.errors import H2OError, UnsupportedModelError
from h2o_llama.models._files import check_gguf_file, reading_a_model
from h2o_llama.models._find import find_projector

_OWNER = "Llama"

_KEPT_BYTES = 256 << 20
"""Of rows of images that may come again: a chat is sent with all its images in every turn."""

_BEGINNINGS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"BM": "BMP"}


def open_projector(
    model: _core.Model, mmproj: str | os.PathLike[str], n_threads: int, use_gpu: bool, verbose: bool
) -> _core.Projector:
    """The projector in a GGUF file of its own ("mmproj").

    Raises FileNotFoundError or ValueError if it is missing or not a file, DamagedFileError if it is damaged,
    H2OError if it does not fit the model.
    """
    if not isinstance(mmproj, str | os.PathLike):
        raise check.bad_argument(
            _OWNER, "mmproj", "the path of a GGUF file, a repository of the Hugging Face Hub, or None", mmproj
        )
    path = find_projector(mmproj)
    check_gguf_file(f"[{_OWNER}]", path)
    with reading_a_model():
        return _core.Projector(model, os.fsencode(path), n_threads, use_gpu, verbose)


def check_image_folder(owner: str, folder: str | os.PathLike[str] | None) -> str | None:
    """Where images of messages may be. Raises ValueError if it does not exist."""
    if folder is None:
        return None
    if not isinstance(folder, str | os.PathLike) or not os.path.isdir(folder):
        raise check.bad_argument(owner, "allowed_image_folder", "the path of a folder, or None", folder)
    return os.fsdecode(os.path.abspath(folder))


class Projector:
    """What makes rows of embeddings of images.

    Raises as `open_projector`, and UnsupportedModelError if the model reads images in another way than text.
    """

    def __init__(
        self, model: _core.Model, mmproj: str | os.PathLike[str], n_threads: int, use_gpu: bool, verbose: bool
    ) -> None:
        self._core = open_projector(model, mmproj, n_threads, use_gpu, verbose)
        for is_fine, reason in (
            (self._core.has_vision, "it is for sound, not for images"),
            (self._core.is_causal, "the parts of an image attend to each other both ways"),
            (self._core.has_1d_positions, "an image's parts have positions of several dimensions (M-RoPE)"),
        ):
            if not is_fine:
                raise UnsupportedModelError(
                    f"[{_OWNER}] images of this model are not supported: {reason}. Leave out mmproj to read text, or "
                    "use a model whose images are read like text (LLaVA, SmolVLM, InternVL, Pixtral, LFM2-VL)"
                )
        self._kept: OrderedDict[bytes, Prompt] = OrderedDict()
        self._lock = threading.Lock()

    def encode(self, where: str, image: bytes) -> Prompt:
        """A part of a text from an image file's content.

        Raises ValueError if it is not an image, H2OError if it is damaged. Messages begin with `where`.
        """
        if not image.startswith(tuple(_BEGINNINGS)):
            kinds = ", ".join(_BEGINNINGS.values())
            raise ValueError(f"{where}: expected the content of an image file ({kinds}), got something else")
        key = hashlib.sha256(image).digest()
        with self._lock:
            prompt = self._kept.get(key)
            if prompt is None:
                pieces = self._encode(where, image)
                prompt = Prompt.join([Prompt.of_tokens(p) if p.ndim == 1 else Prompt.of_rows(p) for p in pieces])
                self._kept[key] = prompt
                while sum(kept.rows.nbytes for kept in self._kept.values()) > _KEPT_BYTES and len(self._kept) > 1:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
        return prompt

    def _encode(self, where: str, image: bytes) -> list[Any]:
        """Pieces of token ids [n], and of rows [n, n_embd]."""
        try:
            return self._core.encode(image)
        except H2OError as error:
            raise H2OError(f"{where}: {error}") from None
