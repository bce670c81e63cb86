"""Many documents by several processes, also on Ray: a local cluster.

Everything that imports Ray is a process of its own, as it warns and leaves threads.
"""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chats import write_chat_model
from command_line import h2o_set
from h2o_llama import H2OConfig
from h2o_llama.batch import Answerer, BatchSettings, make_questions

pytestmark = pytest.mark.slow

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='Ray is not installed: pip install "h2o-llama[ray]"'
)

N_DOCUMENTS = 12
QUESTIONS = ["What is this?", "Who wrote it?", "Is it true?"]
CHUNK = 64
MAX_TOKENS = 32
SETTINGS = BatchSettings(H2OConfig(chunk_size=CHUNK, evict=True), MAX_TOKENS)

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "batch.md"
START = """
import os
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # it listens on 127.0.0.1 only
import ray.data
from h2o_llama import H2OConfig

ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=128 << 20, log_to_driver=False)
assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
"""
END = """
for answer in answers.iter_rows():
    print(json.dumps(answer), flush=True)
"""


def job(folder: Path) -> str:
    """The program of the documentation, on two workers of this machine."""
    (code,) = re.findall(r"```python\n(import json\n.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    documents = f"Path({str(folder / 'documents')!r}).iterdir()"
    rows = f"[{{'name': path.name, 'text': path.read_text()}} for path in {documents}]"
    settings = f"BatchSettings(H2OConfig(chunk_size={CHUNK}, evict=True), {MAX_TOKENS})"
    for old, new in {
        "import ray.data\n": START,
        '["Who signed it?", "When?"]': repr(QUESTIONS),
        '"model.gguf"': repr(str(folder / "chat.gguf")),
        "BatchSettings(max_tokens=64), n_threads=4": f"{settings}, n_threads=1",
        'read_parquet("s3://reports")': f"from_items({rows}, override_num_blocks={N_DOCUMENTS})",
        "size=8": "size=2",
        "num_cpus=4": "num_cpus=1",
        'answers.write_json("s3://answers")\n': END,
    }.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, documents and questions."""
    folder = tmp_path_factory.mktemp("ray")
    write_chat_model(folder / "chat.gguf")
    (folder / "documents").mkdir()
    for i in range(N_DOCUMENTS):
        (folder / "documents" / f"{i}.txt").write_text(f"Document {i} is about {i} ducks. " * 60)
    (folder / "questions.txt").write_text("\n".join(QUESTIONS))
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[tuple[str, str], str]:
    """Answers of one process, by document and question."""
    with Answerer(folder / "chat.gguf", SETTINGS, n_threads=1) as answerer:
        return {
            (row["document"], row["question"]): row["answer"]
            for path in (folder / "documents").iterdir()
            for row in answerer.answer_file(path.name, path, make_questions(QUESTIONS))
        }


def answers_of(rows: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    answers = {(row["document"], row["question"]): row["answer"] for row in rows}
    assert len(answers) == len(rows)
    return answers


@contextmanager
def running(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A process and its children, which end with the block."""
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for pid in session_of(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def session_of(leader: int) -> list[int]:
    """The processes of a session that have not ended, by their start."""
    found: list[tuple[int, int]] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session, *others = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append((int(others[15]), int(path.name)))
    return [pid for _, pid in sorted(found)]


def assert_all_ended(leader: int) -> None:
    """Within a moment: the tracker of shared resources ends after its parent."""
    deadline = time.monotonic() + 30
    while session_of(leader):
        assert time.monotonic() < deadline, session_of(leader)
        time.sleep(0.05)


def batch_command(folder: Path, out: Path, model: str | Path = "chat.gguf") -> list[str | Path]:
    files = ["--documents", folder / "documents", "--questions", folder / "questions.txt", "--out", out]
    options = ["--evict", *h2o_set(chunk_size=CHUNK), "-n", MAX_TOKENS, "--threads", 1, "--workers", 2]
    code = "from h2o_llama._cli import app; app()"
    return ["-c", code, "batch", folder / model, *files, *map(str, options)]


@needs_ray
def test_the_program_of_the_documentation(folder: Path, expected: dict[tuple[str, str], str]) -> None:
    with running("-c", job(folder)) as process:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert_all_ended(process.pid)
    answers = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert answers_of(answers) == expected
    assert json.loads(answers[0]["settings"]) == SETTINGS.to_json()


@pytest.mark.usefixtures("ctrl_c")
def test_a_batch_by_workers_goes_on(folder: Path, expected: dict[tuple[str, str], str], tmp_path: Path) -> None:
    """After Ctrl-C, which ends all its processes; only missing answers are asked for."""
    whole, out = tmp_path / "whole", tmp_path / "out.jsonl"
    shutil.copytree(folder, whole)
    (whole / "documents" / "long.txt").write_text("It takes long to read. " * 30000)  # so the job does not end early
    for kills_worker in (True, False):
        out.unlink(missing_ok=True)
        with running(*batch_command(whole, out)) as job:
            while not out.exists() or not out.read_bytes():
                assert job.poll() is None
                time.sleep(0.01)
            if kills_worker:
                command = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in session_of(job.pid)}
                for pid in (pid for pid in command if b"spawn_main" in command[pid]):  # one may have nothing left to do
                    os.kill(pid, signal.SIGKILL)
            else:
                os.kill(job.pid, signal.SIGINT)
            _, errors = job.communicate(timeout=60)
            assert job.returncode != 0, (kills_worker, errors)
            assert ("a worker has died" in errors) == kills_worker
            assert_all_ended(job.pid)
    before = out.read_bytes()
    assert before.endswith(b"\n")
    assert 0 < len(before.splitlines()) < len(expected) + len(QUESTIONS)
    with running(*batch_command(whole, out)) as job:
        _, errors = job.communicate(timeout=60)
        assert job.returncode == 0, errors
    assert out.read_bytes().startswith(before)
    answers = answers_of([json.loads(line) for line in out.read_text().splitlines()])
    assert {("long.txt", question) for question in QUESTIONS} == answers.keys() - expected.keys()
    assert answers | expected == answers
