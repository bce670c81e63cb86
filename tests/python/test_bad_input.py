"""Bad input raises a Python exception that names the problem. It never ends the process, and prints nothing.

The checks of `_internal/check.py` by themselves, then a case or two for each argument.
"""

import inspect
import random
import re
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bad_files import FILES, Case, write_files
from chats import user
from compare import case
from gguf_mutation import GGUFFile
from h2o_llama import H2OError, Llama, LosslessConfig
from h2o_llama._internal import check
from h2o_llama.chat._generation import GenerationOptions
from h2o_llama.sampling import SamplingOptions

NAN, INF = float("nan"), float("inf")
CHECKS: list[tuple[Callable[[Any], object], str, list[Any]]] = [
    (
        lambda value: check.integer("f", "x", value, 0),
        "an integer of at least 0",
        [-1, NAN, INF, 2**31, 10**40, 1.0, True, None, "8", [8], np.float32(1), np.True_],
    ),
    (lambda value: check.integer("f", "x", value, 1, 9), "an integer from 1 to 9", [0, 10, np.int64(-9)]),
    (
        lambda value: check.real("f", "x", value, 0),
        "a finite number >= 0",
        [-1e-9, NAN, INF, np.float32("nan"), "1", None, True, [1.0]],
    ),
    (lambda value: check.real("f", "x", value, 0, 1), "a finite number from 0 to 1", [-0.1, 1.1]),
    (lambda value: check.flag("f", "x", value), "True or False", [0, 1, None, "True"]),
    (lambda value: check.choice("f", "x", value, ["a", "b"]), "one of 'a', 'b'", ["c", "", b"a", 0, None, "A"]),
    (
        lambda value: check.token_ids("f", value, 260),
        "a token id from 0 to 259",
        [
            *([value] for value in (-1, 260, 2**31, 10**40, "a", True, 1.0, NAN, None, [1], np.int64(-9))),
            *(np.array([value]) for value in (260, 2**40, -1)),
            *(np.array([value], dtype=np.uint64) for value in (2**63, 2**63 + 1)),
        ],
    ),
    (
        lambda value: check.token_ids("f", value, 260),
        "a sequence of token ids from 0 to 259",
        ["abc", b"abc", 5, None, np.ones(3), np.ones((2, 2), dtype=int), np.array([True])],
    ),
    (
        lambda value: check.float_array("f", "x", value, [None, 2]),
        r"an array of numbers of shape \[n, 2\]",
        [1, [1, 2], [[1]], [["a", "b"]], [[1], [1, 2]], np.ones((2, 2), complex), np.ones((2, 2), bool), None],
    ),
]


@pytest.mark.parametrize(("call", "expected", "values"), CHECKS, ids=[expected for _, expected, _ in CHECKS])
def test_a_check_refuses(call: Callable[[Any], object], expected: str, values: list[Any]) -> None:
    for value in values:
        with case(value=value), pytest.raises(ValueError, match=rf"^\[f\] \w+(\[0\])? must be {expected}"):
            call(value)


CALLS_WITH: dict[str, dict[str, Any]] = {
    "eval": {"tokens": [1]},
    "generate": {"tokens": [1]},
    "create_completion": {"prompt": "a"},
    "create_chat_completion": {"messages": [user("a")]},
    "generate_text": {"prompts": "a"},
    "ask": {"document": "a", "questions": "b"},
    "embed": {"input": "a"},
    "tokenize": {"text": "a"},
    "detokenize": {"tokens": [1]},
    "apply_chat_template": {"messages": [user("a")]},
    "reuse": {"tokens": [1]},
    "rewind": {},
    "save": {},
    "load": {},
    "restore": {},
    "kv.heavy_hitters": {"layer": 0, "head": 0},
    "kv.extra_keys": {"layer": 0, "head": 0, "tile": 0},
    **{f"kv.{name}": {"layer": 0} for name in ("memory_indices", "scores", "keys", "values")},
}
"""Calls of a `Llama` with arguments that they need."""


def test_every_argument_is_checked_by_its_name(chat_model: Path) -> None:
    odd = object()
    opening: dict[str, Any] = {"model_path": chat_model, "n_ctx": 64, "n_threads": 1}
    with Llama(**opening) as llm:
        calls: list[tuple[Callable[..., Any], Any]] = [(Llama, opening), (llm.generate_many, {"prompts": {llm: [1]}})]
        calls += [(LosslessConfig, {})]
        calls += [(attrgetter(name)(llm), given) for name, given in CALLS_WITH.items()]
        for call, given in calls:
            parameters = inspect.signature(call).parameters
            common = GenerationOptions.__annotations__.keys() - SamplingOptions.__annotations__.keys()
            for name in [*parameters, *(common if "create_" in getattr(call, "__name__", "") else ())]:
                # the last two depend on another argument
                if name not in ("options", "sampling", "kwargs", "rope", "embeddings", "top_logprobs"):
                    said = "tokens" if name == "prompt" else name
                    match = rf"^\[[\w.]+\] {said} must be .*, got <object"
                    with case(call=call, name=name), pytest.raises(ValueError, match=match):
                        call(**{**given, name: odd})


PRELUDE = """
import numpy as np
import h2o_llama
from h2o_llama import H2OConfig, KVCache, Llama

nan, inf = float("nan"), float("inf")

SIZES = dict(local_window=4, heavy_budget=4, sink_tokens=0, chunk_size=16)


def open_model(path=MODEL, **kwargs):
    defaults = dict(n_ctx=128, n_batch=64, n_threads=1, h2o=H2OConfig(**SIZES))
    return Llama(path, **(defaults | kwargs))

def cache(model=MODEL, **kwargs):
    defaults = dict(kv_size=64, chunk_size=16, local_window=4, heavy_budget=4)
    return KVCache(model, **(defaults | kwargs))
"""


def _open(arguments: str, fragment: str, error: str = "ValueError") -> Case:
    return Case(f"Llama({arguments})", f"open_model({arguments})", error, fragment)


def _call(code: str, fragment: str, error: str = "ValueError") -> Case:
    return Case(f"llm.{code}", f"with open_model() as llm:\n    llm.eval([1, 2, 3])\n    llm.{code}", error, fragment)


def _cache(code: str, fragment: str, error: str = "ValueError") -> Case:
    return Case(f"cache.{code}", f"cache().{code}", error, fragment)


ARGUMENTS = [
    _open("seed=2**32", "[Llama] seed must be"),
    _open("n_ubatch=0", "[Llama] n_ubatch must be an integer of at least 1, got 0"),
    *(
        _open(f"kv_overrides={{{override}}}", f"[Llama] kv_overrides{fragment}")
        for override, fragment in (
            ("'k' * 128: 1", "' keys must be names of metadata"),
            ("'a\\0': 1", "' keys must be names of metadata"),
            ("'general.name': 'n' * 128", "['general.name'] must be a bool, an int of 32 bits"),
            ("'qwen3.context_length': 2**32", "['qwen3.context_length'] must be a bool, an int"),
            ("'qwen3.context_length': -1", "['qwen3.context_length'] must be an integer from 0"),
            ("'general.name': 1", "['general.name'] must be a str, got 1"),
            ("'tokenizer.ggml.tokens': 1", "['tokenizer.ggml.tokens'] must be left out: the file has an"),
            ("'qwen3.rope.dimension_count': 31", ": qwen3.rope.dimension_count is 31, expected an even number"),
        )
    ),
    _open("kv_overrides={'qwen3.contextlength': 9}", "llama.cpp does not read 'qwen3.contextlength'", "H2OError"),
    _open("kv_overrides={'qwen3.block_count': 2**31 - 1}", "[Llama] llama.cpp cannot load", "H2OError"),
    _open("kv_overrides={'qwen3.attention.head_count_kv': 0}", "[Llama] llama.cpp cannot load", "H2OError"),
    _open("main_gpu=0, tensor_split=[1]", "[Llama] tensor_split must be left out with main_gpu"),
    _open("n_ubatch=65", "[Llama] n_batch must be at least n_ubatch (65), got 64"),
    _open("type_v='q8_0', flash_attn='off'", "[Llama] type_v='q8_0' needs flash attention"),
    _open("profile=True, h2o=None", "[Llama] profile=True measures parts of H2O"),
    _open("n_ctx=2**31 - 1", "[Llama] n_ctx=2147483647 needs", "OutOfMemoryError"),
    *(
        _open(f"n_ctx=2**20, n_batch=2**20, n_ubatch=2**20, flash_attn='off', h2o={h2o}", "memory", "OutOfMemoryError")
        for h2o in (
            "H2OConfig(local_window=4, heavy_budget=4, lookup_budget=0, chunk_size=2**20)",
            "H2OConfig(heavy_budget=4, lookup_budget=0, schedule='two_phase', chunk_size=2**20)",
            "None",
        )
    ),
    Case("no-such-argument", "open_model(n_context=3)", "TypeError", "n_context"),
]

CALLS = [
    _call("eval([])", "[Llama.eval] tokens must not be empty"),
    _call("eval([260])", "[Llama.eval] tokens[0] must be a token id from 0 to 259, got 260"),
    _call("eval([1] * 126)", "[Llama.eval] 126 tokens after 3 do not fit into n_ctx=128"),
    *(
        _call(f"generate([1], {name}={'nan' if 'penalty' in name else -1})", f"[Llama.generate] {name} must be ")
        for name in SamplingOptions.__annotations__
        if name not in ("grammar", "logits_processor")
    ),
    _call("generate([1], temperature=10**400)", "temperature must be a finite number"),
    _call("generate([1], dry_base=0.5)", "dry_base must be a finite number from 1 to 3.4e+38, got 0.5"),
    *(
        _call(f"generate([1], dry_sequence_breakers={value})", "dry_sequence_breakers must be a list of str of 1 to 40")
        for value in ("'ab'", "['']", "['a' * 41]", "[1]", "['\\0']")
    ),
    Case(
        "extreme-samplers",
        """
with open_model() as llm:
    for options in (
        dict(dry_multiplier=3e38, dry_base=3e38, dry_allowed_length=0, dry_penalty_last_n=2**20),
        *(dict(mirostat_mode=m, mirostat_tau=t, mirostat_eta=e) for m in (1, 2) for t in (0, 3e38) for e in (0, 3e38)),
        dict(typical_p=0), dict(xtc_probability=1, xtc_threshold=0),
    ):
        llm.reset()
        for _, token in zip(range(30), llm.generate([1, 2, 3, 1, 2, 3], temperature=3e38, seed=1, **options)):
            assert 0 <= token < 260
raise KeyError("the end")
""",
        "KeyError",
        "the end",
    ),
    _call("generate([1], repeat_penalty=0)", "repeat_penalty must be greater than 0"),
    _call("__call__('')", "[Llama.create_completion] prompt must not be empty"),
    _call("generate([1], top_q=1)", "[Llama.generate] unexpected keyword argument 'top_q'", "TypeError"),
    _call(
        "tokenize('\\ud800')", "[Llama.tokenize] text must be text that UTF-8 can hold, got '\\ud800' at character 0"
    ),
    _open("chat_template='{\\ud800'", "chat_template must be text that UTF-8"),
    _call("rewind(4)", "n_tokens must be an integer from 0 to 3, got 4"),
    _call("kv.heavy_hitters(0, 2)", "[Llama.kv] head must be an integer from 0 to 1, got 2"),
    _call("kv.history", "pass keep_history=True to Llama", "H2OError"),
]

CACHE = [
    Case("KVCache(large)", "cache(kv_size=2**31 - 1)", "OutOfMemoryError", "[KVCache] kv_size=2147483647 needs"),
    *(
        Case(f"KVCache({arguments})", f"cache({arguments})", "ValueError", fragment)
        for arguments, fragment in (
            ("local_window=17", "[H2OConfig] local_window must be at most chunk_size (16), got 17"),
            ("type_k='int8'", "type_k must be one of"),
        )
    ),
    _cache("init_chunk_scores(0, 0, np.ones((3, 16)))", "a row per KV head (2) or per query head (8), got 3 rows"),
    _cache("init_chunk_scores(0, 0, np.ones(16))", "colsum must be an array of numbers of shape [n, n]"),
    _cache("init_chunk_scores(0, 49, np.ones((2, 16)))", "start must be an integer from 0 to 48, got 49"),
    _cache("accumulate_memory_scores(0, np.ones((2, 7)))", "colsum must be an array of numbers of shape [n, 8]"),
    _cache("build_memory_set(0, 0)", "chunk_end must be an integer from 1 to 64, got 0"),
    _cache("build_memory_set(0, 17)", "chunk_end must be from 1 to 16, as chunks are built in order"),
    _cache("next_chunk(-1)", "n must be an integer from 0 to 64, got -1"),
    _cache(
        "set_kv(0, 0, np.ones((2, 4, 32)), np.ones((2, 5, 32)))", "v must be an array of numbers of shape [2, 4, 32]"
    ),
    _cache(
        "set_kv(0, 0, np.ones((2, 4, 31)), np.ones((2, 4, 31)))", "k must be an array of numbers of shape [2, n, 32]"
    ),
    _cache("set_kv(0, 61, np.ones((2, 4, 32)), np.ones((2, 4, 32)))", "start must be an integer from 0 to 60, got 61"),
    _cache("gather_k_memory(3)", "layer 3 has no K/V"),
    _cache("gather_v_memory('0')", "layer must be an integer"),
]

_CLOSED = "llm = open_model()\nkv = llm.kv\nllm.close()\nllm.close()\n"

STATE = [
    *(
        Case(f"closed-{code}", _CLOSED + code, "ValueError", "[Llama] this model is closed")
        for code in (
            "llm.eval([1])",
            "next(llm.generate([1]))",
            "kv.scores(0)",
            "llm.snapshot()",
            "llm.tokens",
            "cache(llm)",
            "open_model(llm)",
        )
    ),
    Case("closed-generator", "llm = open_model()\ng = llm.generate([1])\nllm.close()\nnext(g)", "ValueError", "closed"),
    _open("open_model(), n_gpu_layers=1", "[Llama] n_gpu_layers must be that of the shared weights (0), or left out"),
    Case("logits-before-eval", "open_model().logits", "H2OError", "there are no logits: call eval first"),
    Case("logits-after-reset", "llm = open_model()\nllm.eval([1])\nllm.reset()\nllm.logits", "H2OError", "no logits"),
    Case("generate-from-nothing", "next(open_model().generate([]))", "H2OError", "no logits to sample from"),
    Case("h2o-off", "open_model(h2o=None).kv.scores(0)", "H2OError", "H2O is off: pass h2o=H2OConfig()"),
    *(
        Case(
            f"reentry-{code}",
            f"llm = open_model()\nllm.eval([1] * 40, progress=lambda n_done, n: {code})",
            "BusyError",
            "[Llama] is in use",
        )
        for code in ("llm.reset()", "llm.close()", "llm.kv.scores(0)")
    ),
]

GROUPS = {"files": FILES, "arguments": ARGUMENTS, "calls": CALLS, "cache": CACHE, "state": STATE}


@pytest.fixture
def names(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """What code of the cases finds."""
    found: dict[str, Any] = {"MODEL": str(tiny_model), "FOLDER": f"{tmp_path}/"}
    exec(PRELUDE, found)
    return found


@pytest.mark.parametrize("group", GROUPS)
def test_every_case_raises(
    names: dict[str, Any], tiny_model: Path, tmp_path: Path, group: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if group in ("files", "cache"):
        write_files(tiny_model, tmp_path)
    for asked in GROUPS[group]:
        with case(name=asked.name):
            with pytest.raises(Exception, match=re.escape(asked.fragment)) as raised:
                exec(asked.code, {**names})
            assert raised.type.__name__ == asked.error
    assert capfd.readouterr() == ("", "")


def test_random_damage(
    names: dict[str, Any], tiny_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Damage anywhere in front of the weights is refused, or the model works."""
    good, header_size = tiny_model.read_bytes(), len(GGUFFile.read(tiny_model).header())
    rng, n_refused = random.Random(0), 0
    for number in range(300):
        damaged = bytearray(good)
        for _ in range(rng.choice((1, 2, 4))):
            at, n = rng.randrange(header_size), rng.choice((1, 4, 8))
            damaged[at : at + n] = rng.choice((bytes(n), b"\xff" * n, rng.randbytes(n)))
        (tmp_path / "damaged").write_bytes(damaged)
        with case(number=number):
            try:
                with names["open_model"](tmp_path / "damaged") as llm:
                    llm.tokenize(b"a text \xff", parse_special=True)
                    llm.eval(range(40))
                    llm("a", max_tokens=3)
            except (ValueError, H2OError):
                n_refused += 1
    assert 0 < n_refused < 300
    assert capfd.readouterr() == ("", "")
