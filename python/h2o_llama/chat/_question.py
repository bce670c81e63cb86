"""A question: what a model is given, and how its answer is read."""

import copy
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from h2o_llama import _core
from h2o_llama._prompt import Prompt, Tokens, shared_prefix
from h2o_llama._thoughts import check_think
from h2o_llama.config import H2OConfig
from h2o_llama.documents import ABOUT_A_DOCUMENT, document_messages
from h2o_llama.library._library import day_of
from h2o_llama.model import Model
from h2o_llama.models._messages import ChatImages
from h2o_llama.models._template import parsed_message
from h2o_llama.sequence._state import State
from h2o_llama.sequence.generating import DENSE_TAIL

OTHER = "…"
"""A question, and a document, without content."""

LONGEST_TAIL = 512
"""Tokens of the last turn that attend to everything, at most: half a chunk of the default size."""

Ids = NDArray[np.int32]


class _Turn(NamedTuple):
    """The last turn in a short prompt, where OTHER stands for all that was said before. Its text begins at `text`."""

    ids: Ids
    text: int
    start: int
    is_apart: bool  # no token from `start` on depends on those before


class Question:
    """What a model is asked, about a document or after messages. The last user's message is the question.

    It is rendered once; errors then name the `owner`. `kwargs` are `chat_template_kwargs`, `options` those of
    `ChatTemplate.apply`. `day` is the date that the template writes, by default today. A model without a chat template
    is asked about a document in plain text.
    """

    def __init__(
        self,
        owner: str,
        model: Model,
        messages: Sequence[Mapping[str, Any]],
        *,
        think: bool | int | None = None,
        kwargs: Mapping[str, Any] | None = None,
        day: str | None = None,
        **options: Any,
    ) -> None:
        self.owner, self.model, self.day = owner, model, day
        self.budget, kwargs = check_think(owner, think, kwargs)
        self._images = ChatImages(owner, model._projector, messages, model._image_folder)
        self.messages = self._images.messages
        self._options = {"kwargs": kwargs, **options}
        self._is_plain = False

    @classmethod
    def about(cls, owner: str, model: Model, document: str, question: str = OTHER, **options: Any) -> Self:
        """A question about a document. `options` are those of a `Question`."""
        asked = cls(owner, model, document_messages(document, question), **options)
        asked._is_plain = model.chat_template is None
        return asked

    def again(self, question: str) -> Self:
        """Another question, in the place of this one. The text before it is not rendered again, where that is safe."""
        other = self._changed()
        other.messages = [*self.messages[:-1], {"role": "user", "content": question}]
        turn = self._turn
        if turn.is_apart:
            ids, form = other._render([*map(_shortened, self.messages[:-1]), other.messages[-1]])
            if np.array_equal(ids[: turn.start], turn.ids[: turn.start]):
                begin = self._rendered[0][: self._n_before(turn.start)]
                other._rendered = np.concatenate([begin, ids[turn.start :]]), form
                other._turn = turn._replace(ids=ids)
        return other

    def on_known_day(self, state: State) -> Self:
        """The same on the day on which it continues most of a known text; today if there is none."""
        if self._is_plain or not self.model._template.tells_day:
            return self
        days: dict[str, Self] = {}

        def ids_on(day: str) -> Ids:
            other = days[day] = self._changed()
            other.day = day
            return other._rendered[0]

        with state.used() as context:
            now = context.tokens
        best = day_of(state.engine.library, state.engine.origin, self._rendered[0], ids_on, now, state.day)
        state.day = best or date.today().isoformat()
        return self if best is None else days[best]

    # --- its prompt

    @cached_property
    def prompt(self) -> Prompt:
        """Its tokens, and rows of images."""
        prompt = self._images.insert_all(self._rendered[0].tolist())
        if len(prompt) == 0:
            raise ValueError(f"[{self.owner}] the chat template makes an empty prompt of these messages")
        return prompt

    @property
    def form(self) -> _core.ChatPrompt | None:
        """How the answer is written; None without a chat template."""
        return self._rendered[1]

    @cached_property
    def n_shared(self) -> int:
        """How many tokens of the prompt are before its last turn: questions after the same messages share them."""
        return len(self._images.insert(self._rendered[0][: self._n_before(self._turn.start)].tolist()))

    @property
    def shared(self) -> Prompt:
        """These tokens."""
        return self.prompt[: self.n_shared]

    @property
    def document(self) -> range:
        """The places of the first thing that was said before, up to the question's own text."""
        ids, turn = self._rendered[0], self._turn
        return range(shared_prefix(ids, turn.ids), self._n_before(turn.text))

    @property
    def dense_tail(self) -> int:
        """How many tokens at its end attend to everything."""
        tail = min(len(self.prompt) - self.n_shared, LONGEST_TAIL)
        return tail if self.form else max(tail, DENSE_TAIL)

    @property
    def stops(self) -> list[str]:
        """Strings before which the answer ends."""
        return self.form.stops if self.form else ["\nQuestion:"]

    # --- how it is rendered

    def _changed(self) -> Self:
        other = copy.copy(self)
        for name in ("_rendered", "_turn", "prompt", "n_shared"):
            other.__dict__.pop(name, None)
        return other

    def _render(self, messages: list[dict[str, Any]]) -> tuple[Ids, _core.ChatPrompt | None]:
        if self._is_plain:
            about, asked = (message["content"] for message in messages)
            text = f"{about.removeprefix(ABOUT_A_DOCUMENT)}\n\nQuestion: {asked}\nAnswer:"
            return np.array(self.model.tokenize(text), dtype=np.int32), None
        prompt = self.model._template.apply(self.owner, messages, day=self.day, **self._options)
        return np.array(prompt.tokens(self._images.marker, False), dtype=np.int32), prompt

    @cached_property
    def _rendered(self) -> tuple[Ids, _core.ChatPrompt | None]:
        """Token ids, with one for each image; and how the answer is written."""
        return self._render(self.messages)

    @cached_property
    def _turn(self) -> _Turn:
        ids, _ = self._rendered
        place = max((i for i, message in enumerate(self.messages) if message["role"] == "user"), default=0)
        before, after = list(map(_shortened, self.messages[:place])), self.messages[place:]
        if not before:
            return _Turn(ids, 0, 0, False)
        other = {**after[0], "content": "B" if str(after[0].get("content")).lstrip().startswith("A") else "A"}
        try:
            short, others = (self._render([*before, *turn])[0] for turn in (after, [other, *after[1:]]))
        except ValueError:  # a template may refuse them
            return _Turn(ids, 0, 0, False)
        text = shared_prefix(short, others)
        # a tokenizer reads what is between two special tokens as a whole
        start = next((i for i in range(text - 1, 0, -1) if self._is_special(short[i])), 0)
        is_apart = start > 0 and np.array_equal(ids[len(ids) - len(short) + start :], short[start:])
        return _Turn(short, text, start if is_apart else text, is_apart)

    def _is_special(self, token: np.int32) -> bool:
        return bool(token >= 0) and not self.model._handle.detokenize([int(token)], False)

    def _n_before(self, place: int) -> int:
        """Of the prompt's token ids, where `place` is in the short prompt."""
        return max(0, len(self._rendered[0]) - len(self._turn.ids) + place)


def _shortened(message: Mapping[str, Any]) -> dict[str, Any]:
    """With OTHER in the place of its text."""
    content = message.get("content")
    begin = ABOUT_A_DOCUMENT if str(content).startswith(ABOUT_A_DOCUMENT) else ""
    return {**message, "content": begin + OTHER} if content else {**message}


def check_length(model: Model, h2o: Any, name: str, text: str, n_tokens: int, n_answer: int, n_ctx: int = 0) -> None:
    """Raise ValueError, with what helps, if n_ctx or the model are too small for a text, a question and an answer."""
    n_trained, n, evicts = model.n_ctx_train, n_tokens + n_answer, isinstance(h2o, H2OConfig) and h2o.evict
    has = f"{name} has {n_tokens:,} tokens{f', its answer up to {n_answer:,}' if n_answer > 1 else ''}, but"
    if n > n_trained and not (evicts and h2o.has_bounded_memory):
        n_bytes = len(text.encode(errors="replace")) * 9 // 10 * max(0, n_trained - n_answer) // n_tokens
        helps = [f"cut it (`head -c {n_bytes} FILE > part.txt`)", "take a model that reads longer texts"]
        helps[0] = "cut it" if not text or name.lower().endswith(".pdf") else helps[0]
        scaled = f"{model.metadata.get('general.architecture')}.rope.scaling.type" in model.metadata or model._rope
        if n <= 4 * n_trained and not scaled and not model._handle.n_learned_positions:
            scale = 0.5 if n <= 2 * n_trained else 0.25
            helps += [f"or scale positions: rope_scaling_type=yarn rope_freq_scale={scale} yarn_orig_ctx={n_trained}"]
        last = "evict reads all of it, but an answer about dropped tokens is a guess"
        last = "cold_store and dense_layers do not help, as they keep the positions of all tokens" if evicts else last
        raise ValueError(f"{has} this model reads {n_trained:,}: {', '.join(helps)}; {last}")
    if n_ctx and n > n_ctx:
        raise ValueError(f"{has} n_ctx={n_ctx} holds fewer: use a larger n_ctx, or a shorter text")


def messages_of(model: Model, tokens: Tokens, day: str) -> list[dict[str, Any]]:
    """The messages of a chat that was read, by what the chat template writes between them on a day; or none."""
    if model.chat_template is None or np.any(np.asarray(tokens) < 0):  # an image has no text
        return []
    roles = ("system", "user", "assistant", "user")
    chat = [{"role": role, "content": f"\uf8f0{i}"} for i, role in enumerate(roles)]
    try:
        form, other = (model._template.apply("chat", each, day=day) for each in (chat, chat[1:]))
        begin, to_user, to_model, to_next, _ = re.split("\uf8f0\\d", form.text)
    except ValueError:  # a template may refuse such a chat, or leave out a part
        return []
    first, *turns = model.detokenize(tokens, special=True).decode(errors="replace").split(to_model)
    about = first.partition(begin)[2] if begin in first else first
    before, is_told, question = about.rpartition(to_user)
    about, question = (before, question) if is_told else ("", about.removeprefix(other.text.partition("\uf8f01")[0]))
    if not turns:  # a document: what ends its message is there
        n = next((n for n in range(len(to_user), 0, -1) if question.endswith(to_user[:n])), 0)
        return [{"role": "system", "content": question[: len(question) - n]}] if ABOUT_A_DOCUMENT in question else []
    messages = [{"role": "system", "content": about}] if about else []
    for turn in turns:
        answer, _, following = turn.partition(to_next)
        with suppress(ValueError):  # a text without the model's format is an answer all the same
            parser = form.parser("")
            parser.update(answer, False)
            answer = parsed_message(parser).get("content") or answer
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        question = following
    return messages
