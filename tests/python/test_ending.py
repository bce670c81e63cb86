"""The end of a Python whose daemon threads are inside llama.cpp: their calls end, and the process does not crash."""

import os
import subprocess
import sys

import pytest

from inputs import slowly

QUICK = os.environ | {"GGML_NO_BACKTRACE": "1"}  # a crash would wait for a debugger, and Python would have ended
PROGRAM = """
import sys, threading, time
from h2o_llama import Llama, Model, demo_model_path

llm = Llama(demo_model_path(), n_ctx=8192, n_threads=1, h2o=None)
begun = threading.Event()

def eval():
    llm.eval([65] * 8000, progress=lambda *_: begun.set())

def generate():
    for _ in llm.generate([65] * 100):
        begun.set()

def tokenize():
    while True:
        llm.tokenize("text " * 1000)
        begun.set()

def open():
    while True:
        Model(demo_model_path()).embed("text " * 200)
        begun.set()

threading.Thread(target={work}, daemon=True).start()
begun.wait()
time.sleep({delay})
"""


@pytest.mark.parametrize("work", ["eval", *slowly("generate", "tokenize", "open")])
def test_a_daemon_thread_ends_with_python(work: str) -> None:
    for delay in (0, 0.02, 0.05):
        program = PROGRAM.format(work=work, delay=delay)
        process = subprocess.run([sys.executable, "-c", program], env=QUICK, capture_output=True, text=True, timeout=60)
        assert process.returncode == 0, process.stderr
