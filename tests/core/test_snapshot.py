"""Snapshots: a restored sequence continues as if it had just been evaluated. A damaged one changes nothing."""

import dataclasses
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from gguf import GGUFReader, GGUFWriter

import h2o_llama
from adapters import random_adapter
from cases import SMALL, Case
from compare import assert_all_equal, case
from h2o_llama import H2OConfig, H2OError, Llama, Snapshot
from h2o_llama.models._files import model_fingerprint
from h2o_llama.sequence import _snapshot_file
from h2o_llama.sequence.snapshot import SECTIONS
from inputs import ModelByName, random_tokens, slowly
from llamas import arrays, open_llama, restore, state_of, view
from models import finish

S = 16
CONFIG = SMALL.but(kv_type="f16")


def seen(llm: Llama) -> list[Any]:
    return [llm.tokens, *view(llm)]


def evaluate(llm: Llama, n: int) -> None:
    """A prompt of n tokens with a dense tail, and some generated tokens."""
    llm.eval([*random_tokens(20) * 4, *random_tokens(40, seed=1)][:n], dense_tail=3)
    llm.eval([1, 2, 3], decode=True)


# --- restoring


def test_history_needs_a_recorded_snapshot(tiny_model: Path) -> None:
    """An unrecorded history cannot be restored; a recorded one is dropped where nothing is recorded."""
    with open_llama(tiny_model, CONFIG, keep_history=False) as plain, open_llama(tiny_model, CONFIG) as recording:
        for llm in (plain, recording):
            llm.eval(random_tokens(5 * S))
        snapshots = plain.snapshot(), recording.snapshot()
        recording.restore(snapshots[0])
        with pytest.raises(H2OError, match="made without keep_history=True"):
            _ = recording.kv.history
        plain.restore(snapshots[1])
        assert plain.snapshot().state == snapshots[0].state


# --- what does not fit


def test_it_fits_only_where_it_came_from(tiny_model: Path, model_by_name: ModelByName) -> None:
    with open_llama(tiny_model, CONFIG) as llm:
        llm.eval(random_tokens(40))
        snapshot = llm.snapshot()
    others: list[tuple[Case | None, dict[str, Any], str]] = [
        (CONFIG.but(heavy_budget=7), {}, "its heavy_budget is 6, not 7"),
        (CONFIG.but(chunk_size=32), {}, "its chunk_size is 16, not 32"),
        (CONFIG.but(scorer="distant"), {}, "its scorer is 'sum', not 'distant'"),
        (CONFIG.but(dense_layers=(0,)), {}, r"its dense_layers is \(\), not \(0,\)"),
        (CONFIG.but(kv_type="f32"), {}, "its type_k is 'f16', not 'f32'; its type_v is 'f16', not 'f32'"),
        (None, {"type_k": "f16", "type_v": "f16"}, "its h2o is H2OConfig.*, not None"),
        (CONFIG, {"n_ctx": 39}, "has 40 tokens, which do not fit into n_ctx=39"),
    ]
    for config, arguments, match in others:
        with open_llama(tiny_model, config, **arguments) as other:
            other.eval([1, 2, 3])
            with pytest.raises(ValueError, match=match):
                other.restore(snapshot)
            assert other.tokens.tolist() == [1, 2, 3]
    with open_llama(model_by_name("qwen3-mha-f32"), CONFIG) as other:
        with pytest.raises(ValueError, match="it is of another model"):
            other.restore(snapshot)
        with pytest.raises(ValueError, match="must be a Snapshot"):
            other.restore(b"h2o-snap")  # type: ignore[arg-type]


YARN = {"rope_scaling_type": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 48}


@pytest.mark.parametrize("what", ["adapters", "RoPE", "metadata"])
def test_what_changes_a_model_is_known(what: str, tiny_model: Path, tmp_path: Path) -> None:
    """Adapters by their content, not by their paths; no order counts. All but the first two are other models."""
    first, second = (random_adapter(tiny_model, seed=i).write(tmp_path / f"{i}.gguf") for i in range(2))
    copied = Path(shutil.copy(first, tmp_path / "copy.gguf"))
    base, length = {"qwen3.rope.freq_base": 500.0}, {"qwen3.context_length": 99}
    lora: list[Any] = [[(first, 0.5), second], [second, (copied, 0.5)]]
    lora += [None, second, [second, (first, 0.25)], [second, (second, 0.5)]]
    options, refusal = {
        "adapters": ([{"lora": x} for x in lora], "other adapters"),
        "RoPE": (
            [YARN, YARN | {"yarn_beta_fast": None}, {}, YARN | {"yarn_orig_ctx": 49}, YARN | {"rope_freq_base": 1e6}],
            "RoPE options",
        ),
        "metadata": ([{"kv_overrides": x} for x in (base | length, length | base, None, length)], "of another model"),
    }[what]
    for h2o in (H2OConfig(chunk_size=S), None):

        def open_(changes: dict[str, Any], h2o: H2OConfig | None = h2o) -> Llama:
            return Llama(tiny_model, n_ctx=64, n_threads=1, h2o=h2o, **changes)

        with open_(options[0]) as llm:
            llm.eval(random_tokens(40))
            llm.save(tmp_path / "snapshot")
            expected = llm.logits
        with open_(options[1]) as llm:
            llm.load(tmp_path / "snapshot")
            np.testing.assert_array_equal(llm.logits, expected)
        for other in options[2:]:
            with open_(other) as llm, pytest.raises(ValueError, match=refusal):
                llm.load(tmp_path / "snapshot")


# --- damage


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "is not a snapshot of h2o-llama: it is empty"),
    "text": (lambda data: b"What is this?", "is not a snapshot of h2o-llama: it begins with b'What is '"),
    "older": (lambda data: data[:8] + b"\1\0\0\0" + data[12:], "is of format version 1, .*: read the text again"),
    "newer": (lambda data: data[:8] + b"\3\0\0\0" + data[12:], "is of format version 3, .*: update h2o-llama"),
    "cut-in-the-header": (lambda data: data[:100], "ends after 100 bytes, in the middle"),
    "cut-at-the-end": (lambda data: data[:-1], "in the middle"),
    "longer": (lambda data: data + b"\0", "it continues after its end"),
    "huge-header": (
        lambda data: data[:12] + b"\xff" * 4 + data[16:],
        "a block of its header is said to have 4294967295",
    ),
    "bomb": (lambda data: with_header(data, ("sections", "state", "bytes"), 3 << 30), "bytes are said to become 3,2"),
    "bit-in-the-header": (lambda data: flipped(data, 200), "its header is damaged near byte"),
    "bit-at-the-end": (lambda data: flipped(data, len(data) - 1), "section 'state' is damaged near byte"),
}
VALUES: tuple[Any, ...] = (None, True, -1, 0, 1, 2**31, 10**400, 1e300, float("inf"), "", "f16", [], {}, [0] * 3)
"""For each place of a header, one after the other."""


def with_header(data: bytes, place: tuple[Any, ...], value: Any) -> bytes:
    """With another value in the header, and the right checksum."""
    header, rest = header_of(data)
    inner = header
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(json.dumps(header).encode())
    return data[:12] + struct.pack("<I", len(packed)) + packed + rest


def header_of(data: bytes) -> tuple[Any, bytes]:
    """The header, and the sections."""
    end = 16 + int.from_bytes(data[12:16], "little")
    return json.loads(zstandard.decompress(data[16:end])), data[end:]


def places_of(value: Any) -> Iterator[tuple[Any, ...]]:
    """Of all values in a header, by their keys."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (key,)
        yield from ((key, *inner) for inner in places_of(value[key]))


def flipped(data: bytes, i: int) -> bytes:
    return data[:i] + bytes([data[i] ^ 16]) + data[i + 1 :]


@pytest.fixture(scope="module")
def saved(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("snapshots") / "good"
    with open_llama(tiny_model, CONFIG) as llm:
        llm.eval(random_tokens(70))
        llm.save(path)
    return path


def test_a_damaged_file_is_named_and_changes_nothing(saved: Path, tiny_model: Path, tmp_path: Path) -> None:
    with open_llama(tiny_model, CONFIG) as llm:
        llm.eval(random_tokens(40))
        before = [llm.logits, *seen(llm)]
        for name, (change, match) in DAMAGE.items():
            with case(name=name):
                (tmp_path / "bad").write_bytes(change(saved.read_bytes()))
                with pytest.raises(ValueError, match=match) as error:
                    llm.load(tmp_path / "bad")
                assert f"[Snapshot.load] {tmp_path / 'bad'}" in str(error.value)
        assert_all_equal([llm.logits, *seen(llm)], before)


@pytest.mark.parametrize("name", ["cold_store", *slowly("sum", "dense")])
def test_a_header_that_lies_is_refused_or_can_be_continued(name: str, tiny_model: Path, tmp_path: Path) -> None:
    """Damaged states, which native code reads: tests/core/c_api/test-h2o.cpp, under sanitizers."""
    path, n_refused = tmp_path / "file", 0
    with open_llama(tiny_model, SMALL.one_of_each[name], n_ctx=512) as llm:
        llm.eval(random_tokens(70))
        good = llm.snapshot()
        good.save(path)
        data = path.read_bytes()
        for place in places_of(header_of(data)[0]):
            for value in VALUES:
                with case(place=place, value=value):
                    path.write_bytes(with_header(data, place, value))
                    try:
                        llm.load(path)
                    except (ValueError, H2OError):
                        n_refused += 1
                        continue
                    llm.eval([1, 2, 3])
                    llm.restore(good)
        assert llm.snapshot().state == good.state
    assert n_refused > 100


def test_what_a_snapshot_holds_is_checked(saved: Path, tiny_model: Path) -> None:
    good = Snapshot.load(saved)
    assert good.logits is not None
    with open_llama(tiny_model, CONFIG) as llm:
        for changes, match in (
            ({"tokens": good.tokens + 10**6}, "must be a token id"),
            ({"logits": good.logits[1:]}, "snapshot.logits must be"),
        ):
            with pytest.raises(ValueError, match=match):
                llm.restore(dataclasses.replace(good, **changes))  # type: ignore[arg-type]
        llm.restore(replace(good, logits=np.full_like(good.logits, np.nan)))
        with pytest.raises(H2OError, match="are not finite"):
            next(llm.generate([], temperature=1))


def test_paths(saved: Path, tmp_path: Path) -> None:
    good = Snapshot.load(saved)
    with pytest.raises(FileNotFoundError, match=r"\[Snapshot.load\] there is no file"):
        Snapshot.load(tmp_path / "none")
    for use in (lambda: Snapshot.load(tmp_path), lambda: good.save(tmp_path), lambda: good.save("/dev/null")):
        with pytest.raises(ValueError, match="is a folder or a special file"):
            use()
    with pytest.raises(FileNotFoundError, match="cannot be written"):
        good.save(tmp_path / "no" / "folder")


def test_a_model_in_parts_is_told_by_all_of_them(tmp_path: Path) -> None:
    """And by anything in its metadata."""
    parts = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        part.write_bytes(bytes(100_000))
    fingerprint = model_fingerprint(parts[0])
    parts[1].write_bytes(bytes(99_999) + b"\1")
    assert model_fingerprint(parts[0]) != fingerprint
    parts[1].unlink()
    alone = model_fingerprint(parts[0])
    assert alone != fingerprint
    parts[0].write_bytes(bytes(50_000) + b"\1" + bytes(49_999))
    assert model_fingerprint(parts[0]) != alone


def test_a_model_is_told_by_the_ends_of_its_tensors(tmp_path: Path) -> None:
    """Also of small ones between the samples, which are a thirtieth of this file."""
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_token_list(["x" * 1_000_000] * 3)
    for i in range(40):
        writer.add_tensor(f"{i}.weight", np.zeros(100_000, dtype=np.float32))
        writer.add_tensor(f"{i}.bias", np.zeros(33, dtype=np.float32))
    finish(writer)
    tensors = GGUFReader(path).tensors
    assert h2o_llama._core.tensor_starts(bytes(path)) == [tensor.data_offset for tensor in tensors]
    known = model_fingerprint(path)
    places = {tensor.data_offset + at for tensor in tensors[::7] for at in (0, int(tensor.n_bytes) - 1)}
    with path.open("r+b") as file:
        for place in (5000, 2_000_000, *places):  # in the vocabulary, and in the weights
            file.seek(place)
            before = file.read(1)
            for content in (bytes([before[0] ^ 1]), before):
                file.seek(place)
                file.write(content)
                file.flush()
                assert (model_fingerprint(path) == known) == (content == before), place


def test_a_damaged_head_has_a_fingerprint(tiny_model: Path, tmp_path: Path) -> None:
    """Other code reports the damage."""
    whole, path = tiny_model.read_bytes(), tmp_path / "damaged.gguf"
    for n in (0, 3, 4, 8, 20, 30, 100, 1000, 3000):
        for content in (whole[:n], whole[:n] + b"\xff" * 40, whole[:n] + b"\xff" * 9 + whole[n + 9 :]):
            path.write_bytes(content)
            assert len(model_fingerprint(path)) == 64
    array_of_strings = struct.pack("<4sIQQQIIQ", b"GGUF", 3, 0, 1, 0, 9, 8, 1 << 24)  # and nothing in it
    path.write_bytes(array_of_strings)
    assert h2o_llama._core.tensor_starts(bytes(path)) == []


def test_a_file_does_not_say_where_to_write(tiny_model: Path, tmp_path: Path) -> None:
    """It does not tell its receiver where a cold store was either."""
    config = CONFIG.but(decode="memory", evict=True, lookup_budget=8, tile=4, cold_store=str(tmp_path))
    with open_llama(tiny_model, config, library=tmp_path / "library") as llm:
        evaluate(llm, 120)
        llm.save(tmp_path / "saved")
        llm.eval(random_tokens(300))
        origin = llm.snapshot().origin
        assert llm._state.engine.library is not None
        llm._state.engine.library.flush()
    assert origin.h2o is not None
    assert str(origin.h2o.cold_store) == str(tmp_path)
    for path in (tmp_path / "saved", *(path for path in (tmp_path / "library").rglob("*") if path.is_file())):
        assert os.fsencode(tmp_path) not in path.read_bytes()
    values, sections = _snapshot_file.read(tmp_path / "saved", ("tokens", "logits", "state"))
    values["h2o"]["cold_store"] = "/somebody/elses/folder"
    parts = {name: _snapshot_file.Section(part, 1) for name, part in zip(SECTIONS, sections, strict=True)}
    _snapshot_file.write(tmp_path / "forged", values, parts)
    for name in ("saved", "forged"):
        snapshot = Snapshot.load(tmp_path / name)
        assert snapshot.origin.h2o is not None
        assert snapshot.origin.h2o.cold_store == "memory"
        with open_llama(tiny_model, config) as llm:
            llm.restore(snapshot)


# --- states of llama.cpp's programs


@pytest.mark.parametrize("model", ["qwen3-gqa4-f32", "gemma3-windows-f32", "lfm2-conv-f32"])
def test_a_bad_state_is_refused(model: str, model_by_name: ModelByName) -> None:
    """With the reason; the context can be used. All but the K and V in it is checked before anything changes."""
    with open_llama(model_by_name(model), SMALL) as llm:
        llm.eval(random_tokens(40))
        state = state_of(llm)
        before, n_side = arrays(llm), llm.kv.stats.side_bytes
        own = state.index(b"h2o\0")  # after llama.cpp's own header
        header = own + 4 * (4 + int.from_bytes(state[own + 12 : own + 16], "little"))  # the configuration is as long
        for bytes_, match in (
            (state[: header + 40], "refuses the state"),
            (_with_int(state, own + 4, 99), "of version 99, expected 19"),
            (_with_int(state, own + 8, 99), "other H2O parameters"),
            (_with_int(state, header, 2**31), "damaged"),
            (_with_int(state, header + 12, 0), "damaged"),  # without the scores that heavy hitters need
            (_with_int(state, header + 20, 1), "damaged"),  # a memory set that was never built
            (_with_int(state, header + 24, 10**6), "damaged"),
            (_with_int(state, header + 24 + 4 * (SMALL.h2o.memory_size - 1), 32), "damaged"),  # of the open chunk
        ):
            with pytest.raises(H2OError, match=match):
                restore(llm, bytes_)
            assert llm.n_tokens == 40
            assert_all_equal(arrays(llm), before)
        for position in range(40, len(state), len(state) // 60):
            try:
                restore(llm, flipped(state, position))
            except H2OError as error:
                if "damaged" in str(error):
                    assert_all_equal([*arrays(llm), llm.kv.stats.side_bytes], [*before, n_side])
            restore(llm, state)
        llm.eval(random_tokens(S))
    for other in (SMALL.but(scorer="distant"), SMALL.but(lookup_budget=7), SMALL.but(evict=True)):
        with open_llama(model_by_name(model), other) as llm, pytest.raises(H2OError, match="refuses the state"):
            restore(llm, state)


def _with_int(state: bytes, offset: int, value: int) -> bytes:
    return state[:offset] + value.to_bytes(4, "little") + state[offset + 4 :]
