"""What tasks in English have in common: a question that can stand in front of the document or after it."""

from __future__ import annotations

from h2o_llama.eval.tasks.draft import Ask

# A model may put words between the numbers that it lists.
_SLACK = 16


def ask(question: bytes, cue: bytes, answers: tuple[bytes, ...]) -> Ask:
    """A question in plain sentences; the answer follows its cue. No chat template: the cue does for any model."""
    cue = b"\nAnswer: " + cue
    return Ask(
        preface=b"Question: " + question + b"\nThe answer is in the following text.\n\n",
        question=b"\nQuestion: " + question + cue,
        cue=cue,
        answers=answers,
        slack=_SLACK,
    )


def enumerate_words(words: list[bytes]) -> bytes:
    """ "a, b and c"."""
    return b" and ".join([b", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
