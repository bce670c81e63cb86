"""Serve a model and ask it with OpenAI's client: python serve_and_ask.py document.txt "Who signed it?" [MODEL]

Shows `h2o-llama serve`. `document_messages` is the form of all commands: what one of them has read, the server does not
read again, and a second question costs only itself. Needs `pip install openai`.
"""

import socket
import subprocess
import sys
import time

from openai import OpenAI, OpenAIError

from h2o_llama import document_messages, read_document

path, question, *model = sys.argv[1:]
with socket.create_server(("127.0.0.1", 0)) as listener:
    port = listener.getsockname()[1]  # a free one

command = ["h2o-llama", "serve", model[0] if model else "qwen2.5-coder-0.5b", "--port", str(port)]
with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
    document = read_document(path)
    try:
        for text in (question, "Say that in other words."):
            messages = document_messages(document, text)
            while True:
                try:
                    answer = client.chat.completions.create(model="", messages=messages, temperature=0, max_tokens=64)
                    break
                except OpenAIError:
                    if server.poll() is not None:
                        raise
                    time.sleep(0.2)  # it does not listen yet, or still opens the model
            print(answer.choices[0].message.content)
            print("tokens read:", answer.timings["prompt_n"], "known:", answer.timings["cache_n"])
    finally:
        server.terminate()
