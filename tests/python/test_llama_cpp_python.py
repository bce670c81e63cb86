"""Programs written for llama-cpp-python: its calls, and the guide for its users."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import h2o_llama
from h2o_llama import Llama, LlamaGrammar
from h2o_llama.chat._generation import GenerationOptions
from h2o_llama.models.rope import RopeOptions
from inputs import random_tokens

GUIDE = Path(__file__).parents[2] / "docs" / "from-llama-cpp-python.md"


PROMPT = random_tokens(12)


def test_the_guide_names_what_there_is(tiny_model: Path) -> None:
    rows = re.findall(r"^\| (`.*) \| (.*) \|$", GUIDE.read_text().split("## What differs")[0], re.MULTILINE)
    assert len(rows) > 15
    text = " ".join(new for _, new in rows)
    known = {*GenerationOptions.__annotations__, *RopeOptions.__annotations__}
    for method in (Llama.__init__, Llama.__call__, Llama.generate, Llama.tokenize, Llama.eval):
        known |= {*inspect.signature(method).parameters}
    with Llama(tiny_model, n_ctx=64, n_threads=1, h2o=None) as llm:
        llm.eval(PROMPT)
        for name in set(re.findall(r"`([a-z_]{3,})[`(]", text)) - {"llm", "next"}:
            assert name in known or hasattr(llm, name), name
    assert set(re.findall(r"h2o_llama\.(\w+)", text)) <= set(h2o_llama.__all__)
    assert set(re.findall(r"\b([a-z_]+)=", text)) <= known


DEFAULTS = """
seed=0xFFFFFFFF, split_mode=1, tensor_split=None, vocab_only=False, kv_overrides=None, n_threads_batch=None,
rope_scaling_type=-1, pooling_type=-1, rope_freq_base=0.0, rope_freq_scale=0.0, yarn_ext_factor=-1.0, yarn_orig_ctx=0,
attention_type=-1, logits_all=False, embedding=False, offload_kqv=True, op_offload=None, swa_full=None, no_perf=False,
lora_base=None, last_n_tokens_size=64, lora_scale=1.0, lora_path=None, numa=False, chat_format=None, chat_handler=None,
type_k=None, draft_model=None, tokenizer=None, type_v=None, spm_infill=False"""
TABLE = {
    f"opened({DEFAULTS})": "opened()",
    "llm.create_embedding('a', model=None)": "llm.create_embedding('a')",
    "opened(logits_all=True)": "opened()",
    "opened(offload_kqv=False)": "leave it out",
    "opened(vocab_only=True)": r"Model\(path\) has no context",
    "opened(flash_attn=True)": "opened(flash_attn='on')",
    "opened(type_k=8)": "opened(type_k='q8_0')",
    "opened(chat_format='chatml')": "opened(chat_template='chatml')",
    "opened(chat_format='llama-2')": "pass a chat_template=",
    "opened(rope_scaling_type=2)": "opened(rope_scaling_type='yarn')",
    "opened(split_mode=0)": "pass main_gpu=",
    "opened(draft_model=0)": "pass draft=15",
    "opened(chat_handler=0)": "pass mmproj=",
    "opened(pooling_type=1)": r"pass pooling_type= to embed\(\)",
    "opened(lora_path='a')": "pass lora=PATH",
    "opened(lora_scale=2.0)": r"lora=\[\(PATH, scale\)\]",
    "LlamaGrammar.from_string('root ::= \"a\"', verbose=False)": "LlamaGrammar.from_string('root ::= \"a\"')",
    "opened(attention_type=1)": "the model's own is used",
    "llm.n_ctx()": "llm.n_ctx",
    "llm.token_eos()": "llm.token_eos",
    "llm.token_nl()": "use tokenize",
    "llm.tokenize(b'a<|im_start|>', False, True)": "[97, 257]",
    "llm.detokenize([97], prev_tokens=[97])": "detokenize all tokens together",
    "llm('a', 128)": "by name, as max_tokens=128",
    "llm('a', max_tokens=-1, seed=1)['choices']": "llm('a', max_tokens=None, seed=1)['choices']",
    "llm('a', seed=1, suffix=None, tfs_z=1.0)['choices']": "llm('a', seed=1)['choices']",
    "llm('a', suffix='b')": "tokens for it into the prompt",
    "llm('a', tfs_z=0.5)": "use min_p",
    "next(llm.generate([97], temp=0, reset=False, penalize_nl=True))": "next(llm.generate([97], temperature=0))",
    "llm.generate([97], reset=True)": r"call reset\(\)",
    "llm.create_chat_completion([], functions=[])": "pass tools=",
    "llm.create_chat_completion([], model='gpt')": "leave it out",
    "llm.input_ids.tolist()": "llm.tokens.tolist()",
    "llm.load_state(llm.save_state())": "llm.restore(llm.snapshot())",
    "llm.scores": "use logits",
    "llm.sample": r"use next\(",
    "llm.set_cache": "pass library=",
    "llm.set_seed": "pass seed=",
    "llm.tokenizer": "use tokenize",
}
"""What programs written for llama-cpp-python say; and what that is here, or what the error says."""


@pytest.mark.parametrize(("there", "here"), TABLE.items())
def test_llama_cpp_pythons_calls(there: str, here: str, tiny_model: Path) -> None:
    def opened(**arguments: Any) -> Any:
        with Llama(tiny_model, n_ctx=64, n_threads=1, h2o=None, **arguments) as llm:
            return llm._state.engine.params, llm.model._rope, llm.chat_template

    with Llama(tiny_model, n_ctx=64, n_threads=1, h2o=None) as llm:
        llm.eval(PROMPT)
        names = {"llm": llm, "opened": opened, "LlamaGrammar": LlamaGrammar}
        if re.match(r"opened|LlamaG|\[|(next\()?llm", here):
            assert eval(there, names) == eval(here, names)
        else:
            with pytest.raises((TypeError, AttributeError), match=here):
                eval(there, names)
