"""Pre-tokenizers: a text is cut as the PyPI package `regex` cuts it, of any length, on small stacks."""

import random
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import regex

from h2o_llama import Model, _core, demo_model_path
from inputs import on_a_small_stack

VOCAB = Path(__file__).parents[2] / "vendor" / "llama.cpp" / "src" / "llama-vocab.cpp"
CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
ESCAPES = {"n": "\n", "r": "\r"}
POOLS = [
    *("aZbcXYz", "sStdmDlLrReEvV'", "'’ ", " \t\n\r\u00a0\u3000\x0b\x85\u180e\u2028"),
    *("0123456789", "²٣४½Ⅷ", "中文々ひカ한ㄅ"),
    *('.,!?…-—/\\[]{}()<>|$+=^~`"#%&*:;@_', "éÉßΣςñÇǅᾈʰª𝐀𝐚İı", "\u0301\u0e34\u093f", "กนमस", "😀©™\u200b\x00\x07"),
]
RUNS = [*"aAé中1. \n", "aB", "\r\n", " \n", "a ", "a1. ", "e\u0301", "\u0301", "'s", "<sentinel:1", "\u3000"]


def patterns_in_the_source() -> dict[str, list[str]]:
    """Of each pre-tokenizer, by the first of its names."""
    source = VOCAB.read_text(encoding="utf-8")
    source = source[source.index("struct llm_tokenizer_bpe : ") : source.index("struct llm_tokenizer_bpe_session")]
    source = re.sub(r"^\s*//.*$", "", source, flags=re.MULTILINE)
    result, names = {}, []
    for case in re.finditer(
        r"case LLAMA_VOCAB_PRE_TYPE_(\w+):|(default):|regex_exprs = \{(.*?)\n\s*\};", source, re.DOTALL
    ):
        if case[3] is None:
            names.append(case[1] or case[2])
            continue
        literals = re.findall(r'"((?:[^"\\]|\\.)*)"', case[3])
        result[names[0]] = [re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), text) for text in literals]
        names.clear()
    return result


PATTERNS = patterns_in_the_source()
assert len(PATTERNS) >= 35
NAMES = pytest.mark.parametrize("name", PATTERNS)


ORIGINAL = {  # names, and the patterns of their models' tokenizer.json
    "AFMOE": [r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", *PATTERNS["AFMOE"][1:]],
    "DEEPSEEK_LLM": [r"\s+$" if "$" in pattern else pattern for pattern in PATTERNS["DEEPSEEK_LLM"]],
    "GPT4O": [
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{CONTRACTION}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{CONTRACTION}"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "GRANITE_EMB_MULTI": [
        re.sub(r"\(\?\[\[(.+?)\]-\[(.+?)\]\]\)", r"(?:(?=[\1])[^\2])", pattern)
        for pattern in PATTERNS["GRANITE_EMB_MULTI"]
    ],
    "JAIS2": [pattern.replace(r"(?:[^\S\r\n]*+[\r\n]++)++", r"\s*[\r\n]+") for pattern in PATTERNS["JAIS2"]],
    "KIMI_K2": [
        r"[\p{Han}]+"
        rf"|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]*"
        rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]+{CONTRACTION}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]+"
        rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]*{CONTRACTION}"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "SUPERBPE": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "TEKKEN": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "TINY_AYA": [r"\d{1,3}(?=(?:\d{3})*\b)", *PATTERNS["TINY_AYA"][1:]],
}


def expected(text: str, patterns: list[regex.Pattern[str]]) -> list[str]:
    pieces = [text]
    for pattern in patterns:
        cut = []
        for piece in pieces:
            places = {0, len(piece), *(place for found in pattern.finditer(piece) for place in found.span())}
            ordered = sorted(places)
            cut += [piece[begin:end] for begin, end in pairwise(ordered)]
        pieces = cut
    return pieces


def random_texts(n: int) -> Iterator[str]:
    rng = random.Random(1)
    for _ in range(n):
        parts = []
        for _ in range(rng.choice((1, 2, 5, 20))):
            pool, length = rng.choice(POOLS), rng.choice((1, 1, 1, 2, 3, 7))
            parts.append(rng.choice(pool) * length if rng.random() < 0.5 else "".join(rng.choices(pool, k=length)))
        yield "".join(parts)


@NAMES
def test_pieces(name: str) -> None:
    wanted = ORIGINAL.get(name, PATTERNS[name])
    compiled = [regex.compile(pattern, regex.V1 if "&&" in pattern else regex.V0) for pattern in wanted]
    for text in random_texts(300):
        assert _core.split_text(text, PATTERNS[name]) == expected(text, compiled), ascii(text)


@NAMES
def test_long_runs(name: str) -> None:
    """std::regex ended the process. With quadratic time, 300,000 characters take minutes."""

    def run() -> None:
        for text in [*RUNS, " " * 20 + "1"]:
            long = text * (10_000 // len(text))
            assert "".join(_core.split_text(long, PATTERNS[name])) == long
            assert "".join(_core.split_text(long + "a", PATTERNS[name])) == long + "a"
        for char in " 1":
            assert "".join(_core.split_text(char * 300_000 + "中", PATTERNS[name])) == char * 300_000 + "中"

    on_a_small_stack(run)


@pytest.mark.parametrize("name", ["gpt-4o", "tekken", "deepseek-v3", "bloom", "falcon"])
def test_a_model_reads_a_long_run(name: str) -> None:
    with Model(demo_model_path(), kv_overrides={"tokenizer.ggml.pre": name}) as model:

        def run() -> None:
            for text in ("a", ".", " ", "\n", "中"):
                assert model.detokenize(model.tokenize(text * 40_000)).decode() == text * 40_000

        on_a_small_stack(run)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a", "character 2: missing closing parenthesis"),
        ("((a{1000}){1000}){1000}", "compiled pattern would be longer than the limit"),
    ],
)
def test_wrong_patterns(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        _core.split_text("a", [pattern])


@pytest.mark.parametrize("pattern", ["(.|.)*[bd]", "(a|aa)+$"])
def test_a_match_is_limited(pattern: str) -> None:
    with pytest.raises(RuntimeError, match="a pattern cannot be matched: .* limit exceeded"):
        _core.split_text("a" * 100 + "c", [pattern])
