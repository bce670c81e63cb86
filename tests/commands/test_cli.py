"""The command line: its output on stdout and stderr, and its exit codes."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import models
from adapters import random_adapter
from command_line import assert_one_line_error, assert_wrong_usage, h2o_set, invoke, succeeded
from compare import case
from h2o_llama import H2OConfig, H2OWarning, demo_model_path
from h2o_llama._cli import app, demo, inputs
from spies import record_calls

ONE_THREAD = ["--threads", "1"]
SMALL = [*h2o_set(chunk_size=64, local_window=16, heavy_budget=16), *ONE_THREAD]
TEXT = "".join(f"def function_{i}(value):\n    return value * {i}\n\n" for i in range(12))
COMMAND = [sys.executable, "-c", "from h2o_llama._cli import app; app()"]


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.py"
    path.write_text(TEXT)
    return path


# --- help and usage


@pytest.mark.parametrize("command", [[], *([command.name] for command in app.registered_commands if command.name)])
def test_help_fits_on_a_screen(command: list[str]) -> None:
    lines = succeeded(invoke(*command, "--help", columns=80)).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 50


def test_wrong_usage_exits_with_2() -> None:
    prompted = ["run", "demo", "--prompt", "x"]
    for arguments, match in [
        (["nonsense"], "No such command 'nonsense'."),
        (["run", "demo"], "give a text by --file, --prompt or both"),
        ([*prompted, *h2o_set(shared_heads="yes")], "--h2o-set: 'yes' is not one of on, off."),
        ([*prompted, *h2o_set(dense_layers="11-2")], "dense_layers must be numbers below 512"),
        ([*prompted, "--rope-scale", "4", "--rope-freq-scale", "1"], "say the same"),
        (["run", "demo", "--h2o", "turbo"], "--h2o: 'turbo' is not one of auto, fast, balanced, faithful, off."),
        ([*prompted, "--h2o", "off", "--evict"], "--h2o off excludes --evict"),
    ]:
        with case(arguments=arguments):
            result = invoke(*arguments)
            assert_wrong_usage(result, match)
            assert "Traceback" not in result.stderr


# --- errors


@pytest.mark.parametrize(
    ("command", "match"),
    [
        (["info", "missing.gguf"], r"missing\.gguf"),
        (["run", ".", "-p", "x"], "folder"),
        (["run", "demo", "--file", "none.txt"], r"none\.txt: No such file"),
        (["inspect", "demo", "--file", os.devnull], "empty"),
        (["run", "demo", "-p", "x", *h2o_set(local_window=65, chunk_size=64)], "local_window"),
        (["run", "demo", "-p", "some text", "-n", "2", "--n-ctx", "3"], "but --n-ctx=3 holds fewer"),
        (["run", "demo", "-p", "x", "--cold-store", "memory"], "for what is evicted: it needs --evict"),
        (["run", "demo", "-p", "x", "--threads", "513"], "--threads must be an integer from 1 to 512, got 513"),
        (["serve", "demo", "--library", __file__], "is a file, expected a folder"),
        (["serve", "demo", "--matmul-kernels", "mine"], "--matmul-kernels must be one of 'auto', 'upstream', 'own'"),
        (["run", "demo", "-p", "x", "--lora", f"{demo_model_path()}:nan"], "must be a finite number"),
        (["inspect", "demo", "-p", "short text"], "which fit into one chunk"),
        (["inspect", "demo", "-p", "text", "--html", "no/page.html"], "no: No such file"),
        (["demo", "--html", "."], "directory"),
        (["eval", "demo", "--n-tokens", "999936"], "the text has 524,288 tokens, but a window needs 999,936"),
        (["bench", "demo", "--n-prompt", "", "--depth", ""], "there is nothing to measure"),
        (["bench", "demo", "--depth", "600000"], "the text has 524,288 tokens, but 600,033 are needed"),
        (["bench", "demo", "--json", "missing/bench.json"], "missing: No such file"),
        (["quantize", "demo", "no/such.gguf", "Q8_0"], "no: No such file or directory"),
    ],
)
def test_bad_arguments_are_one_line(
    command: list[str], match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any work, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert_one_line_error(invoke(*command), match)
    assert list(tmp_path.iterdir()) == []


def test_a_file_cannot_move_the_cursor(tmp_path: Path) -> None:
    """Nor say anything in rich's markup: by its name, or by what its metadata say."""
    no_utf_8 = "" if sys.platform == "darwin" else "\udcff"  # whose file system refuses it
    name = f"[/b]\x1b[2J\x07{no_utf_8}.gguf"
    shown = "[/b]␛[2J␇" + len(no_utf_8) * "\ufffd" + ".gguf"
    (tmp_path / "[").mkdir()
    writer = models.open_writer(models.ONE_LAYER, tmp_path / name)
    writer.kv_data[0]["general.name"].value = "[/i]\x1b]0;x\x07"
    models.add_weights(models.ONE_LAYER, writer)
    models.finish(writer)
    (tmp_path / f"{name}.txt").write_text("x" * 300)
    result = succeeded(invoke("info", tmp_path / name))
    assert "[/i]␛]0;x␇" in result.stdout
    assert shown in result.stdout
    verbose = subprocess.run([*COMMAND, "info", "--verbose", tmp_path / name], capture_output=True, check=True).stderr
    assert b"[/i]?]0;x?" in verbose
    assert b"\x1b" not in verbose
    for command in (["info"], ["info", "--debug"], ["quantize", "none", "q8_0"]):
        error = invoke(command[0], tmp_path / f"{name}.txt", *command[1:]).stderr
        assert f"{shown}.txt" in error
        assert "\x1b" not in error


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = invoke("info", "--debug", tmp_path / "missing.gguf")
    assert result.exit_code == 1
    first, *others, last = result.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert any("check_model_file" in line for line in others)
    assert last.startswith("h2o-llama: there is no file")


# --- info


def test_info_of_the_demo_model() -> None:
    result = succeeded(invoke("info", "demo"))
    rows = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in result.stdout.splitlines() if line.strip())
    assert rows["Architecture"] == "qwen3"
    assert rows["Heads"].startswith("6 Q, 2 KV")
    assert rows["Heads"].endswith("size 64")
    assert rows["Layers"].startswith("4,")
    assert rows["KV cache"].startswith("1,088 bytes per token")
    assert rows["8,192 tokens"] == "8.9 MB dense, 1.9 MB with --evict"
    assert rows["131,072 tokens"] == "142.6 MB dense, 1.9 MB with --evict"
    assert rows["H2O"] == "works"
    assert max(map(len, result.stdout.splitlines()[1:])) <= 80


def test_info_says_why_h2o_does_not_work(unsupported_memory_model: Path) -> None:
    result = succeeded(invoke("info", unsupported_memory_model))
    assert re.search(r"H2O +does not work: .{20,}", result.stdout)


# --- run


def test_run_streams_text_and_measures(text_file: Path) -> None:
    command = ["run", "demo", "-n", "8", "--temp", "0", *SMALL, "--file"]
    result = succeeded(invoke(*command, text_file))
    assert len(result.stdout) == 8 + 1
    piped = invoke(*command, "-", stdin=TEXT)
    assert (piped.stdout, " known) in " in piped.stderr) == (result.stdout, True)
    n_tokens = len(TEXT)
    n_chunks = -(-(n_tokens + 8) // 64)
    assert re.fullmatch(
        rf"\[read {n_tokens:,} tokens in [\d.]+ s \([\d,]+ tokens/s\); wrote 8 tokens in [\d.]+ s \([\d,]+ tokens/s\); "
        rf"KV cache [\d.]+ (k|M)B, {n_chunks} chunks of 64\]\n",
        result.stderr,
    )


def test_run_goes_on_from_a_file(text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the options of the run that saved it, whatever is said now, and the text that follows from both."""
    contexts = record_calls(monkeypatch, inputs, "Llama")
    saved, options = str(tmp_path / "saved"), ["-n", "12", "--temp", "0", "--dense-tail", "0", *ONE_THREAD]
    whole = invoke("run", "demo", "--file", str(text_file), "--prompt", "def f", "--raw", *SMALL, *options)
    first = succeeded(invoke("run", "demo", "--file", str(text_file), *SMALL, *options, "-n", "0", "--save", saved))
    assert first.stdout == "\n"
    second = succeeded(invoke("run", "demo", "--load", saved, "--prompt", "def f", *options))
    assert second.stdout == whole.stdout
    assert re.search(r"loaded [\d,]+ tokens, read 5 tokens in ", second.stderr)
    succeeded(invoke("run", "demo", "--load", saved, *options))
    cold, mine = ["--evict", "--cold-store", tmp_path], ["--evict", "--cold-store", "/tmp"]
    cold += h2o_set(chunk_size=64)
    succeeded(invoke("run", "demo", "--file", text_file, *cold, *options, "--save", saved + "2"))
    for more, store in (([], "memory"), (mine, "/tmp")):
        succeeded(invoke("run", "demo", "--load", saved + "2", *more, *options))
        assert str(contexts[-1]["h2o"].cold_store) == store
    assert_one_line_error(invoke("run", "demo", "--load", str(text_file), *options), "is not a snapshot of h2o-llama")
    assert_one_line_error(invoke("run", "demo", "--load", saved, "--n-ctx", "20", *options), "into --n-ctx=20")
    assert_one_line_error(invoke("run", "demo", "-p", "x", "--save", str(tmp_path), *options), "is a folder")


@pytest.mark.filterwarnings("default::h2o_llama.H2OWarning")
@pytest.mark.parametrize("command", [["run", "--raw", "--file"], ["ask"]], ids=["run", "ask"])
def test_a_model_that_h2o_refuses_is_read_densely(
    command: list[str], unsupported_memory_model: Path, text_file: Path
) -> None:
    name, *options = command
    question = ["What?"] if name == "ask" else []
    arguments = [name, unsupported_memory_model, *options, text_file, *question, "-n", "1", *ONE_THREAD]
    with pytest.warns(H2OWarning, match="attention is dense"):
        succeeded(invoke(*arguments))
    assert_one_line_error(invoke(*arguments, "--h2o", "fast"), "H2O does not work with this model")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--threads-batch 2 --mlock --no-mmap", {"n_threads_batch": 2, "use_mlock": True, "use_mmap": False}),
        ("--h2o off --matmul-kernels own", {"h2o": None, "matmul_kernels": "own"}),
        ("--rope-scaling yarn --yarn-orig-ctx 48", {"rope_scaling_type": "yarn", "yarn_orig_ctx": 48}),
        (
            "--h2o-set sink_tokens=2 --h2o-set schedule=two_phase",
            {"h2o": H2OConfig(sink_tokens=2, schedule="two_phase")},
        ),
        ("--rope-scale 4", {"rope_freq_scale": 0.25}),
        ("--lora a:0.5 --lora a:2", {"lora": [(Path("a"), 0.5), (Path("a:2"), 1.0)]}),
        ("--lora a:2:-1", {"lora": [(Path("a:2"), -1.0)]}),
    ],
)
def test_options_reach_the_model(
    options: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file may have the name of another one with a scale."""
    monkeypatch.chdir(tmp_path)
    if "lora" in expected:
        for name in ("a", "a:2"):
            random_adapter(demo_model_path()).write(Path(name))
    opened = [record_calls(monkeypatch, module, name) for module, name in ((inputs, "Model"), (inputs, "Llama"))]
    succeeded(invoke("run", "demo", "-p", "a", "-n", "0", *ONE_THREAD, *options.split()))
    ((of_model,), (of_llama,)) = opened
    given = of_llama | of_model | of_model.get("rope", {})
    assert {name: given.get(name) for name in expected} == expected


# --- inspect


def test_inspect_shows_what_the_question_reads(text_file: Path, tmp_path: Path) -> None:
    """The demo model finds a value by its key."""
    text_file.write_text(f"k17=4829;\n\n{TEXT}{TEXT}")
    page, few = tmp_path / "page.html", [*h2o_set(chunk_size=64), *ONE_THREAD]
    result = succeeded(invoke("inspect", "demo", "--file", text_file, *few, "-p", "k17=", "--html", page))
    places = re.findall(r"│ +([\d,]+)-[\d,]+ │ +[\d.]+% │ (.*?) +│", result.stdout)
    assert len(places) >= 5
    assert "<dt>KV heads</dt><dd>all 8</dd>" in page.read_text()
    result = succeeded(invoke("inspect", "demo", "--file", text_file, *few, "-p", "k=", "--layer", "2", "--html", page))
    assert ", 0 from the library" not in result.stderr
    assert "<dt>KV heads</dt><dd>2, of layer 2</dd>" in page.read_text()


# --- demo


@pytest.mark.slow
def test_demo_prints_a_table_and_writes_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DOCUMENT_BYTES", 1100)
    monkeypatch.chdir(tmp_path)
    result = succeeded(invoke("demo", *ONE_THREAD))
    assert re.search(r"tokens/s(?: +│){3}(?: [\d,]+ +│){3}", result.stdout)
    keys = ((17, 4829), (42, 5308), (63, 1958), (28, 6142), (91, 3576))
    rows = [re.findall(rf"k{key} +│ +[\d,]+ │ {value} +│(.*)│", result.stdout)[0].split("│") for key, value in keys]
    for answers in zip(*rows, strict=True):  # dense, H2O, with a dense tail
        assert sum(answer.strip().endswith("right") for answer in answers) >= 4
    assert "h2o-demo.html" in result.stdout
    page = (tmp_path / "h2o-demo.html").read_text(encoding="utf-8")
    assert "4829 at position" in page


# --- as a process


@pytest.mark.usefixtures("ctrl_c")
def test_process_ends_with_130_on_ctrl_c() -> None:
    arguments = ["run", "demo", "--prompt", TEXT, "-n", "30000", "--temp", "0", *ONE_THREAD]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert len(os.read(process.stdout.fileno(), 1)) == 1  # it generates now
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
