"""What dense attention said, kept so that settings are tried at their own cost."""

from __future__ import annotations

import hashlib
import json
from typing import Protocol

import numpy as np

from h2o_llama._internal.atomic import alone_with, replacing
from h2o_llama.models._named import cache_folder


class Prompt(Protocol):
    """What was asked."""

    @property
    def tokens(self) -> tuple[int, ...]: ...
    @property
    def n_generate(self) -> int: ...


class DenseAnswers:
    """Answers of one model by the prompt's tokens, in a file of the user's cache folder."""

    def __init__(self, fingerprint: str) -> None:
        self._path = cache_folder() / f"dense-answers-{fingerprint[:16]}.json"

    def __contains__(self, prompt: Prompt) -> bool:
        return _key(prompt) in self._read()

    def __getitem__(self, prompt: Prompt) -> str:
        return self._read()[_key(prompt)]

    def add(self, prompt: Prompt, said: str) -> None:
        """Keep an answer. Another process may add others meanwhile: the file is read anew."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with alone_with(self._path):
            answers = {**self._read(), _key(prompt): said}
            with replacing(self._path) as file:
                file.write(json.dumps(answers, indent=1).encode())

    def _read(self) -> dict[str, str]:
        try:
            answers = json.loads(self._path.read_bytes())
        except (FileNotFoundError, ValueError):  # what is no JSON is of no use
            return {}
        return answers if isinstance(answers, dict) else {}


def _key(prompt: Prompt) -> str:
    tokens = np.array([prompt.n_generate, *prompt.tokens], dtype=np.int32)
    return hashlib.sha256(tokens.tobytes()).hexdigest()
