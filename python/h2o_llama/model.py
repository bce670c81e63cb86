"""A loaded model without its context: what it is, and its vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal import check

Tokens = Sequence[int] | NDArray[np.integer[Any]]


class ModelView:
    """Read access to a model. Everything raises ValueError after `close()`."""

    _model: _core.Model | None
    _model_path: str

    @property
    def core_model(self) -> _core.Model:
        """The core's model, for this package's own classes."""
        if self._model is None:
            raise ValueError("[Llama] this model is closed")
        return self._model

    @property
    def model_path(self) -> str:
        """Where the model's file is."""
        return self._model_path

    @property
    def desc(self) -> str:
        """Architecture, size and type in words."""
        return self.core_model.desc

    @property
    def metadata(self) -> dict[str, str]:
        """The GGUF file's metadata, but for arrays; values as text."""
        return self.core_model.metadata

    @property
    def n_vocab(self) -> int:
        """Tokens in the vocabulary."""
        return self.core_model.n_vocab

    @property
    def n_params(self) -> int:
        """Weights of the model."""
        return self.core_model.n_params

    @property
    def model_bytes(self) -> int:
        """Bytes of the weights."""
        return self.core_model.size

    @property
    def token_bos(self) -> int:
        """Id of the token that begins a text; -1 if there is none."""
        return self.core_model.token_bos

    @property
    def token_eos(self) -> int:
        """Id of the token that ends a text; -1 if there is none."""
        return self.core_model.token_eos

    def tokenize(self, text: str | bytes, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        Parameters
        ----------
        text : str or bytes
            UTF-8 if bytes.
        add_special : bool, default True
            Add the tokens that the model expects around a text, such as the one that begins it.
        parse_special : bool, default False
            Turn the names of special tokens in the text into these tokens. Not for text from strangers.

        Raises
        ------
        ValueError
            If an argument has the wrong type.
        H2OError
            If the model has no tokenizer, or it cannot tokenize this text.
        """
        owner = "Llama.tokenize"
        if not isinstance(text, str | bytes):
            raise check.bad_argument(owner, "text", "str or bytes", text)
        return self.core_model.tokenize(
            text.encode() if isinstance(text, str) else text,
            check.flag(owner, "add_special", add_special),
            check.flag(owner, "parse_special", parse_special),
        )

    def detokenize(self, tokens: Tokens, special: bool = False) -> bytes:
        """Text of token ids, as bytes: a single token may hold a part of a character.

        Parameters
        ----------
        tokens : sequence of int, or integer ndarray [n]
            Token ids.
        special : bool, default False
            Write special tokens by their names instead of leaving them out.

        Raises
        ------
        ValueError
            If a token is no token id.
        """
        owner = "Llama.detokenize"
        model = self.core_model
        ids = check.token_ids(owner, tokens, model.n_vocab).tolist()
        text = model.detokenize(ids, check.flag(owner, "special", special))
        # SentencePiece puts a space before a text.
        begins_text = len(ids) > 1 and ids[0] == model.token_bos and not special
        adds_space = model.is_spm and model.metadata.get("tokenizer.ggml.add_space_prefix", "true") == "true"
        return text[1:] if begins_text and adds_space and text.startswith(b" ") else text
