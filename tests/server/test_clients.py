"""Programs that speak to `h2o-llama serve`: each gets the plain answer, and the document is read once for all."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from h2o_llama import document_messages
from servers import DOCUMENT, Server, serving

pytestmark = pytest.mark.slow

CLIENTS = {
    "openai": """
from openai import OpenAI
client = OpenAI(base_url=url, api_key="none")
answer = client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=8)
print(answer.choices[0].message.content)
""",
    "langchain-openai": """
from langchain_openai import ChatOpenAI
print(ChatOpenAI(base_url=url, api_key="none", model="demo", temperature=0, max_tokens=8).invoke(messages).content)
""",
    "llama-index-llms-openai-like": """
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
model = OpenAILike(api_base=url, api_key="none", model="demo", is_chat_model=True, temperature=0, max_tokens=8)
print(model.chat([ChatMessage(**message) for message in messages]).message.content)
""",
    "llm": """
import os, pathlib, tempfile
os.environ["LLM_USER_PATH"] = folder = tempfile.mkdtemp()
known = f"[{{model_id: here, model_name: demo, api_base: '{url}'}}]"
pathlib.Path(folder, "extra-openai-models.yaml").write_text(known)
import llm
asked = llm.get_model("here").prompt(messages[1]["content"], system=messages[0]["content"], temperature=0, max_tokens=8)
print(asked.text())
""",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server") / "log", "demo") as started:
        yield started


@pytest.mark.parametrize("client", CLIENTS)
def test_answer(client: str, server: Server) -> None:
    messages = document_messages(DOCUMENT, "Which key is there?")
    asked = server.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 8})
    program = f"url, messages = 'http://127.0.0.1:{server.port}/v1', {json.dumps(messages)}\n{CLIENTS[client]}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == asked["choices"][0]["message"]["content"].strip()
    again = server.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 8})
    assert again["timings"]["cache_n"] > len(DOCUMENT) / 2
