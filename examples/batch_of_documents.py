"""Ask the same questions about every document of a folder: python batch_of_documents.py FOLDER MODEL "Who?" "When?"

Shows the Python side of `h2o-llama batch`: a document is read once, and memory does not grow with its length. The
command also keeps answers in a file, and resumes after an interruption.
"""

import sys

from h2o_llama import H2OConfig
from h2o_llama.batch import Answerer, BatchSettings, find_documents, make_questions

folder, model, *questions = sys.argv[1:]

with Answerer(model, BatchSettings(h2o=H2OConfig(evict=True), max_tokens=64)) as answerer:
    for name, path in find_documents(folder).items():
        for answer in answerer.answer_file(name, path, make_questions(questions)):
            print(name, answer["question"], answer["error"] or answer["answer"], sep="\t")
