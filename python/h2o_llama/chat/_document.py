"""The prompts about a document, the same for `ask`, `chat` and `batch`: each finds the texts that another has read."""

from __future__ import annotations

ABOUT_A_DOCUMENT = "Answer questions about this text:\n\n"
"""The words before a document, in the system message."""

PLAIN_STOPS = ["\nQuestion:"]
"""Where the answer to a plain prompt ends."""


def document_messages(document: str, question: str | None = None) -> list[dict[str, str]]:
    """The document as the system's message, and the question as the user's."""
    messages = [{"role": "system", "content": ABOUT_A_DOCUMENT + document}]
    return messages if question is None else [*messages, {"role": "user", "content": question}]


def plain_prompt(document: str, question: str) -> str:
    """The same for a model without a chat template."""
    return f"{document}\n\nQuestion: {question}\nAnswer:"
