"""Damaged snapshot files: their bytes are changed, or their header, with a checksum that is right.

Each is refused and leaves the sequence as it was, or is a sequence that can be continued. Damaged states, which native
code reads: tests/c_api/test-h2o.cpp, under sanitizers.
"""

from __future__ import annotations

import copy
import json
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import SMALL, Case
from compare import case
from h2o_llama import H2OError
from inputs import LONGER, SEED
from llamas import open_llama

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 * max(1, LONGER))]

N_FILES = int(700 * LONGER)
CONFIGS = {name: SMALL.one_of_each[name] for name in ("sum", "cold_store", "dense")}
TEXT = [97 + i % 7 for i in range(70)]
START = struct.Struct("<8sIII")
NUMBERS = (0, 1, 2, 15, 16, 17, 63, 64, 65, 70, 71, 72, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 0x7FC00000)
VALUES: tuple[Any, ...] = (None, True, -1, 0, 1, 2, 4, 2**31, 2**63, 2**70, 1e300, "", "f16", [], {}, [0] * 3)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_damaged_file_is_refused_or_can_be_continued(config: Case | None, tiny_model: Path, tmp_path: Path) -> None:
    """The last file stays in the test's folder, for a crash ends the process."""
    path = tmp_path / "file"
    with open_llama(tiny_model, config, n_ctx=512) as llm:
        llm.eval(TEXT)
        llm.eval([3], decode=True)
        good = llm.snapshot()
        good.save(path)
        data = path.read_bytes()
        for number in range(N_FILES):
            rng = random.Random(f"{SEED}/{number}")
            damage = rng.choice([damaged_bytes, damaged_header])
            path.write_bytes(damage(data, rng))
            with case(number=number):
                try:
                    llm.load(path)
                except (ValueError, H2OError):
                    assert llm.snapshot().state == good.state
                    np.testing.assert_array_equal(llm.logits, good.logits[None])
                else:
                    llm.eval(TEXT[:20])
                    llm.restore(good)


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
