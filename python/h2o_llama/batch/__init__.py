"""The same questions about many documents: each is read once, and every question is a fork of it."""

from h2o_llama.batch._answerer import Answerer as Answerer
from h2o_llama.batch._answers import AnswersFile as AnswersFile
from h2o_llama.batch._answers import BatchSettings as BatchSettings
from h2o_llama.batch._answers import Document as Document
from h2o_llama.batch._answers import Question as Question
from h2o_llama.batch._answers import find_documents as find_documents
from h2o_llama.batch._answers import make_questions as make_questions
from h2o_llama.batch._answers import read_questions as read_questions
