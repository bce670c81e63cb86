"""Model files with something wrong in each, and the error that each must give."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import models
from gguf_mutation import (
    ARRAY,
    FLOAT32,
    INT8,
    STRING,
    UINT8,
    UINT32,
    UINT64,
    GGUFFile,
    mutated,
    pack,
    pack_string,
    pack_strings,
)
from subprocess_cases import Case

N_TRUNCATIONS = 20
NOT_A_MODEL = "is not a valid GGUF model file"

Mutation = Callable[[GGUFFile], None]


def _header(**fields: int) -> Mutation:
    return lambda file: file.__dict__.update(fields)


def _set_u32(key: str, value: int) -> Mutation:
    return lambda file: file.set_u32(key, value)


def _set(key: str, kind: int, value: bytes) -> Mutation:
    return lambda file: file.set(key, kind, value)


def _tensor(which: str, **fields: object) -> Mutation:
    return lambda file: file.tensors[which.encode()].__dict__.update(fields)


def _magic(file: GGUFFile) -> None:
    file.magic = b"GGML"


def _empty_key(file: GGUFFile) -> None:
    file.set("", UINT32, pack("I", 1))


def _duplicate_tensor(file: GGUFFile) -> None:
    file.tensors[b"output.weight"].name = b"token_embd.weight"


def _duplicate_tokens(file: GGUFFile) -> None:
    file.set("tokenizer.ggml.tokens", ARRAY, pack_strings([b"a"] * models.N_VOCAB))


# file name -> mutation of a good model, exception, part of the message
MUTATIONS: dict[str, tuple[Mutation, str, str]] = {
    "wrong-magic": (_magic, "DamagedFileError", "invalid magic characters: 'GGML'"),
    "version-0": (_header(version=0), "DamagedFileError", "bad GGUF version"),
    "version-1": (_header(version=1), "DamagedFileError", "no longer supported"),
    "version-99": (_header(version=99), "DamagedFileError", "version 99"),
    "big-endian": (_header(version=0x03000000), "DamagedFileError", "endian"),
    "n-kv-2^63": (_header(n_kv=2**63), "DamagedFileError", NOT_A_MODEL),
    "n-kv-2^40": (_header(n_kv=2**40), "DamagedFileError", NOT_A_MODEL),
    "n-tensors-2^64-1": (_header(n_tensors=2**64 - 1), "DamagedFileError", NOT_A_MODEL),
    "n-tensors-2^50": (_header(n_tensors=2**50), "DamagedFileError", NOT_A_MODEL),
    "n-tensors-one-more": (_header(n_tensors=1000), "DamagedFileError", NOT_A_MODEL),
    "empty-key": (_empty_key, "DamagedFileError", "is empty"),
    "huge-string": (_set("general.name", STRING, pack("Q", 2**60)), "DamagedFileError", "string length"),
    "huge-array": (_set("x", ARRAY, pack("IQ", UINT64, 2**61 + 1)), "DamagedFileError", NOT_A_MODEL),
    "huge-string-array": (_set("x", ARRAY, pack("IQ", STRING, 2**61)), "DamagedFileError", NOT_A_MODEL),
    "nested-array": (_set("x", ARRAY, pack("IQIQ", ARRAY, 1, UINT8, 0)), "DamagedFileError", "invalid GGUF type"),
    "unknown-type": (_set("x", 99, b""), "DamagedFileError", "invalid GGUF type 99"),
    "unknown-element-type": (_set("x", ARRAY, pack("IQ", 99, 1)), "DamagedFileError", "invalid GGUF type 99"),
    "alignment-0": (_set_u32("general.alignment", 0), "DamagedFileError", "not a power of 2"),
    "alignment-24": (_set_u32("general.alignment", 24), "DamagedFileError", "not a power of 2"),
    "alignment-2^31": (_set_u32("general.alignment", 2**31), "DamagedFileError", NOT_A_MODEL),
    "no-architecture": (
        lambda file: file.remove("general.architecture"),
        "H2OError",
        "unknown model architecture: ''",
    ),
    "architecture-int": (_set_u32("general.architecture", 1), "H2OError", "general.architecture has wrong type u32"),
    "architecture-unknown": (
        _set("general.architecture", STRING, pack_string(b"perceptron")),
        "H2OError",
        "unknown model architecture: 'perceptron'",
    ),
    "tensor-name-too-long": (_tensor("output.weight", name=b"x" * 64), "DamagedFileError", "too long"),
    "tensor-duplicate": (_duplicate_tensor, "DamagedFileError", "duplicate tensor name"),
    "tensor-5-dims": (_tensor("output.weight", dims=[2] * 5), "DamagedFileError", "number of dimensions: 5"),
    "tensor-dim-negative": (_tensor("output.weight", dims=[2**63]), "DamagedFileError", "invalid number of elements"),
    "tensor-dims-overflow": (_tensor("output.weight", dims=[2**32, 2**32]), "DamagedFileError", "overflow"),
    "tensor-empty": (_tensor("blk.0.attn_q.weight", dims=[64, 0]), "DamagedFileError", NOT_A_MODEL),
    "tensor-too-large": (
        _tensor("blk.2.ffn_down.weight", dims=[128, 2**20]),
        "DamagedFileError",
        "beyond the end of the file",
    ),
    "tensor-offset": (_tensor("output.weight", offset=2**63), "DamagedFileError", "has offset"),
    "tensor-offset-odd": (_tensor("output.weight", offset=1), "DamagedFileError", "has offset"),
    "tensor-type-unknown": (_tensor("output.weight", type=1000), "DamagedFileError", "invalid ggml type 1000"),
    "tensor-type-int": (_tensor("blk.2.ffn_down.weight", type=26), "DamagedFileError", "must not have the type i32"),
    "tensor-type-removed": (_tensor("output.weight", type=4), "DamagedFileError", NOT_A_MODEL),
    "tensor-type-of-activations": (
        _tensor("blk.2.ffn_down.weight", type=9),
        "DamagedFileError",
        "must not have the type q8_1",
    ),
    "norm-f16": (_tensor("blk.2.ffn_norm.weight", type=1), "DamagedFileError", NOT_A_MODEL),
    "tensor-wrong-shape": (_tensor("output.weight", dims=[models.N_VOCAB, 64]), "H2OError", "wrong shape"),
    "block-count-0": (_set_u32("qwen3.block_count", 0), "DamagedFileError", "block_count is 0"),
    "block-count-513": (
        _set_u32("qwen3.block_count", 513),
        "DamagedFileError",
        "block_count is 513, expected 1 to",
    ),
    "block-count-4": (_set_u32("qwen3.block_count", 4), "H2OError", "'blk.3.attn_norm.weight' not found"),
    "block-count-string": (_set("qwen3.block_count", STRING, pack_string(b"3")), "H2OError", "wrong type str"),
    "head-count-0": (_set_u32("qwen3.attention.head_count", 0), "H2OError", "wrong shape"),
    "head-count-3-to-2": (_set_u32("qwen3.attention.head_count", 3), "H2OError", "wrong shape"),
    "head-count-kv-0": (_set_u32("qwen3.attention.head_count_kv", 0), "H2OError", "cannot load"),
    "head-count-array-of-bytes": (
        _set("qwen3.attention.head_count", ARRAY, pack("IQ3B", INT8, 3, 8, 8, 8)),
        "H2OError",
        "head_count",
    ),
    "expert-count": (_set_u32("qwen3.expert_count", 2**31), "H2OError", "GGML_ASSERT"),
    "rms-eps-nan": (
        _set("qwen3.attention.layer_norm_rms_epsilon", FLOAT32, pack("f", float("nan"))),
        "DamagedFileError",
        "layer_norm_rms_epsilon is nan",
    ),
    "rope-dimension-odd": (_set_u32("qwen3.rope.dimension_count", 31), "DamagedFileError", "expected an even number"),
    "rope-dimension-large": (_set_u32("qwen3.rope.dimension_count", 64), "DamagedFileError", "up to the head size 32"),
    "rope-scaling": (_set("qwen3.rope.scaling.type", STRING, pack_string(b"x")), "H2OError", "GGML_ASSERT"),
    "duplicate-tokens": (_duplicate_tokens, "H2OError", "GGML_ASSERT"),
    "too-few-tokens": (_set("tokenizer.ggml.tokens", ARRAY, pack_strings([b"a", b"b"])), "H2OError", "wrong shape"),
    "no-tokens": (lambda file: file.remove("tokenizer.ggml.tokens"), "H2OError", "cannot find tokenizer vocab"),
    "merges-of-bytes": (_set("tokenizer.ggml.merges", ARRAY, pack("IQB", UINT8, 1, 0)), "H2OError", "merges"),
    "tokenizer-unknown": (
        _set("tokenizer.ggml.model", STRING, pack_string(b"x")),
        "H2OError",
        "unknown tokenizer: 'x'",
    ),
    "context-length-gone": (lambda file: file.remove("qwen3.context_length"), "H2OError", "qwen3.context_length"),
    "non-utf8-name": (_set("general.architecture", STRING, pack_string(b"\xff\xfe")), "H2OError", "unknown model arch"),
}


def write_files(source: Path, folder: Path) -> None:
    """Damage the good model `source` in every way, into `folder`; the cases below call that FOLDER."""
    data = source.read_bytes()
    (folder / "empty").write_bytes(b"")
    (folder / "text").write_text("This is not a model.\n" * 100)
    (folder / "magic-alone").write_bytes(b"GGUF")
    # The length of the first key comes after magic, version and the two counts.
    (folder / "huge-key").write_bytes(data[:24] + pack("Q", 2**62) + data[32:])
    # Even the last bytes count: they belong to a tensor.
    for i, n in enumerate([*random.Random(0).sample(range(1, len(data)), N_TRUNCATIONS - 1), len(data) - 1]):
        (folder / f"truncated-{i}").write_bytes(data[:n])
    for name, (mutate, _, _) in MUTATIONS.items():
        mutated(source, folder / name, mutate)
    models.write_vocab_only(folder / "vocabulary-only")
    models.write_sliding_window(folder / "sliding-window")
    models.write_recurrent(folder / "recurrent")


def _file_case(name: str, error: str, fragment: str) -> Case:
    return Case(f"file-{name}", f"open_model(FOLDER + {name!r})", error, fragment)


FILES = [
    Case("file-missing", "open_model('/no/such/model.gguf')", "FileNotFoundError", "[Llama] there is no file"),
    Case("file-folder", "open_model(FOLDER)", "ValueError", "is a folder or a special file"),
    Case("file-device", "open_model('/dev/zero')", "ValueError", "is a folder or a special file"),
    Case("file-path-with-nul", "open_model('a\\0b')", "FileNotFoundError", "there is no file"),
    Case(
        "file-path-int",
        "open_model(3)",
        "ValueError",
        "[Llama] model_path must be the path of a GGUF file, or an open",
    ),
    Case("file-path-none", "open_model(None)", "ValueError", "model_path"),
    _file_case("empty", "DamagedFileError", "is empty"),
    _file_case("text", "DamagedFileError", "invalid magic characters"),
    _file_case("magic-alone", "DamagedFileError", NOT_A_MODEL),
    _file_case("huge-key", "DamagedFileError", "string length 4611686018427387904 exceeds"),
    _file_case("vocabulary-only", "H2OError", "tensor 'token_embd.weight' not found"),
    _file_case("sliding-window", "UnsupportedModelError", "Switch H2O off for it"),
    _file_case("recurrent", "UnsupportedModelError", "Switch H2O off for it"),
    *(_file_case(f"truncated-{i}", "DamagedFileError", NOT_A_MODEL) for i in range(N_TRUNCATIONS)),
    *(_file_case(name, error, fragment) for name, (_, error, fragment) in MUTATIONS.items()),
    Case(
        "cache-file-missing",
        "cache().__class__('/no/such.gguf', kv_size=64, chunk_size=16, local_window=4, heavy_budget=4)",
        "FileNotFoundError",
        "there is no file",
    ),
    Case(
        "cache-recurrent",
        "KVCache(FOLDER + 'recurrent', kv_size=64, chunk_size=16, local_window=4, heavy_budget=4)",
        "UnsupportedModelError",
        "[KVCache] the cache cannot be made",
    ),
]
