"""Model files with something wrong in each, and the error that each must give."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import models
from gguf_mutation import (
    ARRAY,
    FLOAT32,
    INT8,
    STRING,
    UINT8,
    UINT64,
    GGUFFile,
    mutated,
    pack,
    pack_string,
    pack_strings,
)

N_TRUNCATIONS = 20
NOT_A_MODEL = "is not a valid GGUF model file"

Mutation = Callable[[GGUFFile], None]


class Case(NamedTuple):
    """`code` must raise `error` with a message that contains `fragment`."""

    name: str
    code: str
    error: str
    fragment: str


def _header(**fields: object) -> Mutation:
    return lambda file: file.__dict__.update(fields)


def _set_u32(key: str, value: int) -> Mutation:
    return lambda file: file.set_u32(key, value)


def _set(key: str, kind: int, value: bytes) -> Mutation:
    return lambda file: file.set(key, kind, value)


def _text(key: str, value: bytes) -> Mutation:
    return _set(key, STRING, pack_string(value))


def _tensor(which: str, **fields: object) -> Mutation:
    return lambda file: file.tensors[which.encode()].__dict__.update(fields)


# exception -> file name -> mutation of a good model, and part of the message
MUTATIONS: dict[str, dict[str, tuple[Mutation, str]]] = {
    "DamagedFileError": {
        "wrong-magic": (_header(magic=b"GGML"), "invalid magic characters: 'GGML'"),
        "big-endian": (_header(version=0x03000000), "endian"),
        "n-kv-2^63": (_header(n_kv=2**63), NOT_A_MODEL),
        "n-tensors-2^64-1": (_header(n_tensors=2**64 - 1), NOT_A_MODEL),
        "huge-string": (_set("general.name", STRING, pack("Q", 2**60)), "string length"),
        "huge-array": (_set("x", ARRAY, pack("IQ", UINT64, 2**61 + 1)), NOT_A_MODEL),
        "tensor-empty": (_tensor("blk.0.attn_q.weight", dims=[64, 0]), NOT_A_MODEL),
        "tensor-too-large": (_tensor("blk.2.ffn_down.weight", dims=[128, 2**20]), "beyond the end of the file"),
        "tensor-type-int": (_tensor("blk.2.ffn_down.weight", type=26), "must not have the type i32"),
        "tensor-type-of-activations": (_tensor("blk.2.ffn_down.weight", type=9), "must not have the type q8_1"),
        "norm-f16": (_tensor("blk.2.ffn_norm.weight", type=1), NOT_A_MODEL),
        "rms-eps-nan": (
            _set("qwen3.attention.layer_norm_rms_epsilon", FLOAT32, pack("f", float("nan"))),
            "layer_norm_rms_epsilon is nan",
        ),
        "rope-dimension-odd": (_set_u32("qwen3.rope.dimension_count", 31), "expected an even number"),
        "rope-dimension-large": (_set_u32("qwen3.rope.dimension_count", 64), "up to the head size 32"),
    },
    "H2OError": {
        "no-architecture": (lambda file: file.remove("general.architecture"), "unknown model architecture: ''"),
        "tensor-wrong-shape": (_tensor("output.weight", dims=[models.N_VOCAB, 64]), "wrong shape"),
        "block-count-0": (_set_u32("qwen3.block_count", 0), "GGML_ASSERT(hparams.n_layer_all > 0"),
        "block-count-4": (_set_u32("qwen3.block_count", 4), "'blk.3.attn_norm.weight' not found"),
        "block-count-string": (_text("qwen3.block_count", b"3"), "wrong type str"),
        "head-count-kv-0": (_set_u32("qwen3.attention.head_count_kv", 0), "cannot load"),
        "head-count-bytes": (_set("qwen3.attention.head_count", ARRAY, pack("IQ3B", INT8, 3, 8, 8, 8)), "head_count"),
        "expert-count": (_set_u32("qwen3.expert_count", 2**31), "GGML_ASSERT"),
        "rope-scaling": (_text("qwen3.rope.scaling.type", b"x"), "GGML_ASSERT"),
        "duplicate-tokens": (
            _set("tokenizer.ggml.tokens", ARRAY, pack_strings([b"a"] * models.N_VOCAB)),
            "GGML_ASSERT",
        ),
        "too-few-tokens": (_set("tokenizer.ggml.tokens", ARRAY, pack_strings([b"a", b"b"])), "wrong shape"),
        "merges-of-bytes": (_set("tokenizer.ggml.merges", ARRAY, pack("IQB", UINT8, 1, 0)), "merges"),
        "tokenizer-unknown": (_text("tokenizer.ggml.model", b"x"), "unknown tokenizer: 'x'"),
        "context-length-gone": (lambda file: file.remove("qwen3.context_length"), "qwen3.context_length"),
        "non-utf8-name": (_text("general.architecture", b"\xff\xfe"), "unknown model arch"),
    },
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
    for mutations in MUTATIONS.values():
        for name, (mutate, _) in mutations.items():
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
    Case("file-path-int", "open_model(3)", "ValueError", "[Llama] model_path must be the path of a GGUF file, or"),
    Case("file-path-none", "open_model(None)", "ValueError", "model_path"),
    _file_case("empty", "DamagedFileError", "is empty"),
    _file_case("text", "DamagedFileError", "invalid magic characters"),
    _file_case("magic-alone", "DamagedFileError", NOT_A_MODEL),
    _file_case("huge-key", "DamagedFileError", "string length 4611686018427387904 exceeds"),
    _file_case("vocabulary-only", "H2OError", "tensor 'token_embd.weight' not found"),
    _file_case("sliding-window", "UnsupportedModelError", "Switch H2O off for it"),
    _file_case("recurrent", "UnsupportedModelError", "Switch H2O off for it"),
    *(_file_case(f"truncated-{i}", "DamagedFileError", NOT_A_MODEL) for i in range(N_TRUNCATIONS)),
    *(_file_case(name, error, text) for error, found in MUTATIONS.items() for name, (_, text) in found.items()),
    Case("cache-file-missing", "cache('/no/such.gguf')", "FileNotFoundError", "there is no file"),
    Case(
        "cache-recurrent", "cache(FOLDER + 'recurrent')", "UnsupportedModelError", "[KVCache] the cache cannot be made"
    ),
]
