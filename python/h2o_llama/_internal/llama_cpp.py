"""What programs written for llama-cpp-python say, in the terms of this package."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "embedding": (True, False),
    "logits_all": (True, False),
    "offload_kqv": (True,),
    "vocab_only": (False,),
    "suffix": (None,),
    "tfs_z": (1.0,),
    "chat_handler": (None,),
    "draft_model": (None,),
}
"""Values for which nothing has to be done here."""

_NAMES = {"chat_format": "chat_template", "temp": "temperature", "add_bos": "add_special", "special": "parse_special"}

_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 20: "iq4_nl", 30: "bf16"}
_VALUES: dict[str, dict[Any, Any]] = {
    "flash_attn": {True: "on", False: "off"},
    "type_k": _TYPES,
    "type_v": _TYPES,
    "max_tokens": {-1: None},
}

ATTRIBUTES = {"save_state": "snapshot", "load_state": "restore", "input_ids": "tokens", "eval_tokens": "tokens"}
ADVICE = {
    "offload_kqv": "K and V are where their layers are: leave it out",
    "vocab_only": "h2o_llama.Model(path) has no context",
    "suffix": "write the model's own tokens for it into the prompt",
    "tfs_z": "tail-free sampling is not offered: use min_p or typical_p",
    "chat_handler": "pass mmproj=",
    "draft_model": "pass draft=15 to the call",
    "functions": "pass tools=",
    "function_call": "pass tool_choice=",
    "scores": "use logits, after eval(tokens, logits='all')",
    "eval_logits": "use logits, after eval(tokens, logits='all')",
    "sample": "use next(llm.generate([]))",
    "set_cache": "pass library= to Llama, or use snapshot()",
    "set_seed": "pass seed= to the call, or to Llama",
    "tokenizer": "use tokenize() and detokenize()",
    "create_chat_completion_openai_v1": "use create_chat_completion(), whose answers are dicts",
}
"""What to do here in the place of a name there."""


def understands(*names: str) -> Callable[[F], F]:
    """Let a method take these of llama-cpp-python's arguments and values. Raises TypeError that says what to do."""

    def decorate(method: F) -> F:
        @wraps(method)
        def call(*args: Any, **given: Any) -> Any:
            for name in names:
                if name not in given:
                    continue
                value = given.pop(name)
                if name in _WITHOUT_EFFECT or name in ADVICE:
                    if not any(
                        type(value) is type(known) and value == known for known in _WITHOUT_EFFECT.get(name, ())
                    ):
                        raise TypeError(f"there is no argument {name!r}: {ADVICE[name]}")
                    continue
                known = _VALUES.get(name, {})
                given[_NAMES.get(name, name)] = known[value] if isinstance(value, int) and value in known else value
            return method(*args, **given)

        return cast(F, call)

    return decorate
