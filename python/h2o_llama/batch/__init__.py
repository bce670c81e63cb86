"""The same questions about many documents: each is read once, and every question is a fork of it."""

from h2o_llama.batch._answerer import Answerer
from h2o_llama.batch._answers import (
    AnswersFile,
    BatchSettings,
    Document,
    Question,
    find_documents,
    make_questions,
    read_questions,
)

__all__ = [
    "Answerer",
    "AnswersFile",
    "BatchSettings",
    "Document",
    "Question",
    "find_documents",
    "make_questions",
    "read_questions",
]
