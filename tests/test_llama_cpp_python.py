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


OPENED = {
    "embedding=True": "",
    "logits_all=True": "",
    "offload_kqv=True": "",
    "offload_kqv=False": "leave it out",
    "vocab_only=False": "",
    "vocab_only=True": r"Model\(path\) has no context",
    "flash_attn=True": "flash_attn='on'",
    "flash_attn=False": "flash_attn='off'",
    "type_k=8": "type_k='q8_0'",
    "type_v=1": "type_v='f16'",
    "chat_format='chatml'": "chat_template='chatml'",
    "chat_format='llama-2'": "pass a chat_template=",
    "rope_scaling_type=2": "rope_scaling_type='yarn'",
    "rope_freq_base=0.0, yarn_ext_factor=-1.0, yarn_orig_ctx=0": "",
    "split_mode=1": "",
    "split_mode=0": "pass main_gpu=",
    "draft_model=0": "pass draft=15",
    "chat_handler=0": "pass mmproj=",
    "pooling_type=1": r"pass pooling_type= to embed\(\)",
    "lora_path='a'": "pass lora=PATH",
}
CALLED = {
    "llm.n_ctx()": "llm.n_ctx",
    "llm.n_vocab()": "llm.n_vocab",
    "llm.n_embd()": "llm.n_embd",
    "llm.token_bos()": "llm.token_bos",
    "llm.token_eos()": "llm.token_eos",
    "llm.token_nl()": "use tokenize",
    "llm.tokenize(b'a<|im_start|>', add_bos=False, special=True)": "[97, 257]",
    "llm.tokenize(b'a<|im_start|>', False, True)": "[97, 257]",
    "llm.detokenize([97], prev_tokens=[97])": "detokenize all tokens together",
    "llm('a', 128)": "by name, as max_tokens=128",
    "llm('a', max_tokens=-1, seed=1)['choices']": "llm('a', max_tokens=None, seed=1)['choices']",
    "llm('a', seed=1, suffix=None, tfs_z=1.0)['choices']": "llm('a', seed=1)['choices']",
    "llm('a', suffix='b')": "tokens for it into the prompt",
    "llm('a', tfs_z=0.5)": "use min_p",
    "next(llm.generate([97], temp=0, reset=False))": "next(llm.generate([97], temperature=0))",
    "llm.generate([97], reset=True)": r"call reset\(\)",
    "llm.create_chat_completion([], functions=[])": "pass tools=",
    "llm.create_chat_completion([], function_call='auto')": "pass tool_choice=",
    "llm.create_chat_completion([], model='gpt')": "leave it out",
    "llm.input_ids.tolist()": "llm.tokens.tolist()",
    "llm.eval_tokens.tolist()": "llm.tokens.tolist()",
    "llm.load_state(llm.save_state())": "llm.restore(llm.snapshot())",
    "llm.scores": "use logits",
    "llm.eval_logits": "use logits",
    "llm.sample": r"use next\(",
    "llm.set_cache": "pass library=",
    "llm.set_seed": "pass seed=",
    "llm.tokenizer": "use tokenize",
}
"""What programs written for llama-cpp-python say; and what that is here, or what the error says."""


@pytest.mark.parametrize(("there", "here"), OPENED.items())
def test_opening(there: str, here: str, tiny_model: Path) -> None:
    def opened(arguments: str) -> Any:
        with eval(
            f"Llama(path, n_ctx=64, n_threads=1, h2o=None, {arguments})", {"Llama": Llama, "path": tiny_model}
        ) as llm:
            return llm._state.engine.params, llm.model._rope, llm.chat_template

    if not here or "='" in here:
        assert opened(there) == opened(here)
    else:
        with pytest.raises(TypeError, match=f"there is no argument .*: .*{here}"):
            opened(there)


@pytest.mark.parametrize(("there", "here"), CALLED.items())
def test_calling(there: str, here: str, tiny_model: Path) -> None:
    def called(code: str) -> Any:
        with open_dense(tiny_model) as llm:
            llm.eval(PROMPT)
            return eval(code, {"llm": llm})

    if here[0] == "[" or "llm." in here or "llm(" in here:
        assert called(there) == called(here)
    else:
        with pytest.raises((TypeError, AttributeError), match=here):
            called(there)
