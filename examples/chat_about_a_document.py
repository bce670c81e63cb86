"""Chat about a document: python chat_about_a_document.py document.txt [MODEL]. A question a line; Ctrl-D ends it.

Shows that a chat reads a document once, in the form in which all commands ask about it: a question after the first one
costs only itself. It says how many tokens of each prompt were known already.
"""

import sys

from h2o_llama import Llama, document_messages, read_document

path, *model = sys.argv[1:]

with Llama(model[0] if model else "qwen2.5-coder-0.5b") as llm:
    chat = document_messages(read_document(path))
    for question in sys.stdin:
        chat.append({"role": "user", "content": question.strip()})
        answer = ""
        for chunk in llm.create_chat_completion(chat, temperature=0, max_tokens=128, stream=True):
            text = chunk["choices"][0]["delta"].get("content") or ""
            print(text, end="", flush=True)
            answer += text
        chat.append({"role": "assistant", "content": answer})
        known = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
        print(f"\n[{known} of {chunk['usage']['prompt_tokens']} tokens were known]")
