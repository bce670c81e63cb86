"""Damaged snapshot files: python tools/fuzz_snapshots.py [--files N] [--seed S] [--jobs J]

Each file is a good one with something changed: its bytes; or its header, or its sections, with checksums
that are right. Each must be refused with a ValueError or an H2OError that leaves the sequence as it was, or be a
sequence that can be continued. N is 20,000 by default, which takes a minute; some millions are for a night.

The work is done in processes of its own. If one dies, the file that it died of is named by its number.
"""

from __future__ import annotations

import copy
import io
import json
import random
import struct
import tempfile
import zlib
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from h2o_llama import H2OConfig, H2OError, Llama, demo_model_path
from h2o_llama.sequence import _snapshot_file
from h2o_llama.sequence.snapshot import SECTIONS
from jobs import work_in_jobs

SMALL = H2OConfig(local_window=4, heavy_budget=6, sink_tokens=1, lookup_budget=12, chunk_size=16, research={"tile": 4})
CONFIGS = (
    None,
    SMALL,
    replace(SMALL, retrieval="index", dense_layers=1),
    replace(SMALL, scorer="sum", decode="memory"),
    replace(SMALL, schedule="two_phase", lookup_budget=0),
    replace(SMALL, evict=True, decode="memory", lookup_budget=0, dense_layers=1),
    replace(SMALL, evict=True, decode="memory", cold_store="memory"),
    H2OConfig(
        local_window=4,
        heavy_budget=24,
        sink_tokens=2,
        scorer="block_ema",
        evict=True,
        research={"block_tokens": 2, "shared_heads": True, "keep_ratio": 0.4},
    ),
)
TEXT = [97 + i % 7 for i in range(70)]
START = struct.Struct("<8sIII")
NUMBERS = (0, 1, 2, 15, 16, 17, 63, 64, 65, 70, 71, 72, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 0x7FC00000)
VALUES: tuple[Any, ...] = (None, True, -1, 0, 1, 2, 4, 2**31, 2**63, 2**70, 1e300, "", "f16", [], {}, [0] * 3)


class Case:
    """A `Llama` with a sequence, and the file of it."""

    def __init__(self, h2o: H2OConfig | None, path: Path) -> None:
        sizes = {"n_ctx": 256, "n_batch": 256, "n_threads": 1}
        self.llm = Llama(demo_model_path(), h2o=h2o, keep_history=h2o is not None, **sizes)  # type: ignore[arg-type]
        self.llm.eval(TEXT)
        self.llm.eval([3], decode=True)
        self.good = self.llm.snapshot()
        self.good.save(path)
        self.file = path.read_bytes()

    def load(self, path: Path) -> None:
        """If the file is refused, nothing has changed; if it is taken, all can be done with the sequence."""
        try:
            self.llm.load(path)
        except (ValueError, H2OError):
            if self.llm.snapshot().state != self.good.state or not (self.llm.logits == self.good.logits).all():
                raise AssertionError("a refused file has changed the sequence") from None
            return
        self._go_on()
        self.llm.restore(self.good)

    def _go_on(self) -> None:
        llm = self.llm
        if llm.h2o is not None:
            for layer in llm.kv.layers:
                llm.kv.scores(layer)
                llm.kv.memory_indices(layer)
        with suppress(H2OError):  # logits may be NaN, records may be gone
            list(islice(llm.generate([], seed=1, draft=4), 3))
        with suppress(H2OError):
            _ = llm.kv.history
        llm.eval(TEXT[:20])
        for n in (85, 64, 48, 16):
            with suppress(H2OError):
                llm.rewind(n)
                llm.eval(TEXT[:18])


def work(numbers: range, seed: int) -> None:
    """The files of these numbers, each printed before it is worked on."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        cases = [Case(h2o, path) for h2o in CONFIGS]
        for number in numbers:
            print(number, flush=True)
            rng = random.Random(f"{seed}/{number}")
            case, damage = rng.choice(cases), rng.choice([damaged_bytes, damaged_header, damaged_sections])
            path.write_bytes(damage(case.file, rng))
            case.load(path)


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(rng.choice([28, 1500, len(out)]))
        at = min(at, len(out) - 1)
        change = rng.randrange(5)
        if change == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            out[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS))
        elif change == 2:
            del out[at:]
        elif change == 3:
            del out[at : at + rng.randint(1, 9)]
        else:
            out[at:at] = rng.randbytes(rng.randint(1, 9))
        if not out:
            break
    return bytes(out)


def damaged_header(data: bytes, rng: random.Random) -> bytes:
    magic, version, n, _ = START.unpack_from(data)
    header = json.loads(data[START.size : START.size + n])
    place: Any = header
    while True:
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.1:
            break
        place = place[key]
    change = rng.randrange(3)
    if change == 0:
        del place[key]
    elif change == 1:
        place[key] = rng.choice(VALUES)
    elif isinstance(place[key], int):
        place[key] += rng.choice([-4, -1, 1, 4, 1000])
    else:
        place[key] = copy.deepcopy(header)
    packed = json.dumps(header).encode()
    if rng.random() < 0.1:
        packed = packed[: rng.randrange(len(packed))] + rng.randbytes(2)
    return START.pack(magic, version, len(packed), zlib.crc32(packed)) + packed + data[START.size + n :]


def damaged_sections(data: bytes, rng: random.Random) -> bytes:
    """Tokens, logits or state: what native code reads."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        origin, contents = _snapshot_file.read(file.name, SECTIONS)
    content = bytearray(contents.pop(which := rng.choice([0, 1, *[2] * 8])))
    for _ in range(rng.randint(1, 3)):
        # the front holds sizes, then come memory sets and lookups
        at = min(rng.randrange(rng.choice([400, 12_000, len(content)])), len(content) - 4)
        word = at - at % 4
        change = rng.randrange(6)
        if change == 0:
            content[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            struct.pack_into("<I", content, word, rng.choice(NUMBERS))
        elif change == 2:
            (number,) = struct.unpack_from("<I", content, word)
            struct.pack_into("<I", content, word, (number + rng.randint(-3, 3)) % 2**32)
        elif change == 3:
            other = rng.randrange(len(content) // 4) * 4
            content[word : word + 4] = content[other : other + 4]
        elif change == 4:
            content[at : at + 2] = rng.randbytes(2)
        elif rng.random() < 0.3:
            del content[max(word, 8) :]
    contents.insert(which, bytes(content))
    sections = {
        name: _snapshot_file.Section(content, width)
        for name, content, width in zip(SECTIONS, contents, (4, 4, 2), strict=True)
    }
    buffer = io.BytesIO()
    _snapshot_file.write_to(buffer, origin, sections)
    return buffer.getvalue()


if __name__ == "__main__":
    work_in_jobs("files", 20_000, work)
