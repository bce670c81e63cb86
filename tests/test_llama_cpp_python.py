"""The tests of llama-cpp-python's `Llama` that apply, and the guide for its users."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import h2o_llama
import models
from h2o_llama import Llama, LlamaGrammar
from h2o_llama.chat._generation import GenerationOptions
from h2o_llama.models.rope import RopeOptions
from inputs import EXTERNAL_MODEL, Opened, random_tokens

GUIDE = Path(__file__).parent.parent / "docs" / "from-llama-cpp-python.md"


# --- a real model


@pytest.fixture
def external(opened: Opened) -> Llama:
    if EXTERNAL_MODEL is None:
        pytest.skip("LLAMACPP_TEST_MODELFILE is not set")
    return opened("external", partial(Llama, n_ctx=32, n_batch=32, n_ubatch=32, h2o=None), EXTERNAL_MODEL)


def test_external_completions(external: Llama) -> None:
    """test_real_llama and test_real_llama_repeated_prompt_cache."""
    prompt = "The capital of France is Paris. The capital of Italy is"
    for _ in range(2):
        answer = external.create_completion(prompt, max_tokens=6, temperature=0.0, seed=1337, reuse=True)
        assert answer["choices"][0]["text"].startswith(" Rome")
    answer = external.create_completion(
        "The capital of france is paris, 'true' or 'false'?:\n",
        max_tokens=4,
        top_k=50,
        top_p=0.9,
        temperature=0.8,
        seed=1337,
        grammar=LlamaGrammar.from_string('\nroot ::= "true" | "false"\n'),
    )
    assert answer["choices"][0]["text"] in ("true", "false")


# --- what a sequence holds already


@pytest.fixture(scope="module", params=["transformer", "recurrent"])
def path(request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "transformer":
        return tiny_model
    recurrent = tmp_path_factory.mktemp("recurrent") / "recurrent.gguf"
    models.write_recurrent(recurrent)
    return recurrent


def open_dense(path: Path) -> Llama:
    return Llama(path, n_ctx=64, n_batch=64, n_ubatch=64, n_threads=1, h2o=None, type_k="f32", type_v="f32")


def generated(llm: Llama, prompt: list[int]) -> list[int]:
    """Three tokens, after what of the prompt is not in the sequence yet."""
    n_cached = llm.reuse(prompt)
    return list(islice(llm.generate(prompt[n_cached:], temperature=0), 3))


PROMPT, EDITED, LONGER = random_tokens(12), [*random_tokens(11), 77], random_tokens(20)


@pytest.mark.parametrize("held", [PROMPT, EDITED, LONGER, PROMPT[:5]], ids=["exact", "edited", "longer", "shorter"])
def test_a_reused_prompt_matches_a_fresh_one(path: Path, held: list[int]) -> None:
    with open_dense(path) as llm:
        expected = generated(llm, PROMPT)
        llm.reset()
        llm.eval(held)
        assert generated(llm, PROMPT) == expected
        assert llm.tokens.tolist() == PROMPT + expected


# --- the guide


def test_the_guide_names_what_there_is(tiny_model: Path) -> None:
    rows = re.findall(r"^\| (`.*) \| (.*) \|$", GUIDE.read_text().split("## What differs")[0], re.MULTILINE)
    assert len(rows) > 15
    text = " ".join(new for _, new in rows)
    known = {
        name
        for f in (Llama.__init__, Llama.__call__, Llama.generate, Llama.tokenize, Llama.eval)
        for name in _parameters(f)
    } | {*GenerationOptions.__annotations__, *RopeOptions.__annotations__}
    with open_dense(tiny_model) as llm:
        llm.eval(PROMPT)
        for name in set(re.findall(r"`([a-z_]{3,})[`(]", text)) - {"llm", "next"}:
            assert name in known or hasattr(llm, name), name
    assert set(re.findall(r"h2o_llama\.(\w+)", text)) <= set(h2o_llama.__all__)
    assert set(re.findall(r"\b([a-z_]+)=", text)) <= known


def _parameters(function: Callable[..., object]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def test_arguments_and_names_of_llama_cpp_python(tiny_model: Path) -> None:
    """They work, or an error says what to do here."""
    arguments: dict[str, Any] = {"embedding": True, "logits_all": True, "offload_kqv": True, "vocab_only": False}
    arguments |= {"flash_attn": True, "type_k": 8, "type_v": 1, "chat_format": "chatml"}
    with Llama(tiny_model, n_ctx=64, n_threads=1, h2o=None, **arguments) as llm:
        assert llm.chat_template == "chatml"
        llm.eval(PROMPT)
        held: Any = llm
        state = held.save_state()
        assert llm("a", max_tokens=-1, suffix=None, tfs_z=1.0)["usage"]["completion_tokens"] > 0  # type: ignore[call-overload]
        held.load_state(state)
        assert held.input_ids.tolist() == held.eval_tokens.tolist() == PROMPT
        for name in ("scores", "eval_logits", "sample", "set_cache", "set_seed", "tokenizer"):
            with pytest.raises(AttributeError, match=f"{name}': (use|pass) "):
                getattr(llm, name)
        for call, name in ((held, "suffix"), (held.create_chat_completion, "functions"), (held.generate, "tfs_z")):
            with pytest.raises(TypeError, match=f"no argument '{name}': "):
                call([], **{name: "x"})
    for name in ("offload_kqv", "vocab_only", "chat_handler", "draft_model"):
        with pytest.raises(TypeError, match=f"no argument '{name}': "):
            Llama(tiny_model, **{name: 0})
