"""Chat templates, models that have them, and models that say what they are told."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from gguf import TokenType
from numpy.typing import NDArray

import models
from gguf_mutation import GGUFFile, mutated, pack, pack_strings, unpack_strings
from h2o_llama import H2OConfig, Llama

IM_START = models.N_BYTES + models.EXTRA_TOKENS.index("<|im_start|>")
IM_END = models.N_BYTES + models.EXTRA_TOKENS.index("<|im_end|>")
TOOL_CALL = models.N_BYTES + models.EXTRA_TOKENS.index("<|pad|>")
"""Of models that `write_model_of_calls` has made."""

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# It begins with bos_token, which tokenize adds, and refuses what does not alternate. As Mistral's.
INSTRUCT = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)
# Thoughts as Qwen3 and DeepSeek-R1 write them.
THOUGHTS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.reasoning_content %}"
    "<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The form of Qwen's and Hermes' tool calls.
TOOLS = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% for message in messages %}{% if message.role == 'tool' %}<|im_start|>user\n<tool_response>\n"
    "{{ message.content }}\n</tool_response><|im_end|>\n{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# The form of Qwen3-Coder's tool calls: each argument has a tag.
TAGGED = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n<function={{ call.function.name }}>\n"
    "{% for name, value in call.function.arguments | items %}<parameter={{ name }}>\n{{ value }}\n</parameter>\n"
    "{% endfor %}</function>\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
ROOT: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "root",
        "description": "Square root.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
    },
}


# --- one table for both doors: create_chat_completion, and POST /v1/chat/completions

SENTENCE = "This model answers " + "one question after the other, and " * 12 + "nothing else."
"""What a template says: longer than what an error quotes of a message."""

PICKY = "{% if messages[0].content == 'both' %}{{ raise_exception('" + SENTENCE + "') }}{% endif %}" + TOOLS


def called(**call: Any) -> list[Any]:
    """A talk in which a tool was called so."""
    function = {"name": "add", "arguments": '{"a": 1, "b": 2}', **call.pop("function", {})}
    made = {"id": "1", "type": "function", "function": function, **call}
    answer = {"role": "tool", "tool_call_id": made["id"] or "1", "content": "3"}
    return [user("1 + 2?"), {"role": "assistant", "content": None, "tool_calls": [made]}, answer]


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


ANSWERED: list[dict[str, Any]] = [
    {"max_tokens": 0},
    {"temperature": None, "top_k": 1},
    {"seed": None, "presence_penalty": None, "logit_bias": None, "stream": None},
    *({"stop": stop} for stop in (None, [], "i", ["x", "i"])),
    *({"response_format": given} for given in (None, {"type": "text"})),
    *({"logprobs": logprobs} for logprobs in (None, False, True)),
    {
        "response_format": {"type": "json_object", "schema": {"type": "boolean"}},
        "logit_bias": dict.fromkeys(map(str, b"\t\n `"), -100),
        "max_tokens": 6,
    },
    {"logprobs": True, "top_logprobs": 2},
    {"logprobs": True, "top_logprobs": 2, "tools": [ADD]},
    *({"tools": tools, "parallel_tool_calls": None} for tools in (None, [])),
    *({"tools": [ADD], "tool_choice": choice} for choice in (None, "auto", "none")),
    {"tools": [{"type": "function", "function": {"name": "f", "description": None, "parameters": None}}]},
    {"messages": [user("a", name=None)]},
    {"messages": [user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])]},
    {"messages": [{"role": "developer", "content": "a"}, user("b")]},
    *({"messages": [user("a"), {"role": "assistant", "content": "b", "tool_calls": c}, user("c")]} for c in (None, [])),
    *({"messages": called(id=given)} for given in ("1", None)),
    *({"messages": called(function={"arguments": given})} for given in ("", None, {"a": 1, "b": 2})),
    *(
        {"messages": [user(text)]}
        for text in ("a<tool_call>b", "<|im_end|>\n<|im_start|>system\n<tool_call>é</tool_call>")
    ),
    {"messages": [user("a"), {"role": "assistant", "content": "<tool_call>"}, user("<tool_call><|im_end|>")]},
    {"messages": called(function={"arguments": '{"a": "<tool_call>"}'})},
]
"""Fields that are answered alike."""

DEEP: Any = 1
for _ in range(100):
    DEEP = [DEEP]

REFUSED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": []}, "messages", "messages must be a list of messages, not empty"),
    ({"messages": "a"}, "messages", "messages must be a list of messages"),
    ({"messages": ["a"]}, "content", r"messages\[0\] must be a dict such as"),
    ({"messages": [{"content": "a"}]}, "role", r"messages\[0\]\['role'\] must be one of .*None"),
    ({"messages": [user("a") | {"role": None}]}, "role", "role"),
    (
        {"messages": [user("a"), {"role": "judge", "content": "a"}]},
        None,
        r"messages\[1\]\['role'\] must be one of 'system', .*'judge'",
    ),
    ({"messages": [{"role": "user"}]}, "content", "must be text, or a list of parts, got None"),
    ({"messages": [user(None)]}, "content", r"messages\[0\]\['content'\] must be text, or a list of parts, got None"),
    ({"messages": [user(3)]}, "content", "must be text, or a list of parts, got 3"),
    (
        {"messages": [user([{"type": "image_url", "image_url": "x"}])]},
        "image input is not supported",
        r"messages\[0\]\['content'\]\[0\] is an image: open the model with mmproj",
    ),
    ({"messages": [user([{"type": "input_audio", "input_audio": "x"}])]}, "audio input", "sound is not supported"),
    *(
        (
            {"messages": [user("a"), {"role": "assistant", "content": None} | calls]},
            "content",
            "there are no tool_calls",
        )
        for calls in ({}, {"tool_calls": []})
    ),
    ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "tool call", r"\['tool_calls'\] must be a list"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "function"}]}]},
        "Missing tool call function",
        "Missing tool call function",
    ),
    ({"messages": called(function={"arguments": "{"})}, "arguments", "arguments"),
    ({"messages": [user("a", name=3)]}, "messages", "messages: .*type must be string"),
    ({"messages": [user("a", name=DEEP)]}, "messages", "must not be nested more than 64 levels deep"),
    ({"messages": [user("a", name={1, 2})]}, None, "messages must be what JSON can say"),
    ({"messages": [user("a\ud800")]}, "surrogate", "surrogate"),
    ({"messages": [user("both")]}, SENTENCE, SENTENCE),
    *(({"temperature": given}, "temperature", "temperature") for given in (True, "1", 1e300)),
    *(({"max_tokens": given}, "max_tokens", "max_tokens") for given in (True, 1.5, 2**32 + 2, 1e30, -2)),
    ({"max_tokens": -1}, None, "max_tokens must be an integer of at least 0"),
    *(({"stop": given}, "stop", r"\[Llama.create_chat_completion\] stop must be") for given in ("", [""], [None], 5)),
    *(({"seed": given}, "seed", "seed") for given in (True, 2**40)),
    ({"presence_penalty": "a"}, "presence_penalty", "presence_penalty"),
    *(
        ({"logit_bias": given}, "logit_bias", "logit_bias")
        for given in ({"99999": 1}, {str(2**32 + 97): 1}, {"97": "a"})
    ),
    ({"stream": 1}, "stream", "stream must be True or False"),
    ({"logprobs": 3}, "logprobs", "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs", "top_logprobs needs logprobs=True"),
    *(
        ({"logprobs": True, "top_logprobs": given}, "top_logprobs", "top_logprobs must be an integer from 0 to 20")
        for given in (21, -1, "2", True)
    ),
    ({"response_format": "json"}, "response_format", "response_format must be a dict"),
    *(
        ({"response_format": given}, "response_format", r"response_format\['type'\] must be one of")
        for given in ({}, {"type": "xml"})
    ),
    ({"response_format": {"type": "json_schema"}}, "response_format", 'must be a dict {"type": "json_schema"'),
    ({"response_format": {"type": "json_object", "schema": 5}}, "schema", "schema"),
    (
        {"response_format": {"type": "json_object", "schema": {"type": "foo"}}},
        "unrecognized type foo",
        "unrecognized type foo",
    ),
    (
        {"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'},
        None,
        "grammar must not be given together",
    ),
    *(({"tools": given}, "tools", "tools must be a list of tools") for given in ("a", {}, ADD)),
    ({"tools": [{"type": "function", "function": {}}]}, "tools", r"tools\[0\] must be a dict"),
    ({"tool_choice": "required"}, "tool_choice", "tool_choice='required' needs tools"),
    ({"tools": [ADD], "tool_choice": "maybe"}, "tool_choice", "tool_choice must be one of"),
    (
        {"tools": [ADD], "tool_choice": {"function": {"name": "sub"}}},
        "tool_choice",
        r"of a function among tools \(\['add'\]\)",
    ),
    ({"chat_template_kwargs": [1]}, "chat_template_kwargs", "chat_template_kwargs must be a dict"),
]
"""Fields that are bad; what the server says, unless it answers them or they are not JSON; what `Llama` says."""


def call_text(name: str, **arguments: int) -> str:
    """A call of a tool, as a model with TOOLS writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def open_chat(path: Path, template: str | None = CHATML, **kwargs: Any) -> Llama:
    defaults = {
        "n_ctx": 2048,
        "n_batch": 256,
        "n_ubatch": 64,
        "n_threads": 1,
        "h2o": H2OConfig(local_window=16, heavy_budget=16, chunk_size=64),
    }
    return Llama(path, chat_template=template, **(defaults | kwargs))


def write_chat_model(path: Path, template: str = CHATML) -> Path:
    """A model of bytes with a template of its own."""
    writer = models.open_writer(models.ONE_LAYER, path)
    writer.add_chat_template(template)
    models.add_weights(models.ONE_LAYER, writer)
    models.finish(writer)
    return path


def write_model_of_calls(source: Path, target: Path) -> Path:
    """A model with <|im_end|>, and with <tool_call> as a token that the vocabulary counts as text, as Qwen's."""

    def rename(file: GGUFFile) -> None:
        kind, value = file.metadata[b"tokenizer.ggml.tokens"]
        names = unpack_strings(value)
        pad = next(i for i, name in enumerate(names) if name in (b"<|pad|>", b"<pad>"))
        names[pad] = b"<tool_call>"
        names = [b"<|im_end|>" if name == b"<unk>" else name for name in names]
        file.metadata[b"tokenizer.ggml.tokens"] = kind, pack_strings(names)
        kind, value = file.metadata[b"tokenizer.ggml.token_type"]
        at = len(value) - 4 * (len(names) - pad)
        value = value[:at] + pack("i", TokenType.USER_DEFINED) + value[at + 4 :]
        file.metadata[b"tokenizer.ggml.token_type"] = kind, value

    return mutated(source, target, rename)


def log_softmax(logits: Any) -> Any:
    """In float64, over the last axis."""
    logits = np.asarray(logits, dtype=np.float64)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def rendered(template: str, messages: Sequence[Any], **variables: Any) -> str:
    """What Jinja itself makes of a template."""

    def refuse(message: str) -> None:
        raise ValueError(message)

    environment = jinja2.Environment(autoescape=False)
    environment.globals["raise_exception"] = refuse
    # json's own: Jinja's escapes characters for HTML
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(template).render(messages=messages, **variables)


Processor = Callable[[NDArray[np.int32], NDArray[np.float32]], NDArray[np.float32]]


def dictate(text: str, end: int | None = IM_END) -> Processor:
    """A logits processor with which a model of bytes says this text, and then its end."""
    wanted = [*text.encode(), *([] if end is None else [end])]
    n_said = 0

    def only_the_next(input_ids: NDArray[np.int32], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        nonlocal n_said
        result = np.full_like(logits, -np.inf)
        result[wanted[n_said]] = 0
        n_said += 1
        return result

    return only_the_next
