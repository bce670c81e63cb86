"""Ask questions about a document: python ask_a_document.py document.txt MODEL "Who signed it?" "When?" ...

Shows the plainest use: the document is read once, and it is in the library for the next time.
"""

import sys
from pathlib import Path

from h2o_llama import Llama


def progress(done: int, total: int) -> None:
    print(f"\rread {done} of {total} tokens", end="\n" * (done == total), file=sys.stderr, flush=True)


path, model, *questions = sys.argv[1:]
with Llama(model, library=True) as llm:
    for answer in llm.ask(Path(path), questions, max_tokens=64, progress=progress):
        print(answer)
