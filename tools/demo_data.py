"""Training text for the demo model: a corpus of this machine's files, with recall lines and copied spans mixed in.

The recall format, byte for byte (a key is two digits 10-99, a value is four digits 1000-9999):

    definition, on a line of its own      k17=4829;\\n
    question, at the start of a line      k17?
    answer, right after the question      4829;\\n
"""

from __future__ import annotations

import gzip
import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VOCAB_SIZE = 260
PAD, BOS, EOS, UNK = 256, 257, 258, 259
SPECIAL_TOKENS = {PAD: "<pad>", BOS: "<bos>", EOS: "<eos>", UNK: "<unk>"}

KEYS = np.arange(10, 100)
VALUE_RANGE = (1000, 10000)
ANSWER_DIGITS = 4

DOC_ROOTS = (Path("/usr/share/doc"), Path("/usr/share/common-licenses"))
MAX_FILE_BYTES = 400_000
MIN_FILE_BYTES = 400
HELD_OUT_ONE_IN = 50


def definition(key: int, value: int) -> bytes:
    """The line that hides a value in a document."""
    return b"k%d=%d;\n" % (key, value)


def question(key: int) -> bytes:
    """The end of a prompt that asks for a value; what comes before it must end with a newline."""
    return b"k%d?" % key


def answer(value: int) -> bytes:
    """What the model must say after the question."""
    return b"%d;\n" % value


@dataclass(frozen=True)
class Corpus:
    """Distinct text files, and those held out for evaluation."""

    train: list[bytes]
    held_out: list[bytes]


@dataclass(frozen=True)
class Sample:
    """One context: n + 1 tokens, positions and loss weights of its n predictions, and which of them are answers."""

    tokens: np.ndarray
    positions: np.ndarray
    weights: np.ndarray
    is_answer: np.ndarray


def _read_text(path: Path) -> bytes | None:
    """The file's bytes when it is UTF-8 text of a useful size, with Unix line ends."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        raw.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError):
        return None
    if len(raw) < MIN_FILE_BYTES or b"\0" in raw:
        return None
    return raw.replace(b"\r\n", b"\n")[:MAX_FILE_BYTES]


def _source_files() -> list[Path]:
    """The standard library's modules and tests, without installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    return [p for p in root.rglob("*.py") if "site-packages" not in p.parts]


def _documentation_files() -> list[Path]:
    """Plain-text documentation of the system."""
    suffixes = {".txt", ".md", ".rst", ".gz", "", ".html"}
    return [p for root in DOC_ROOTS if root.exists() for p in root.rglob("*") if p.is_file() and p.suffix in suffixes]


def load_corpus(max_documentation_bytes: int = 25_000_000) -> Corpus:
    """All files in a fixed order without duplicates; documentation is cut off at a size."""
    train: list[bytes] = []
    held_out: list[bytes] = []
    seen: set[str] = set()
    documentation = 0
    sources = [(p, False) for p in sorted(_source_files())]
    documents = [(p, True) for p in sorted(_documentation_files())]
    for path, is_documentation in sources + documents:
        text = _read_text(path)
        if text is None or (is_documentation and documentation > max_documentation_bytes):
            continue
        digest = hashlib.sha256(text).hexdigest()
        if digest in seen:
            continue
        seen.add(digest)
        documentation += len(text) if is_documentation else 0
        (held_out if int(digest[:8], 16) % HELD_OUT_ONE_IN == 0 else train).append(text)
    return Corpus(train, held_out)


class TextSource:
    """Draws runs of text from a list of files, each file as often as it is long."""

    def __init__(self, files: list[bytes]) -> None:
        self.files = files
        self.ends = np.cumsum([len(f) for f in files])

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """n tokens from a random line on; files that end are followed by EOS and another file."""
        pieces: list[np.ndarray] = []
        missing = n
        while missing > 0:
            position = int(rng.integers(self.ends[-1]))
            index = int(np.searchsorted(self.ends, position, side="right"))
            text = self.files[index]
            start = text.rfind(b"\n", 0, position - int(self.ends[index]) + len(text)) + 1
            piece = np.frombuffer(text, np.uint8, offset=start).astype(np.int64)
            piece = np.append(piece, EOS)[:missing]
            pieces.append(piece)
            missing -= len(piece)
        return np.concatenate(pieces)


@dataclass(frozen=True)
class _Insertion:
    """Tokens to put into the filler at a line start, with their loss weights."""

    place: int
    order: int
    tokens: np.ndarray
    weights: np.ndarray
    is_answer: np.ndarray


def _insertion(place: int, order: int, text: bytes, first_answer: int, answer_weight: float) -> _Insertion:
    """A definition (no answer, no loss) or a question whose answer starts at `first_answer`."""
    tokens = np.frombuffer(text, np.uint8).astype(np.int64)
    is_answer = np.zeros(len(tokens), bool)
    is_answer[first_answer : first_answer + ANSWER_DIGITS] = True
    weights = is_answer * answer_weight
    weights[first_answer + ANSWER_DIGITS :] = 1.0
    return _Insertion(place, order, tokens, weights, is_answer)


def _recall_insertions(n_filler: int, n_keys: int, answer_weight: float, rng: np.random.Generator) -> list[_Insertion]:
    """Definitions and one question each, at distances that are uniform over the context."""
    insertions = []
    for i, key in enumerate(rng.choice(KEYS, n_keys, replace=False)):
        value = int(rng.integers(*VALUE_RANGE))
        distance = int(rng.integers(n_filler))
        start = int(rng.integers(n_filler - distance))
        define, ask = definition(int(key), value), question(int(key))
        insertions.append(_insertion(start, 2 * i, define, len(define), 0.0))
        insertions.append(_insertion(start + distance, 2 * i + 1, ask + answer(value), len(ask), answer_weight))
    return insertions


def _copy_insertions(filler: np.ndarray, n_copies: int, rng: np.random.Generator) -> list[_Insertion]:
    """Spans of the filler, repeated later at a random distance."""
    insertions = []
    for i in range(n_copies):
        length = int(rng.integers(24, 97))
        start = int(rng.integers(len(filler) - length - 1))
        place = int(rng.integers(start + length, len(filler)))
        span = np.append(filler[start : start + length], ord("\n"))
        weights = np.ones(len(span))
        weights[:6] = 0.0
        insertions.append(_Insertion(place, -1 - i, span, weights, np.zeros(len(span), bool)))
    return insertions


def _insert(filler: np.ndarray, insertions: list[_Insertion], n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The filler with every insertion moved to the next line start, cut to n tokens."""
    line_starts = np.flatnonzero(filler == ord("\n")) + 1
    tokens, weights, is_answer = [], [], []
    done = 0
    for item in sorted(insertions, key=lambda x: (x.place, x.order)):
        at = np.searchsorted(line_starts, item.place)
        if at == len(line_starts):
            break
        place = int(line_starts[at])
        tokens += [filler[done:place], item.tokens]
        weights += [np.ones(place - done), item.weights]
        is_answer += [np.zeros(place - done, bool), item.is_answer]
        done = place
    rest = filler[done:]
    tokens.append(rest)
    weights.append(np.ones(len(rest)))
    is_answer.append(np.zeros(len(rest), bool))
    return np.concatenate(tokens)[:n], np.concatenate(weights)[:n], np.concatenate(is_answer)[:n]


def _positions(n: int, max_span: int, rng: np.random.Generator) -> np.ndarray:
    """0..n-1, or the same with a few jumps, so that short contexts also train long distances."""
    positions = np.arange(n)
    if n >= max_span or rng.random() < 0.5:
        return positions
    extra = int(rng.integers(max_span - n))
    jumps = int(rng.integers(1, 5))
    cuts = np.sort(rng.integers(0, extra + 1, jumps - 1))
    sizes = np.diff(np.concatenate([[0], cuts, [extra]]))
    for place, size in zip(rng.integers(1, n, jumps), sizes, strict=True):
        positions[place:] += size
    return positions


def make_sample(
    source: TextSource, n: int, rng: np.random.Generator, answer_weight: float = 5.0, max_span: int = 8192
) -> Sample:
    """One training context of n predictions: three in four with recall lines, one in two with copied spans."""
    filler = source.draw(n + 1, rng)
    insertions: list[_Insertion] = []
    if rng.random() < 0.5:
        insertions += _copy_insertions(filler, max(1, n // 1024), rng)
    if rng.random() < 0.75:
        most = min(len(KEYS) - 5, max(2, n // 40))
        n_keys = int(rng.integers(1, most + 1)) if rng.random() < 0.3 else most
        n_filler = n + 1 - sum(len(i.tokens) for i in insertions) - 21 * n_keys
        insertions += _recall_insertions(max(1, n_filler), n_keys, answer_weight, rng)
    tokens, weights, is_answer = _insert(filler, insertions, n + 1)
    return Sample(tokens, _positions(n, max_span, rng), weights[1:].astype(np.float32), is_answer[1:])
