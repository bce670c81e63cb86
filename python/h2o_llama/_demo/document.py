"""The demo's document: source text of the interpreter's own standard library, with a few keys hidden in it."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
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


# Their sources are longer than a piece in every supported Python.
_MODULES = """
argparse difflib doctest inspect mailbox optparse pickle pydoc shutil smtplib socket statistics subprocess tarfile
threading traceback
"""


def default_text() -> bytes:
    """The beginnings of some modules of this Python's standard library, 512 KiB of source, for measurements.

    Raises OSError if this interpreter carries no source files.
    """
    return b"".join(standard_library_text(32_768, module) for module in _MODULES.split())


def build_document(n_bytes: int, depths: Sequence[float] = ()) -> tuple[bytes, list[Needle]]:
    """A text of exactly `n_bytes` that ends with a newline, with one key hidden at each depth (0 to 1, ascending).

    A definition begins at the next line start after its depth. Raises ValueError if the text is too short for that.
    """
    needles = [Needle(key, value, 0) for key, value in SECRETS[: len(depths)]]
    filler = standard_library_text(n_bytes - sum(len(needle.definition) for needle in needles))[:-1] + b"\n"
    text, done = b"", 0
    for i, depth in enumerate(depths):
        place = filler.index(b"\n", max(done, int(depth * len(filler)) - 1)) + 1
        text += filler[done:place]
        needles[i] = replace(needles[i], start=len(text))
        text += needles[i].definition
        done = place
    return text + filler[done:], needles
