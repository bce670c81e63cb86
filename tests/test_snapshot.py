"""Snapshots: a restored sequence continues as if it had just been evaluated. A damaged one changes nothing."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

import h2o_llama
from adapters import random_adapter
from cases import SMALL, Case
from compare import assert_all_equal, case
from h2o_llama import H2OConfig, H2OError, Llama, Snapshot
from h2o_llama.models._files import model_fingerprint
from h2o_llama.sequence import _snapshot_file
from h2o_llama.sequence.snapshot import SECTIONS
from inputs import ModelByName, random_tokens
from llamas import arrays, open_llama, restore, state_of, view

S = 16
CONFIG = SMALL.but(kv_type="f16")


def seen(llm: Llama) -> list[Any]:
    return [llm.tokens, *view(llm)]


def what_follows(llm: Llama) -> list[Any]:
    """Generation from the last logits, with drafts if the model can have them; a prompt over the ends of chunks."""
    draft = 0 if llm.model._handle.is_recurrent else 8
    drawn = list(islice(llm.generate([], temperature=1, seed=5, draft=draft), 12))
    llm.eval(random_tokens(40, seed=2), logits="all")
    return [drawn, llm.logits, *seen(llm)]


def evaluate(llm: Llama, n: int) -> None:
    """A prompt of n tokens with a dense tail, and some generated tokens."""
    llm.eval([*random_tokens(20) * 4, *random_tokens(40, seed=1)][:n], dense_tail=3)
    llm.eval([1, 2, 3], decode=True)


# --- restoring


COUNTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

static size_t n_bytes;

void ggml_backend_tensor_get(const void * tensor, void * data, size_t offset, size_t size) {
    void (*get)(const void *, void *, size_t, size_t) = dlsym(RTLD_NEXT, "ggml_backend_tensor_get");
    n_bytes += size;
    get(tensor, data, offset, size);
}

size_t bytes_read(void) { return n_bytes; }
"""
COUNTED = """
import ctypes, sys
from h2o_llama import H2OConfig, Llama
read = ctypes.CDLL(None).bytes_read
with Llama(sys.argv[1], n_ctx=256, h2o=H2OConfig(chunk_size=16, evict=True)) as llm:
    llm.eval(list(range(3, 93)))
    before = read()
    llm._state.context.state_rows()
    counted = read()
    print(counted - before, len(llm.snapshot().state), read() - counted)
"""


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs a C compiler, on Linux")
@pytest.mark.parametrize("model", ["qwen3-gqa4-f32", "gemma3-windows-f32", "lfm2-conv-f32"])
def test_a_state_is_read_off_its_device_once(model: str, model_by_name: ModelByName, tmp_path: Path) -> None:
    """Not also to count its bytes, or to find which of them are rows."""
    library = tmp_path / "counter.so"
    (tmp_path / "counter.c").write_text(COUNTER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "counter.c", "-ldl"], check=True)
    base = next((Path(h2o_llama._core.__file__).parent / "lib").glob("libh2o-ggml-base.*"))
    result = subprocess.run(
        [sys.executable, "-c", COUNTED, model_by_name(model)],
        env={**os.environ, "LD_PRELOAD": f"{library} {base}"},
        capture_output=True,
        text=True,
        check=True,
    )
    n_counted, n_state, n_read = map(int, result.stdout.split())
    assert n_counted == 0
    assert 0 < n_read <= n_state


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


def test_dense_attention_keeps_v_in_two_ways(tiny_model: Path) -> None:
    with open_llama(tiny_model, None) as off, open_llama(tiny_model, None, flash_attn="on") as on:
        off.eval([1, 2, 3])
        with pytest.raises(ValueError, match="its flash_attn is 'off', not 'auto'"):
            on.restore(off.snapshot())


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


# Fields of the header, with the right checksum: tests/test_snapshot_fuzz.py
DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "is not a snapshot of h2o-llama: it is empty"),
    "text": (lambda data: b"What is this?", "is not a snapshot of h2o-llama: it begins with b'What is '"),
    "magic-alone": (lambda data: data[:8], "is damaged: it ends after 8 bytes"),
    "newer": (lambda data: data[:8] + b"\2\0\0\0" + data[12:], "is of format version 2, .*: update h2o-llama"),
    "version-0": (lambda data: data[:8] + b"\0\0\0\0" + data[12:], "its version is 0"),
    "cut-in-the-header": (lambda data: data[:100], "ends after 100 bytes, in the middle"),
    "cut-in-the-tokens": (lambda data: data[:-5000], "in the middle"),
    "cut-at-the-end": (lambda data: data[:-1], "in the middle"),
    "longer": (lambda data: data + b"\0", "it continues after its end"),
    "huge-header": (lambda data: data[:12] + b"\xff" * 4 + data[16:], "its header is said to have 4294967295"),
    "bomb": (lambda data: claiming(data, 3 << 30), "bytes are said to become 3,2"),
    "bit-in-the-header": (lambda data: flipped(data, 200), "the checksum of its header is wrong"),
    "bit-at-the-end": (lambda data: flipped(data, len(data) - 1), "the checksum of section 'state' is wrong"),
}


def claiming(data: bytes, n_bytes: int) -> bytes:
    """With a header that says that the state has n_bytes."""
    n = int.from_bytes(data[12:16], "little")
    header = re.sub(rb'("state": {"bytes": )\d+', rb"\g<1>%d" % n_bytes, data[20 : 20 + n])
    return data[:12] + struct.pack("<II", len(header), zlib.crc32(header)) + header + data[20 + n :]


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
    for name in DAMAGE:
        with case(name=name):
            change, match = DAMAGE[name]
            (tmp_path / "bad").write_bytes(change(saved.read_bytes()))
            with open_llama(tiny_model, CONFIG) as llm:
                llm.eval(random_tokens(40))
                before = [llm.logits, *seen(llm)]
                with pytest.raises(ValueError, match=match) as error:
                    llm.load(tmp_path / "bad")
                assert f"[Snapshot.load] {tmp_path / 'bad'}" in str(error.value)
                assert_all_equal([llm.logits, *seen(llm)], before)


def test_a_state_that_llama_cpp_refuses_changes_nothing(saved: Path, tiny_model: Path) -> None:
    """It is found out late, when a part of it has been taken over."""
    good = Snapshot.load(saved)
    k_and_v = good.state[:-3]
    own = good.state.index(b"h2o\0")
    bad = [k_and_v, good.state + b"\0", good.state[: own + 40], flipped(good.state, own + 5), b""]
    for config in (CONFIG, None):
        arguments = {} if config else {"type_k": "f16", "type_v": "f16"}
        with open_llama(tiny_model, config, **arguments) as llm, open_llama(tiny_model, config, **arguments) as twin:
            for x in (llm, twin):
                x.eval(random_tokens(40))
            origin = llm.snapshot().origin
            for state in bad:
                with pytest.raises(
                    H2OError,
                    match=r"\[Llama.restore\] (llama.cpp refuses the state|the state is damaged)",
                ):
                    llm.restore(replace(good, state=state, origin=origin))
            with pytest.raises(H2OError, match="is damaged: it is not of 71 tokens" if config else "refuses"):
                llm.restore(replace(good, tokens=np.append(good.tokens, 1), origin=origin))
            np.testing.assert_array_equal(llm.logits, twin.logits)
            assert_all_equal(what_follows(llm), what_follows(twin))


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
    with pytest.raises(ValueError, match="is a folder or a special file"):
        Snapshot.load(tmp_path)
    with pytest.raises(ValueError, match="is a folder or a special file"):
        good.save(tmp_path)
    with pytest.raises(ValueError, match="is a folder or a special file"):
        good.save("/dev/null")
    with pytest.raises(FileNotFoundError, match="cannot be written"):
        good.save(tmp_path / "no" / "folder")
    with pytest.raises(ValueError, match="path must be"):
        good.save(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="path must be"):
        Snapshot.load("a\0b")


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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
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


def test_a_bad_state_is_refused(tiny_model: Path, model_by_name: ModelByName) -> None:
    """With the reason; the context can be used. All but the K and V in it is checked before anything changes."""
    tokens = random_tokens(40)

    def usable(llm: h2o_llama.Llama) -> None:
        llm.reset()
        llm.eval(tokens)

    with open_llama(tiny_model, SMALL) as llm:
        llm.eval(tokens)
        state = state_of(llm)
        before = arrays(llm)
        own = state.index(b"h2o\0")  # after llama.cpp's own header
        header = own + 4 * (4 + int.from_bytes(state[own + 12 : own + 16], "little"))  # the configuration is as long
        bad: list[tuple[bytes, str]] = [
            (state[: own + 20], "refuses the state"),
            (state[: header + 40], "refuses the state"),
            (_with_int(state, own + 4, 99), "of version 99, expected 18"),
            (_with_int(state, own + 8, 99), "other H2O parameters"),
            (_with_int(state, header, 2**31), "damaged"),
            (_with_int(state, header + 4, 41), "damaged"),
            (_with_int(state, header + 12, 0), "damaged"),  # without the scores that heavy hitters need
            (_with_int(state, header + 16, 2), "damaged"),
            (_with_int(state, header + 20, 9), "damaged"),
            (_with_int(state, header + 20, 1), "damaged"),  # a memory set that was never built
            (_with_int(state, header + 24, 10**6), "damaged"),
            (_with_int(state, header + 24 + 4 * (SMALL.h2o.memory_size - 1), 32), "damaged"),  # of the open chunk
        ]
        for bytes_, match in bad:
            with pytest.raises(H2OError, match=match):
                restore(llm, bytes_)
            assert llm.n_tokens == 40
            assert_all_equal(arrays(llm), before)
        with pytest.raises(H2OError, match="refuses the state"):
            restore(llm, state[:-100])
        usable(llm)
    for config, path in (
        (SMALL.but(heavy_budget=7), tiny_model),
        (SMALL.but(scorer="distant"), tiny_model),
        (SMALL.but(lookup_budget=7), tiny_model),
        (SMALL.but(evict=True), tiny_model),
        (SMALL, model_by_name("qwen3-mha-f32")),
    ):
        with open_llama(path, config) as other:
            with pytest.raises(H2OError, match="refuses the state"):
                restore(other, state)
            usable(other)


def _with_int(state: bytes, offset: int, value: int) -> bytes:
    return state[:offset] + value.to_bytes(4, "little") + state[offset + 4 :]
