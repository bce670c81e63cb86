"""The saved state of a sequence, and the contexts that it fits."""

import os
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._prompt import text_ids
from h2o_llama.config import H2OConfig, option_names
from h2o_llama.errors import DamagedFileError
from h2o_llama.sequence import _snapshot_file

SECTIONS = ("tokens", "logits", "state")

_NUMBER_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
"""Of numbers of K and V; quantised ones are in blocks."""


def _with_any_cold_store(h2o: H2OConfig) -> H2OConfig:
    """Where a cold store is does not matter, only whether there is one. No file may say where to write."""
    return h2o if h2o.cold_store is None else replace(h2o, cold_store="memory")


@dataclass(frozen=True)
class SnapshotOrigin:
    """The model and the context that a snapshot is of. It can be restored where these are the same.

    `model` is the name of its file. `flash_attn` matters without H2O: "off" keeps V otherwise.
    """

    model: str
    fingerprint: str
    n_vocab: int
    type_k: str
    type_v: str
    flash_attn: str
    h2o: H2OConfig | None

    @classmethod
    def from_json(cls, values: Any) -> "SnapshotOrigin":
        """Of what `to_json` gave. Raises TypeError or ValueError if it is anything else."""
        if not isinstance(values, dict):
            raise TypeError(f"expected a dict, got {values!r:.80}")
        h2o = values.get("h2o")
        origin = cls(**{**values, "h2o": None if h2o is None else _with_any_cold_store(H2OConfig.from_dict(h2o))})
        for field in fields(cls):
            value, kind = getattr(origin, field.name), cast(Any, field.type)
            if field.name != "h2o" and type(value) is not kind:
                raise TypeError(f"{field.name} must be {kind.__name__}, got {value!r:.80}")
        return origin

    def to_json(self) -> dict[str, Any]:
        """For a file: without the folder of a cold store. Raises ValueError with a scorer in Python."""
        if self.h2o is not None and callable(self.h2o.scorer):
            raise ValueError(
                "[Snapshot.save] a scorer in Python cannot be written to a file: keep the Snapshot instead"
            )
        return asdict(self if self.h2o is None else replace(self, h2o=_with_any_cold_store(self.h2o)))

    @property
    def number_bytes(self) -> int:
        """Of the numbers of K and V in a state."""
        return _NUMBER_BYTES.get(self.type_k, 1)

    def differences(self, other: "SnapshotOrigin") -> list[str]:
        """What keeps a snapshot of this from being restored in the other, in words; empty if nothing does."""
        if (self.fingerprint, self.n_vocab) != (other.fingerprint, other.n_vocab):
            return [
                f"it is of another model ({self.model}, fingerprint {self.fingerprint[:12]}), not of {other.model}; "
                "with other adapters or RoPE options a model is another one"
            ]
        pairs: list[tuple[str, object, object]] = [
            ("type_k", self.type_k, other.type_k),
            ("type_v", self.type_v, other.type_v),
        ]
        if self.h2o is None or other.h2o is None:
            if (self.h2o is None) != (other.h2o is None):
                pairs += [("h2o", self.h2o, other.h2o)]
            else:
                mine, theirs = ("off" if o.flash_attn == "off" else "auto" for o in (self, other))
                pairs += [("flash_attn", mine, theirs)]
        else:
            here, there = _with_any_cold_store(self.h2o), _with_any_cold_store(other.h2o)
            pairs += [(name, getattr(here, name), getattr(there, name)) for name in option_names()]
        return [f"its {name} is {a!r}, not {b!r}" for name, a, b in pairs if a != b]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A sequence as it was: its tokens, K and V, scores, memory sets, index of keys, and the last logits.

    `Llama.snapshot` makes one, `Llama.restore` continues from it, in any `Llama` of the same model and configuration.
    It uses neither of them: they may be closed.

    Attributes
    ----------
    origin : SnapshotOrigin
        Model and configuration.
    tokens : ndarray of int32 [n_tokens]
        The text, as token ids; numbers below -1 are rows of embeddings.
    logits : ndarray of float32 [n_vocab], or None
        The last token's; None if they were not known, as after `Llama.rewind`.
    state : bytes
        The rest, as llama.cpp keeps it.

    Examples
    --------
    >>> llm.eval([1, 2, 3])
    >>> snapshot = llm.snapshot()
    >>> snapshot.tokens
    array([1, 2, 3], dtype=int32)
    """

    origin: SnapshotOrigin
    tokens: NDArray[np.int32]
    logits: NDArray[np.float32] | None
    state: bytes

    def __repr__(self) -> str:
        return f"Snapshot(model={self.origin.model!r}, n_tokens={self.n_tokens}, nbytes={self.nbytes})"

    @property
    def n_tokens(self) -> int:
        """Tokens in the sequence."""
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        """Bytes held in memory; a file is a little smaller."""
        return len(self.state) + self.tokens.nbytes + (0 if self.logits is None else self.logits.nbytes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, which replaces one of that name when it is complete.

        Raises ValueError if `path` is a folder or a special file, OSError if it cannot be written: no room, no
        permission. Nothing is left then, and an old file is as it was.
        """
        logits = np.empty(0, dtype=np.float32) if self.logits is None else self.logits
        contents = (self.tokens.astype("<i4").tobytes(), logits.astype("<f4").tobytes(), self.state)
        widths = (4, 4, self.origin.number_bytes)
        sections = map(_snapshot_file.Section, contents, widths)
        _snapshot_file.write(path, self.origin.to_json(), dict(zip(SECTIONS, sections, strict=True)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Snapshot":
        """Read what `save` has written.

        Raises FileNotFoundError or PermissionError if it cannot be opened, DamagedFileError if it is not a snapshot,
        damaged, or of an unknown version. The message says which.
        """
        values, (tokens, logits, state) = _snapshot_file.read(path, SECTIONS)
        try:
            origin = SnapshotOrigin.from_json(values)
        except (TypeError, ValueError) as error:
            raise DamagedFileError(
                f"[Snapshot.load] {os.fspath(path)} has an origin that this h2o-llama does not know: {error}"
            ) from error
        if len(tokens) % 4 or len(logits) not in (0, 4 * origin.n_vocab):
            raise _snapshot_file.damaged(path, "it has an impossible number of tokens or logits")
        return cls(
            origin,
            np.frombuffer(tokens, dtype="<i4").astype(np.int32),
            np.frombuffer(logits, dtype="<f4").astype(np.float32) if logits else None,
            state,
        )


def take_snapshot(context: _core.Context, origin: SnapshotOrigin, logits: NDArray[np.float32] | None) -> Snapshot:
    """The context's sequence, with the last token's logits."""
    state = context.get_state()
    return Snapshot(origin, context.tokens, None if logits is None else logits.copy(), state)


def restore_snapshot(
    owner: str, context: _core.Context, snapshot: Snapshot, origin: SnapshotOrigin, n_ctx: int
) -> None:
    """Put it in the place of the context's sequence, which stays as it was if this raises. See `Llama.restore`."""
    if not isinstance(snapshot, Snapshot):
        raise check.bad_argument(owner, "snapshot", "a Snapshot", snapshot)
    differences = snapshot.origin.differences(origin)
    if differences:
        raise ValueError(
            f"[{owner}] this snapshot does not fit: {'; '.join(differences)}. Open the model as it was opened for the "
            "snapshot, or read the text again"
        )
    if snapshot.n_tokens > n_ctx:
        raise ValueError(
            f"[{owner}] this snapshot has {snapshot.n_tokens} tokens, which do not fit into n_ctx={n_ctx}: use a "
            "larger n_ctx"
        )
    tokens = text_ids(owner, snapshot.tokens, origin.n_vocab)
    if snapshot.logits is not None:
        check.float_array(owner, "snapshot.logits", snapshot.logits, [origin.n_vocab])
    context.restore(snapshot.state, tokens)
