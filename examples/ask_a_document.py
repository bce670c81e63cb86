"""Ask one question about a document: python ask_a_document.py document.txt "Who signed it?" [MODEL]

Shows the plainest use: the document is read by H2O, chunk by chunk, and the question after it attends to all of it.
"""

import sys
from itertools import islice

from h2o_llama import Llama, read_document

path, question, *model = sys.argv[1:]


def progress(done: int, total: int) -> None:
    print(f"\rread {done} of {total} tokens", end="", file=sys.stderr, flush=True)


with Llama(model[0] if model else "qwen2.5-coder-0.5b") as llm:
    llm.eval(llm.tokenize(read_document(path)), progress=progress)
    print(file=sys.stderr)
    prompt = llm.tokenize(f"\n{question}", add_special=False)
    answer = []
    for token in islice(llm.generate(prompt, temperature=0), 64):
        answer.append(token)
        if b"\n" in llm.detokenize(answer).lstrip():
            break
    print(llm.detokenize(answer).decode(errors="replace").strip())
