"""Answering a chat, in OpenAI's shapes."""

import collections.abc
import importlib
import importlib.util
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, cast, overload

from typing_extensions import NotRequired, Unpack

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.llama_cpp import understands
from h2o_llama.chat import _generation
from h2o_llama.chat._question import Question
from h2o_llama.models import _messages
from h2o_llama.models._template import parse_deltas, parsed_message
from h2o_llama.sampling import check_names
from h2o_llama.sequence._state import HasState, State

Messages = collections.abc.Sequence[_messages.Message]
ChatFinishReason = Literal["stop", "length", "tool_calls"] | None


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]


ResponseFormat = Mapping[str, Any] | type[Any]
"""A dict such as {"type": "json_object"}, or a pydantic model."""


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: _generation.ChatLogprobs | None
    finish_reason: ChatFinishReason


class ChatCompletion(_generation.AnswerHead):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: _generation.Usage
    warnings: NotRequired[list[str]]


class ChatChunkChoice(TypedDict):
    index: int
    delta: dict[str, Any]
    logprobs: _generation.ChatLogprobs | None
    finish_reason: ChatFinishReason


class ChatCompletionChunk(_generation.AnswerHead):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: NotRequired[_generation.Usage]
    warnings: NotRequired[list[str]]


@dataclass
class ChatRun:
    """One answer, at once or as a stream of chunks. The parser tells content, reasoning and tool calls apart."""

    generation: _generation.Generation
    parser: _core.ChatParser | None  # None: all of the text is content
    tools: collections.abc.Sequence[Mapping[str, Any]] = ()
    texts: list[str] = field(default_factory=list)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    is_understood: bool = True  # whether all of the text has the model's format

    def stream(self) -> Iterator[ChatCompletionChunk]:
        """A chunk with the role, chunks with new text, and one with the reason of the end."""
        yield self._chunk({"role": "assistant"})
        told, waiting = list[str](), list[_generation.TokenLogprobs]()
        for piece in self.generation.pieces():
            waiting += piece.logprobs
            for delta in self._add(piece.text):
                told += _said(delta)
                yield self._chunk(delta, waiting)
                waiting = []
        for delta in self._finish("", told):
            yield self._chunk(delta, waiting)
            waiting = []
        end = self._finish_reason()
        yield self._warned({**self._chunk({}, waiting, end), "usage": self.generation.usage()})

    def complete(self, pieces: collections.abc.Sequence[_generation.Piece] | None = None) -> ChatCompletion:
        """All at once; of a generation that has ended, by its pieces."""
        pieces = self.generation.all_pieces() if pieces is None else pieces
        self._finish("".join(piece.text for piece in pieces), [])
        logprobs = self._logprobs([t for piece in pieces for t in piece.logprobs])
        end = self._finish_reason()
        choice = {"index": 0, "message": self._message(), "logprobs": logprobs, "finish_reason": end}
        told = {"object": "chat.completion", "choices": [choice], "usage": self.generation.usage()}
        answer: ChatCompletion = self._warned({**self.generation.head, **told})
        return answer

    def _add(self, text: str) -> list[dict[str, Any]]:
        """The text's additions to the message. Text that cannot be parsed yet may be later."""
        if not text:
            return []
        self.texts.append(text)
        if self.parser is None:
            return [{"content": text}]
        try:
            return parse_deltas(self.parser, text, True)
        except ValueError:
            return []

    def _finish(self, text: str, told: list[str]) -> list[dict[str, Any]]:
        """The additions by the end: also the rest of a text that is not in the model's own format."""
        self.texts.append(text)
        if self.parser is None:
            return []
        try:
            return parse_deltas(self.parser, text, self.generation.finish_reason == "length")
        except ValueError:
            self.is_understood = False
        whole, end = "".join(self.texts), 0
        for said in told:
            found = whole.find(said, end)
            end = found + len(said) if found >= 0 else end
        return [{"content": whole[end:]}]

    def _parsed(self) -> dict[str, Any]:
        """The message, unless max_tokens has cut off a call in it."""
        message = parsed_message(self.parser) if self.parser is not None and self.is_understood else {}
        try:
            called = [call["function"] for call in message.get("tool_calls", [])]
            self.calls = [(call["name"], json.loads(call["arguments"])) for call in called]
        except ValueError:
            return {}
        return message

    def _warned(self, end: Any) -> Any:
        """With what the grammar does not keep of tools' schemas; and, by jsonschema, what of it calls do not keep."""
        form = self.generation._form
        warnings = form.left_out if form else []
        if warnings and importlib.util.find_spec("jsonschema"):
            schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in self.tools}
            jsonschema: Any = importlib.import_module("jsonschema")
            for name, arguments in self.calls:
                with suppress(jsonschema.SchemaError):
                    found = jsonschema.validators.validator_for(schemas[name])(schemas[name]).iter_errors(arguments)
                    warnings += [f"a call of {name}: {error.json_path}: {error.message:.200}" for error in found]
        return {**end, "warnings": warnings} if warnings else end

    def _message(self) -> ChatMessage:
        message = self._parsed() or {"content": "".join(self.texts)}
        if message.get("tool_calls") and not message.get("content"):
            message["content"] = None
        return cast(ChatMessage, {"role": "assistant", **message})

    def _finish_reason(self) -> ChatFinishReason:
        if self.generation.finish_reason == "stop" and self._parsed().get("tool_calls"):
            return "tool_calls"
        return self.generation.finish_reason

    def _logprobs(self, tokens: list[_generation.TokenLogprobs]) -> _generation.ChatLogprobs | None:
        if self.generation.n_top_logprobs is None:
            return None
        return _generation.chat_logprobs(self.generation._state.engine.model._handle, tokens)

    def _chunk(
        self, delta: dict[str, Any], tokens: list[_generation.TokenLogprobs] | None = None, end: ChatFinishReason = None
    ) -> ChatCompletionChunk:
        logprobs = self._logprobs(tokens) if tokens else None
        return {
            **self.generation.head,  # type: ignore[typeddict-item]  # without usage
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": end}],
        }


def _said(delta: dict[str, Any]) -> list[str]:
    """The model's own words in a delta."""
    calls = [call["function"].get("arguments") for call in delta.get("tool_calls", [])]
    return [text for text in (delta.get("reasoning_content"), delta.get("content"), *calls) if text]


class ChatOptions(_generation.GenerationOptions, total=False):
    """Keyword arguments of `create_chat_completion`, but `stream`."""

    tools: collections.abc.Sequence[_messages.Tool] | None
    tool_choice: str | Mapping[str, Any] | None
    response_format: ResponseFormat | None
    logprobs: bool | None
    top_logprobs: int | None
    parallel_tool_calls: bool | None
    chat_template_kwargs: Mapping[str, Any] | None
    think: bool | int | None


@overload
def create_chat_completion(
    sequence: HasState, messages: Messages, *, stream: Literal[False] = ..., **options: Unpack[ChatOptions]
) -> ChatCompletion: ...
@overload
def create_chat_completion(
    sequence: HasState, messages: Messages, *, stream: Literal[True], **options: Unpack[ChatOptions]
) -> Iterator[ChatCompletionChunk]: ...
@overload
def create_chat_completion(
    sequence: HasState, messages: Messages, *, stream: bool, **options: Unpack[ChatOptions]
) -> ChatCompletion | Iterator[ChatCompletionChunk]: ...


@understands
def create_chat_completion(
    sequence: HasState,
    messages: Messages,
    *,
    tools: collections.abc.Sequence[_messages.Tool] | None = None,
    tool_choice: str | Mapping[str, Any] | None = None,
    response_format: ResponseFormat | None = None,
    stream: bool | None = False,
    logprobs: bool | None = False,
    top_logprobs: int | None = None,
    parallel_tool_calls: bool | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    think: bool | int | None = None,
    **options: Unpack[_generation.GenerationOptions],
) -> ChatCompletion | Iterator[ChatCompletionChunk]:
    """Answer a chat, as OpenAI's chat completions do. The sequence becomes this chat.

    In messages, names of special tokens are text, and so is markup such as Qwen's <tool_call> that the template writes
    and the vocabulary counts as text, except in what the assistant said. They are tokens where the template writes
    them.
    The sequence keeps the prefix that it shares with the previous chat, so a turn costs only its new tokens:
    `usage["prompt_tokens_details"]["cached_tokens"]` says how much that was.

    Raises ValueError, H2OError or OSError as `apply_chat_template` and `generate`; ValueError too if a schema,
    a grammar or an image is invalid.

    Parameters
    ----------
    messages, tools, chat_template_kwargs
        As in `apply_chat_template`. With `Llama(mmproj=)` a message's content may have parts {"type": "image_url",
        "image_url": {"url"}} besides text: a data URL of a PNG, JPEG, GIF or BMP file; or its path or file URL, in
        `Llama(allowed_image_folder=)`.
    tool_choice : str or dict, optional
        "auto" (default with tools), "none", "required", or {"type": "function", "function": {"name"}} for that one.
    response_format : dict or pydantic model, optional
        {"type": "json_object"} for JSON, with "schema" for JSON of that schema; or OpenAI's {"type": "json_schema",
        "json_schema": {"schema"}}. Every schema may be a pydantic model, which is a response_format, too.
    stream : bool, default False
        Return an iterator of chunks instead of one dict.
    logprobs : bool, default False
        Tell the log-probability of every generated token.
    top_logprobs : int, optional
        With `logprobs`: how many of the most probable tokens are reported with each one.
    parallel_tool_calls : bool, optional
        Let the model call several tools in one answer; by default where its template can write several calls.
    think : bool, int or None, default None
        Whether the model thinks first, or the most tokens of thoughts; None is as its template has it. By default
        thoughts have up to 1,024 tokens, and never more than half of the room in the context. Then their end is
        written, and the answer follows. False is 0.
    dense_tail : int, optional
        How many tokens at the end of the prompt attend to everything, as in `eval`. By default the last user message
        and the template's text after it, but no more than 512 tokens.
    **options
        max_tokens (thoughts apart), stop, progress, draft, reuse, timeout, stopping_criteria and sampling options, as
        in `create_completion`. A grammar is not for chats with tools or a response_format, which make one themselves.

    Returns
    -------
    dict, or iterator of dict
        {"id", "object": "chat.completion", "created", "model", "choices": [{"index", "message": {"role", "content",
        "tool_calls"}, "logprobs", "finish_reason"}], "usage"}. finish_reason is "stop", "length" or "tool_calls"; the
        content is None if there are only tool calls, and a model's thoughts are "reasoning_content". Chunks have a
        "delta" instead of the message; only the last has a finish_reason, and usage. "warnings" name the keywords of
        tools' schemas that the grammar does not keep, and with jsonschema the calls that break them.

    Examples
    --------
    >>> with Llama(model, n_ctx=256, chat_template="chatml") as llm:
    ...     answer = llm.create_chat_completion([{"role": "user", "content": "Who?"}], max_tokens=4)
    >>> answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]
    ('length', 4)
    """
    state = sequence._state
    owner, model = f"{state.owner}.create_chat_completion", state.engine.model
    check_names(owner, options, _generation.GenerationOptions)
    known, choice = _messages.choose_tools(owner, _messages.check_tools(owner, tools), tool_choice)
    schema = _messages.response_schema(owner, response_format)
    if options.get("grammar") is not None and (known or schema):
        raise ValueError(f"[{owner}] grammar must not be given together with tools or response_format")
    question = Question(
        owner,
        model,
        _messages.check_messages(owner, messages, images=True),
        think=think,
        kwargs=chat_template_kwargs,
        tools=known,
        tool_choice=choice,
        parallel_tool_calls=check.optional_flag(owner, "parallel_tool_calls", parallel_tool_calls),
        json_schema=schema,
    )
    n_top = _check_top_logprobs(owner, logprobs, top_logprobs)
    answer = answer_to(owner, state, question.on_known_day(state), n_top, **options)
    answer.tools = known
    return answer.stream() if check.optional_flag(owner, "stream", stream) else answer.complete()


def answer_to(
    owner: str,
    state: State,
    question: Question,
    n_top_logprobs: int | None = None,
    **options: Unpack[_generation.GenerationOptions],
) -> ChatRun:
    """The answer to a question."""
    said = question.messages[-1]
    state.question = said["content"] if said["role"] == "user" and isinstance(said["content"], str) else ""
    generation = _generation.Generation(owner, state, question, n_top_logprobs, **options)
    return ChatRun(generation, question.form.parser(f"call_{uuid.uuid4().hex}_") if question.form else None)


def _check_top_logprobs(owner: str, logprobs: bool | None, top_logprobs: int | None) -> int | None:
    """How many most probable tokens to name; None: no log-probabilities."""
    if not check.optional_flag(owner, "logprobs", logprobs):
        if top_logprobs is not None:
            raise ValueError(f"[{owner}] top_logprobs needs logprobs=True")
        return None
    return 0 if top_logprobs is None else check.integer(owner, "top_logprobs", top_logprobs, 0, 20)
