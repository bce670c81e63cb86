"""Ask many questions about one document: python many_questions.py document.txt MODEL "Who signed it?" "When?" ...

Shows forks: the document is read once, each question continues a copy of it, and all answers are
generated at the same time.
"""

import sys

from h2o_llama import Llama, read_document

path, model, *questions = sys.argv[1:]

with Llama(model, n_seq_max=1 + len(questions)) as llm:
    llm.eval(llm.tokenize(read_document(path)))
    forks = {llm.fork(): question for question in questions}
    prompts = {fork: llm.tokenize(f"\n{question}", add_special=False) for fork, question in forks.items()}
    answers = dict.fromkeys(forks, b"")
    steps = llm.generate_many(prompts, max_tokens=64, temperature=0)
    for step in steps:
        for fork, token in step.items():
            answers[fork] += llm.detokenize([token])
            if b"\n" in answers[fork].lstrip():
                steps.stop(fork)
    for fork, question in forks.items():
        print(question, answers[fork].decode(errors="replace").strip())
