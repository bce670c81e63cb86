"""Run the tests of upstream's server on the package's server: python tools/check_server.py [--model FILE] [-k WORDS]

They come from the pinned source distribution, and are run with H2O on; tests of a slot's memory also with H2O off.
Their models are not there: FILE, or the demo model, takes their place, and a random adapter that of theirs, so what a
model says, and how many tokens a text has, is not looked at. Needs tools/requirements-server.txt.
"""

import argparse
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "vendor"), str(ROOT / "tests" / "support")]

import fetch  # noqa: E402
from adapters import random_adapter  # noqa: E402
from h2o_llama import _core, demo_model_path  # noqa: E402

H2O = ["--h2o-local", "8", "--h2o-heavy", "12", "--h2o-sinks", "2", "--h2o-lookup", "8"]

TESTS = "tools/server/tests"
FILES = [
    *("basic", "completion", "chat_completion", "slot_save", "security", "stream", "template", "tokenize", "metrics"),
    *("ctx_shift", "ignore_eos", "sleep", "kv_keep_only_active", "tool_call"),
    *("compat_oai_responses", "compat_anthropic", "compat_gcp", "lora"),
]
# templates, tool calls and forms of requests are the same
WITH_H2O_ALONE = {
    *("chat_completion", "security", "template", "tokenize", "tool_call"),
    *("compat_oai_responses", "compat_anthropic", "compat_gcp"),
}

HUB = "needs a model or an image of the hub"
COUNTS = "counts tokens, or knows special tokens, of another model"
PAGE = "upstream's page is not built"
REFUSED = "pages of other origins are refused, all but their preflights, too: tests/server/test_server.py"
FAULT = "expects 500 for a wrong request"
EMPTY = "expects an answer to no messages, which are refused: tests/server/test_server.py"
FORMAT = "what the demo model says has no form that this template asks for"

# Beginnings of tests' names. Files that are not among FILES: embedding, infill, rerank, router, speculative and
# vision_api need models of the hub; H2O has no part in what mcp_servers, proxy and tools_builtin do.
LEFT_OUT = {
    "basic.py::test_no_ui": PAGE,
    "completion.py::test_completion[": COUNTS,
    "completion.py::test_completion_stream[": COUNTS,
    "completion.py::test_completion_response_fields[I believe the meaning of life is-32-response_fields1": COUNTS,
    "completion.py::test_completion_prompt_cache": COUNTS,
    "chat_completion.py::test_chat_completion[": COUNTS,
    "chat_completion.py::test_chat_completion_cached_tokens": COUNTS,
    "chat_completion.py::test_chat_template": COUNTS,
    "slot_save.py::test_slot_save_restore": f"{COUNTS}; {HUB}",
    "slot_save.py::test_slot_restore": f"{COUNTS}; {HUB}",
    "slot_save.py::test_slot_erase": COUNTS,
    "security.py::test_access_static_assets_without_api_key": PAGE,
    "security.py::test_local_media_file": HUB,
    "security.py::test_cors_options": REFUSED,
    "security.py::test_cors_origins_localhost_rejects": REFUSED,
    "security.py::test_cors_origins_defaults_to_localhost_with_tools_enabled": REFUSED,
    "stream.py::test_stream_resume_and_stop_with_slashed_model_name": HUB,
    "stream.py::test_stream_stop_during_model_load": HUB,
    "stream.py::test_stream_resumes_after_reload_during_model_load": HUB,
    "tokenize.py::test_tokenize_with_bos": COUNTS,
    "metrics.py::test_metrics_timings_on_prompt_progress": COUNTS,
    "metrics.py::test_metrics_embedding_prompt_is_counted": HUB,
    "ctx_shift.py::test_ctx_shift_enabled": COUNTS,
    "ctx_shift.py::test_ctx_shift_disabled_short_prompt[-1-248-True]": COUNTS,
    "compat_anthropic.py::test_anthropic_vision_base64_with_multimodal_model": HUB,
    "compat_anthropic.py::test_anthropic_vision_format_accepted": FAULT,
    "compat_anthropic.py::test_anthropic_tool_result_with_image": FAULT,
    "compat_anthropic.py::test_anthropic_empty_messages": EMPTY,
    "compat_anthropic.py::test_anthropic_thinking_with_reasoning_model": HUB,
    "compat_oai_responses.py::test_responses_stream_with_llama_telemetry": "an answer that is cut off ends as OpenAI's",
    "tool_call.py::test_completion_with_required_tool_real_model": HUB,
    "tool_call.py::test_weather": HUB,
    "tool_call.py::test_calc_result": HUB,
    "tool_call.py::test_thoughts": HUB,
    "tool_call.py::test_hello_world": HUB,
    "tool_call.py::test_completion_without_tool_call_slow[meetkai": FORMAT,
}
LEFT_OUT_WITH_H2O = {
    "chat_completion.py::test_return_progress[64-4-False]": "a prompt is also cut where a message of the user begins",
    "kv_keep_only_active.py": "every slot has a cache of its own, so none is cleared, and a text has less room",
}

# What the tests' own module starts, but with a model that is there.
PLUGIN = """
import os, sys, types
sys.modules["wget"] = types.ModuleType("wget")
import utils

start = utils.ServerProcess.start

def start_local(self, *args, **kwargs):
    if self.model_hf_repo:
        self.model_hf_repo = self.model_hf_file = None
        self.model_file = os.environ["TESTED_MODEL"]
    return start(self, *args, **kwargs)

utils.ServerProcess.start = start_local
utils.ServerPreset.load_all = staticmethod(lambda: None)
utils.download_file = lambda url: os.environ["TESTED_ADAPTER"]
utils.match_regex = lambda regex, text: isinstance(text, str)
"""


def extract(folder: Path) -> Path:
    """Upstream's tests and the templates they use, in a new folder. Returns that of the tests."""
    pin = fetch.read_pin(fetch.Layout(ROOT).requirements)
    with tarfile.open(fetch.Layout(ROOT).cache / pin.file(is_wheel=False)) as archive:
        for member in archive:
            name = member.name.partition(fetch.SOURCES["llama.cpp"].prefix)[2]
            if member.isfile() and name.startswith((f"{TESTS}/", "models/templates/")):
                file = archive.extractfile(member)
                assert file is not None  # isfile()
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(file.read())
    (folder / TESTS / "local_model.py").write_text(PLUGIN)
    return folder / TESTS


def run(folder: Path, model: Path, h2o: bool, more: list[str]) -> bool:
    """Whether all tests pass."""
    program = folder / "llama-server"
    flags = " ".join(H2O) if h2o else ""
    program.write_text(f'#!/bin/sh\nexec "{Path(_core.__file__).parent / "lib" / "llama-server"}" "$@" {flags}\n')
    program.chmod(0o755)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    files = [name for name in FILES if h2o or name not in WITH_H2O_ALONE]
    left_out = [*LEFT_OUT, *(LEFT_OUT_WITH_H2O if h2o else ())]
    command = [sys.executable, "-m", "pytest", "-p", "local_model", "-q", "--no-header", "-rf", "--tb=short"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", *(f"unit/test_{name}.py" for name in files)]
    command += [word for name in left_out for word in ("--deselect", f"unit/test_{name}")]
    environment = {"LLAMA_SERVER_BIN_PATH": str(program), "PORT": str(port), "PYTHONPATH": str(folder)}
    environment["TESTED_MODEL"] = str(model.absolute())
    environment["TESTED_ADAPTER"] = str(random_adapter(model).write(folder / "adapter.gguf"))
    print(f"check_server: H2O {'on' if h2o else 'off'}", flush=True)
    return subprocess.run([*command, *more], cwd=folder, env={**os.environ, **environment}).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description="More options are pytest's.")
    parser.add_argument("--model", type=Path, default=demo_model_path(), metavar="FILE")
    options, more = parser.parse_known_args()
    for name, reason in (*LEFT_OUT.items(), *((f"{n}, with H2O", r) for n, r in LEFT_OUT_WITH_H2O.items())):
        print(f"left out: {name}: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        tests = extract(Path(folder))
        good = [run(tests, options.model, h2o, more) for h2o in (False, True)]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
