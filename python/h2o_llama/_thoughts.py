"""The thoughts before an answer: their tokens, and their end."""

from collections.abc import Mapping
from typing import Any

from h2o_llama import _core
from h2o_llama._internal import check

MAX_THOUGHTS = 1024
"""The most tokens of thoughts, by default."""

_LEAD, _FINAL = "<|start|>assistant", "<|channel|>final<|message|>"
"""What Harmony writes before each part of an answer but the first, and before the last part."""

_LONGEST_TAG = 64


class Thoughts:
    """Follows the tokens of an answer. Their number is `n`, and `n_answer` that of the others.

    At the `budget`, or where the model would end its text among thoughts, the end of the thoughts is written for it,
    which does not count. `has_grammar`: the grammar describes thoughts, too.
    """

    def __init__(self, model: _core.Model, prompt: _core.ChatPrompt, budget: int, has_grammar: bool = False) -> None:
        start, ends, begun = prompt.thoughts
        self.budget = budget
        self.has_grammar = has_grammar
        self.n = self.n_answer = 0
        self.is_open = begun.rstrip().endswith(start)
        self.is_thought = self.is_open
        """Whether the last token was one, or markup before the answer."""
        self._model = model
        self._ends = [end.encode() for end in ends]
        self._is_harmony = start.startswith("<|channel|>")
        leads = ["", _LEAD] if self._is_harmony else [""]
        self._begins = [(lead + start).encode() for lead in leads]
        self._answers = [(lead + _FINAL).encode() for lead in leads] if self._is_harmony else []
        self._may_open = True
        self._said = b""  # since thoughts began or ended
        self._n_undecided = 0  # tokens of what may become the beginning of thoughts
        end = ends[0] + _LEAD + _FINAL if self._is_harmony else "\n" + ends[0]
        self._end = model.tokenize(end.encode(), False, True)
        self._waiting: list[int] = []  # of the end
        self.must_answer = False
        """Whether the end was written for it, and nothing after it: then the text does not end yet."""

    def leave_room(self, n_room: int, max_tokens: int | None) -> None:
        """Make the budget smaller where the context's last `n_room` tokens would not hold the answer, too."""
        n_answer = n_room // 2 if max_tokens is None else min(max_tokens, n_room // 2)
        self.budget = max(0, min(self.budget, n_room - n_answer - len(self._end)))

    def forced(self) -> int | None:
        """The next token, where the model does not decide."""
        if self.is_open and not self._waiting and self.n >= self.budget and _is_whole(self._said):
            self._waiting = list(self._end)
        return self._waiting[0] if self._waiting else None

    def is_end(self, token: int) -> bool:
        """Whether a token ends the text."""
        return self._model.is_eog(token)

    def instead_of(self, token: int) -> int:
        """A drawn token; but no text ends among thoughts."""
        if self.is_open and self._model.is_eog(token):
            self._waiting = list(self._end)
            return self._waiting[0]
        return token

    def add(self, token: int) -> None:
        """A token of the answer."""
        if self._model.is_eog(token):
            return
        is_forced = bool(self._waiting)
        if is_forced:
            del self._waiting[0]
        self.is_thought = self.is_open or is_forced
        if self.is_open or self._may_open or self.must_answer:
            self._said += self._model.detokenize([token], True)
        if self.is_open:
            self._said = self._said[-_LONGEST_TAG:]
            if any(end in self._said for end in self._ends):
                self.is_open, self._said = False, b""
                self._may_open, self.must_answer = self._is_harmony and not is_forced, is_forced
        elif self._may_open:
            self._decide()
            return
        elif self.must_answer:
            self._said = b"" if is_forced else self._said
            self.must_answer = not self._said.strip()
        self.n += self.is_thought
        self.n_answer += not self.is_thought

    def _decide(self) -> None:
        """See whether thoughts begin. All before them, and before an answer, may be white space."""
        said = self._said.strip()
        if said in self._begins:
            self.is_open = self.is_thought = True
            self.n_answer = self._n_undecided = 0
            self._said = b""
        elif said in self._answers:
            self.is_thought, self._may_open = True, False
            self.n_answer = self._n_undecided = 0
        elif said and any(text.startswith(said) for text in (*self._begins, *self._answers)):
            self._n_undecided += 1
            self.is_thought = self._is_harmony
        else:
            self._may_open = not said
            self.n_answer += self._n_undecided + 1
            self._n_undecided = 0


def _is_whole(text: bytes) -> bool:
    """Whether the last character is complete."""
    try:
        text[-4:].decode()
    except UnicodeDecodeError as error:
        return error.reason != "unexpected end of data"
    return True


def check_think(owner: str, think: bool | int | None, kwargs: Mapping[str, Any] | None) -> tuple[int, Any]:
    """The budget of thoughts, and the template's variables."""
    if think is None or think is True:
        budget = MAX_THOUGHTS
    else:
        budget = 0 if think is False else check.integer(owner, "think", think, 0)
    if think is None or not (kwargs is None or isinstance(kwargs, Mapping)):
        return budget, kwargs
    return budget, {"enable_thinking": budget > 0, "thinking": budget > 0, **(kwargs or {})}
