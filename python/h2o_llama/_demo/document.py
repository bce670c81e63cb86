"""The demo's document: source text of the interpreter's own standard library, with a few keys hidden in it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import InspectLoader

MODULE = "argparse"  # more than 80,000 characters in every supported Python, and nobody has to download it

# (key, value) in the format the demo model was trained on: two digits, four digits. No value begins with the digit
# that the model guesses for its key when it cannot read the value, or a lucky guess would look like recall.
SECRETS = ((17, 4829), (42, 5308), (63, 1958), (28, 6142), (91, 3576))


@dataclass(frozen=True)
class Needle:
    """A hidden key: its definition line starts at byte `start`."""

    key: int
    value: int
    start: int

    @property
    def definition(self) -> bytes:
        """The line that hides the value."""
        return b"k%d=%d;\n" % (self.key, self.value)

    @property
    def question(self) -> bytes:
        """What to append to the document to ask for the value."""
        return b"k%d?" % self.key

    @property
    def answer(self) -> bytes:
        """What the model should say after the question."""
        return b"%d" % self.value

    @property
    def line_positions(self) -> range:
        """Byte positions of the definition without its newline."""
        return range(self.start, self.start + len(self.definition) - 1)


@dataclass(frozen=True)
class Document:
    """ASCII text that ends with a newline, and the needles in it, in order of position."""

    text: bytes
    needles: tuple[Needle, ...]


def standard_library_text(n_bytes: int, module: str = MODULE) -> bytes:
    """The first `n_bytes` of a module's source as ASCII, over again from its start if it is shorter.

    Raises OSError if this interpreter carries no source files.
    """
    spec = importlib.util.find_spec(module)
    source = spec.loader.get_source(module) if spec and isinstance(spec.loader, InspectLoader) else None
    if not source:
        raise OSError(f"this Python has no source of its module {module!r}, which the demo's document is made of")
    text = source.encode("ascii", "replace")
    return (text * (n_bytes // len(text) + 1))[:n_bytes]


def build_document(n_bytes: int, depths: Sequence[float] = (), module: str = MODULE) -> Document:
    """A document of exactly `n_bytes`, with one key hidden at each depth (0 = start, 1 = end, ascending).

    A definition begins at the next line start after its depth. Raises ValueError if there are more depths than secrets
    or the document is too short for them.
    """
    if len(depths) > len(SECRETS):
        raise ValueError(f"at most {len(SECRETS)} keys can be hidden, not {len(depths)}")
    secrets = [Needle(key, value, 0) for key, value in SECRETS[: len(depths)]]
    filler = standard_library_text(n_bytes - sum(len(s.definition) for s in secrets), module)[:-1] + b"\n"

    text = b""
    done = 0
    needles = []
    for depth, secret in zip(depths, secrets, strict=True):
        place = filler.find(b"\n", max(done, int(depth * len(filler)) - 1)) + 1
        if place == 0:
            raise ValueError(f"a document of {n_bytes} bytes is too short to hide a key at depth {depth}")
        text += filler[done:place]
        needles.append(Needle(secret.key, secret.value, len(text)))
        text += secret.definition
        done = place
    return Document(text + filler[done:], tuple(needles))
