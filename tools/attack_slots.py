"""Damaged slot files: python tools/attack_slots.py [--files N] [--seed S]

Slot 1 of a server with the demo model restores files that are cut off or changed. Each is refused with an error that
says why, or can be gone on with; the server never ends, and the other slot has its text. Only on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from h2o_llama.demo.document import standard_library_text  # noqa: E402
from servers import Server, serving  # noqa: E402

SIZES = ["--chunk", "32", "--n-ctx", "256", "--parallel", "2", "--threads", "1"]
VARIANTS = {"keep": [], "evict": ["--evict"], "cold": ["--evict", "--cold-store", "memory"]}
TEXT = standard_library_text(1000).decode()
MARKER, OTHER = TEXT[:150], TEXT[300:480]
NUMBERS = (0, 1, 2, 31, 32, 33, 150, 151, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 0x7FC00000)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in VARIANTS:
        with tempfile.TemporaryDirectory() as folder:
            attack(name, -(-arguments.files // len(VARIANTS)), arguments.seed, Path(folder))


def damage(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    if rng.random() < 0.2:
        del out[rng.randrange(len(out)) :]
    for _ in range(rng.randint(1, 3) if out else 0):
        at = rng.randrange(min(len(out), rng.choice([12, 1000, 6000, len(out)])))
        if rng.random() < 0.3:
            at = len(out) - 1 - at  # its checkpoints
        if rng.random() < 0.5:
            out[at] ^= 1 << rng.randrange(8)
        else:
            at -= at % 4
            out[at : at + 4] = rng.choice(NUMBERS).to_bytes(4, "little")
    return bytes(out)


def held(server: Server) -> dict[str, Any]:
    """The text of slot 1. A restored one does not keep which extra keys its tiles chose."""
    return {**server.get("/slots/1/h2o?layer=1"), "extra_keys": None}


def attack(name: str, n_files: int, seed: int, folder: Path) -> None:
    """Let slot 1 restore damaged files, with another text in slot 0."""
    (folder / "slots").mkdir()
    good, bad = folder / "slots" / "good", folder / "slots" / "bad"
    n_taken, what = 0, ""
    with serving(folder / "log", "demo", *SIZES, *VARIANTS[name], "--slot-save-path", f"{good.parent}/") as server:
        try:
            answers = [server.complete(text, 8, cache_prompt=False)["content"] for text in (OTHER, MARKER + "and")]
            server.complete(OTHER, 0, id_slot=0)
            server.complete(MARKER, 16, id_slot=1, cache_prompt=False)  # closes the chunk of its checkpoint
            server.post("/slots/1?action=save", {"filename": "good"})
            data, other = good.read_bytes(), server.get("/slots/0/h2o?layer=1")
            for i in range(n_files):
                what = f"file {i} of seed {seed}"
                rng = random.Random(f"{seed}/{i}")
                bad.write_bytes(damage(data, rng))
                before = held(server)
                status, answer = server.request("POST", "/slots/1?action=restore", {"filename": "bad"})
                assert status == 200 or (status == 400 and answer["error"]["message"]), (status, answer)
                n_taken += status == 200
                if status == 400:
                    assert held(server) == before, "what the slot held is lost"
                if status == 200:  # whatever it holds
                    server.get("/slots/1/h2o?layer=1")
                    body = {"prompt": MARKER + rng.choice(["and", ""]), "n_predict": 2, "id_slot": 1}
                    status, answer = server.request("POST", "/completion", body)
                    assert status == 200, (status, answer)
                if i % 50 == 49 or i == n_files - 1:
                    assert server.get("/slots/0/h2o?layer=1") == other, "another slot has changed"
                    found = server.complete(MARKER + "and", 8, id_slot=1, cache_prompt=False)["content"]
                    assert found == answers[1], "the slot answers otherwise"
            assert server.complete(OTHER, 8, id_slot=0, cache_prompt=False)["content"] == answers[0]
        except (OSError, AssertionError) as error:
            if what:
                shutil.copy(bad, "attack_slots.bad")
            log = (folder / "log").read_text(errors="replace")[-6000:]
            sys.exit(
                f"{log}\nattack_slots: {name}: {what}, kept as attack_slots.bad: {error!r}, {server.process.poll()}"
            )
    print(f"attack_slots: {name}: {n_files} files, {n_taken} can be gone on with, the others are refused", flush=True)


if __name__ == "__main__":
    main()
