"""What programs written for llama-cpp-python say, in the terms of this package."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class Number(int):
    """A number that can be called, as the method of that name there."""

    def __call__(self) -> int:
        return int(self)


_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "embedding": (True, False),
    "logits_all": (True, False),
    "offload_kqv": (True,),
    "split_mode": (1,),
    **dict.fromkeys(("attention_type", "pooling_type"), (-1,)),
    "verbose": (True, False),
    "last_n_tokens_size": (64,),
    "penalize_nl": (True,),
    **dict.fromkeys(("vocab_only", "numa", "reset", "no_perf", "return_count", "spm_infill"), (False,)),
    **dict.fromkeys(("tfs_z", "lora_scale"), (1.0,)),
    **dict.fromkeys(("additional_files", "cache_dir", "local_dir", "lora_base", "lora_path", "model"), (None,)),
    **dict.fromkeys(("chat_handler", "draft_model", "op_offload", "swa_full", "tokenizer"), (None,)),
    **dict.fromkeys(("function_call", "functions", "prev_tokens", "suffix"), (None,)),
}
"""Values for which nothing has to be done here."""

_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 20: "iq4_nl", 30: "bf16"}
_VALUES: dict[str, dict[Any, Any]] = {
    "chat_format": {"chatml": "chatml", None: None},
    "flash_attn": {True: "on", False: "off"},
    "type_k": {None: "auto", **_TYPES},
    "type_v": {None: "auto", **_TYPES},
    "max_tokens": {-1: None},
    "seed": {0xFFFFFFFF: None},
    "rope_scaling_type": {-1: None, 0: "none", 1: "linear", 2: "yarn"},
    "rope_freq_base": {0.0: None},
    "rope_freq_scale": {0.0: None},
    "yarn_ext_factor": {-1.0: None},
    "yarn_orig_ctx": {0: None},
}
"""The values here, by theirs."""

_NAMES = {"chat_format": "chat_template", "temp": "temperature", "add_bos": "add_special", "special": "parse_special"}

ADVICE = {
    "attention_type": "the model's own is used: leave it out",
    "additional_files": "the parts of a file come along by themselves; pass mmproj= for images",
    "cache_dir": "set HF_HOME",
    "chat_format": "the model's own template is used: leave it out, or pass a chat_template=",
    "chat_handler": "pass mmproj=",
    "create_chat_completion_openai_v1": "use create_chat_completion(), whose answers are dicts",
    "draft_model": "pass draft=15 to the call",
    "eval_logits": "use logits, after eval(tokens, logits='all')",
    "function_call": "pass tool_choice=",
    "functions": "pass tools=",
    "last_n_tokens_size": "penalties look at 64 tokens: leave it out",
    "local_dir": "set HF_HOME",
    "logits_to_logprobs": "pass logprobs= to the call",
    "longest_token_prefix": "use h2o_llama.shared_prefix()",
    "lora_base": "adapters are added to the weights that the model has: leave it out",
    "lora_path": "pass lora=PATH",
    "lora_scale": "pass lora=[(PATH, scale)]",
    "model": "a Llama has one model: leave it out",
    "numa": "start the program by numactl",
    "offload_kqv": "K and V are where their layers are: leave it out",
    "pooling_type": "pass pooling_type= to embed(), such as 'mean'",
    "prev_tokens": "detokenize all tokens together",
    "return_count": "use create_embedding(), whose usage counts tokens",
    "reset": "generate() appends to the sequence: call reset() or reuse(tokens) before",
    "sample": "use next(llm.generate([]))",
    "scores": "use logits, after eval(tokens, logits='all')",
    "set_cache": "pass library= to Llama, or use snapshot()",
    "set_seed": "pass seed= to the call, or to Llama",
    "split_mode": "pass main_gpu=, the only GPU, or tensor_split=; rows are not split",
    "suffix": "write the model's own tokens for it into the prompt",
    "tfs_z": "tail-free sampling is not offered: use min_p or typical_p",
    "token_nl": "use tokenize('\\n', add_special=False)",
    "tokenizer": "use tokenize() and detokenize()",
    "vocab_only": "h2o_llama.Model(path) has no context",
}
"""What to do here in the place of a name there."""


def understands(method: F) -> F:
    """Let a method take llama-cpp-python's arguments and values. Raises TypeError that says what to do."""
    of, *parameters = signature(method).parameters.values()
    first = [p.name for p in (of, *parameters) if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    known = {p.name for p in parameters}  # not the object's own name

    @wraps(method)
    def call(*args: Any, **given: Any) -> Any:
        if len(args) > len(first):
            raise TypeError(f"arguments after {first[-1]!r} are given by name, as max_tokens=128, got {args[-1]!r}")
        for name in [name for name in given if name in _VALUES or name not in known]:
            value = given.pop(name)
            if any(_is_same(value, same) for same in _WITHOUT_EFFECT.get(name, ())):
                continue
            ours = [new for same, new in _VALUES.get(name, {}).items() if _is_same(value, same)]
            if not ours and name in ADVICE and name not in known:
                raise TypeError(f"there is no argument {name!r}: {ADVICE[name]}")
            given[name if name in known else _NAMES.get(name, name)] = ours[0] if ours else value
        return method(*args, **given)

    return cast(F, call)


def _is_same(value: Any, known: Any) -> bool:
    return type(value) is type(known) and bool(value == known)
