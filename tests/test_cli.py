"""The command line: its output on stdout and stderr, and its exit codes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import h2o_llama
import models
from adapters import random_adapter
from command_line import assert_one_line_error, assert_wrong_usage, h2o_set, invoke, succeeded
from compare import case
from h2o_llama import H2OConfig, H2OWarning, demo_model_path
from h2o_llama._cli import demo, prompt
from h2o_llama.config import option_names
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


@pytest.fixture
def evals(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every prompt."""
    return record_calls(monkeypatch, h2o_llama.Llama, "eval")


# --- help and usage


COMMANDS = [
    *("demo", "chat", "ask", "read", "run", "batch", "serve", "rpc-server", "options"),
    *("inspect", "info", "bench", "eval", "pull", "quantize"),
]


def test_help_lists_every_command() -> None:
    text = succeeded(invoke("--help", columns=80)).stdout
    assert re.findall(r"^  ([a-z-]+)  ", text.split("Commands:")[1], re.MULTILINE) == [*COMMANDS, "library", "models"]
    assert "..." not in text.split("Commands:")[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_on_a_screen(command: str) -> None:
    """An option has one name in all commands. --help-all lists options of machine and RoPE, too."""
    text = succeeded(invoke(command, "--help", columns=80)).stdout
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= {"chat": 40, "serve": 45}.get(command, 50)
    names, all_names = (set(re.findall(r"--[a-z0-9-]+", t)) for t in (text, invoke(command, "--help-all").stdout))
    assert {"--verbose", "--debug", "--help-all"} <= names
    assert not all_names & {"--dense", "--no-h2o", "--text", "--n-predict", "--n-gpu-layers", "--temperature"}
    assert not names & {"--gpu-layers", "--rope-scale", "--mlock"}
    if command in {"chat", "ask", "run", "batch", "serve", "inspect"}:
        assert {"--threads", "--gpu-layers", "--lora", "--rope-scale", "--yarn-orig-ctx"} <= all_names
        assert re.findall(r"^  --(h2o|evict|cold-store|h2o-set) ", text, re.MULTILINE)[-1] == "h2o-set"


def test_options_lists_every_setting() -> None:
    lines = succeeded(invoke("options", columns=80)).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line.split()[1] for line in lines if re.match(r" [a-z]", line)}
    evict = {"evict", "cold_store"}
    assert set(rows) == {*option_names()} - evict
    assert {name: rows[name] for name in ("chunk_size", "schedule", "shared_heads", "ema_alpha")} == {
        "chunk_size": "1024",
        "schedule": "single_pass",
        "shared_heads": "off",
        "ema_alpha": "0.5",
    }


def test_wrong_usage_exits_with_2() -> None:
    prompted = ["run", "demo", "--prompt", "x"]
    for arguments, match in [
        (["nonsense"], "No such command 'nonsense'."),
        (["run"], "Missing argument 'MODEL'."),
        (["run", "demo"], "give a text by --file, --prompt or both"),
        ([*prompted, "-n", "-1"], "'-n': Input should be"),
        ([*prompted, *h2o_set(shared_heads="yes")], "--h2o-set: 'yes' is not one of on, off."),
        ([*prompted, "--unknown"], "No such option: --unknown"),
        ([*prompted, *h2o_set(dense_layers="11-2")], "dense_layers must be numbers below 512"),
        ([*prompted, "--rope-scale", "4", "--rope-freq-scale", "1"], "say the same"),
        ([*prompted, "--rope-scale", "0"], "must be above 0"),
        (["run", "demo", "--h2o", "turbo"], "--h2o: 'turbo' is not one of auto, fast, balanced, faithful, off."),
        ([*prompted, "--h2o", "off", "--evict"], "--h2o off excludes --evict"),
        (["eval", "demo", "--h2o", "turbo"], "--h2o: 'turbo' is not one of auto, fast, balanced, faithful."),
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
        (["inspect", __file__, "-p", "x"], "GGUF"),
        (["run", "demo", "--file", "none.txt"], r"none\.txt: No such file"),
        (["inspect", "demo", "--file", os.devnull], "empty"),
        (["run", "demo", "-p", "x", *h2o_set(local_window=65, chunk_size=64)], "local_window"),
        (["inspect", "demo", "-p", "x", *h2o_set(chunk_size=0)], "chunk_size must be an integer of at least 1, got 0"),
        (["run", "demo", "-p", "x", *h2o_set(ema_alpha="many")], "ema_alpha must be a finite number from 0 to 1"),
        (["run", "demo", "-p", "some text", "-n", "2", "--n-ctx", "3"], "but --n-ctx=3 holds fewer"),
        (["run", "demo", "-p", "x", "--cold-store", "memory"], "for what is evicted: it needs --evict"),
        (["run", "demo", "-p", "x", "--threads", "513"], "--threads must be an integer from 1 to 512, got 513"),
        (["run", "demo", "-p", "x", "--rope-scaling", "ntk"], "--rope-scaling must be one of"),
        (["run", "demo", "-p", "x", "--matmul-kernels", "mine"], "must be one of 'auto', 'upstream', 'own'"),
        (["serve", "demo", "--library", __file__], "is a file, expected a folder"),
        (["serve", "demo", "--matmul-kernels", "mine"], "--matmul-kernels must be one of 'auto', 'upstream', 'own'"),
        (["run", "demo", "-p", "x", "--lora", f"{demo_model_path()}:nan"], "must be a finite number"),
        (["run", "demo", "-p", "x", "--lora", f"{demo_model_path()}:x"], "there is no file"),
        (["inspect", "demo", "-p", "short text"], "which fit into one chunk"),
        (["inspect", "demo", "-p", "text", "--html", "no/page.html"], "no: No such file"),
        (["demo", "--html", "."], "directory"),
        (["eval", "demo", "--n-tokens", "999936"], "the text has 524,288 tokens, but a window needs 999,936"),
        (["eval", "demo", "--json", "missing/rows.json"], "No such file"),
        (["bench", "demo", "--n-prompt", "0"], "--n-prompt must be an integer of at least 1, got 0"),
        (["bench", "demo", "--n-prompt", "", "--depth", ""], "there is nothing to measure"),
        (["bench", "demo", "--depth", "600000"], "the text has 524,288 tokens, but 600,033 are needed"),
        (["bench", "demo", "--json", "missing/bench.json"], "missing: No such file"),
        (["quantize", "demo", "out.gguf", "Q9_9"], "type must be one of 'F32'"),
        (["quantize", "none.gguf", "out.gguf", "Q8_0"], "there is no file none.gguf"),
        (["quantize", "demo", "no/such.gguf", "Q8_0"], "no: No such file or directory"),
        (["quantize", "demo", ".", "Q8_0"], "Is a directory"),
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
    assert rows["KV cache"].startswith("2,048 bytes per token")
    assert rows["8,192 tokens"] == "16.8 MB dense, 3.7 MB with --evict"
    assert rows["131,072 tokens"] == "268.4 MB dense, 3.7 MB with --evict"
    assert rows["H2O"] == "works"
    assert max(map(len, result.stdout.splitlines()[1:])) <= 80


def test_info_says_why_h2o_does_not_work(unsupported_memory_model: Path) -> None:
    result = succeeded(invoke("info", unsupported_memory_model))
    assert re.search(r"H2O +does not work: .{20,}", result.stdout)


# --- run


def test_run_streams_text_and_measures(text_file: Path) -> None:
    result = succeeded(invoke("run", "demo", "--file", text_file, "-n", "8", "--temp", "0", *SMALL))
    assert len(result.stdout) == 8 + 1
    n_tokens = len(TEXT)
    n_chunks = -(-(n_tokens + 8) // 64)
    assert re.fullmatch(
        rf"\[read {n_tokens:,} tokens in [\d.]+ s \([\d,]+ tokens/s\); wrote 8 tokens in [\d.]+ s \([\d,]+ tokens/s\); "
        rf"KV cache [\d.]+ (k|M)B, {n_chunks} chunks of 64\]\n",
        result.stderr,
    )


def test_run_counts_what_was_drafted(text_file: Path) -> None:
    """Only if something was."""
    command = ["run", "demo", "--prompt", "abcdefgh" * 8, "--temp", "0", "-n", "24", *SMALL]
    plain, drafted = invoke(*command), invoke(*command, "--draft", "15")
    assert drafted.stdout == plain.stdout
    assert "drafted" not in plain.stderr
    match = re.search(r"wrote 24 tokens .* \((\d+) of (\d+) drafted\); KV", drafted.stderr)
    assert match
    assert 0 < int(match[1]) <= int(match[2])


def test_run_goes_on_from_a_file(text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the options of the run that saved it, whatever is said now, and the text that follows from both."""
    contexts = record_calls(monkeypatch, prompt, "Llama")
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


def test_run_reads_standard_input(text_file: Path) -> None:
    from_file = invoke("run", "demo", "--file", text_file, "-n", "8", "--temp", "0", *SMALL)
    from_stdin = succeeded(invoke("run", "demo", "--file", "-", "-n", "8", "--temp", "0", *SMALL, stdin=TEXT))
    assert from_stdin.stdout == from_file.stdout


def test_run_takes_every_option_of_h2o(evals: list[dict[str, Any]], text_file: Path) -> None:
    command = ["run", "demo", "--file", str(text_file), "-n", "1", *SMALL]
    invoke(*command)
    options = h2o_set(sink_tokens=2, scorer="distant", schedule="two_phase", lookup_budget=24)
    invoke(*command, *options)
    in_proportion = H2OConfig(local_window=16, heavy_budget=16, chunk_size=64)
    assert in_proportion.lookup_budget == 128
    changed = replace(in_proportion, sink_tokens=2, schedule="two_phase", lookup_budget=24)
    assert [(call["self"].h2o, call["dense_tail"]) for call in evals] == [(in_proportion, 128), (changed, 128)]
    assert_one_line_error(invoke(*command, *h2o_set(scorer="best")), "scorer must be one of 'distant', 'sum'")


@pytest.mark.parametrize(
    ("options", "tail"),
    [
        (["--file", "FILE"], 128),
        (["--file", "FILE", "--prompt", "x" * 100], 128),
        (["--file", "FILE", "--prompt", "x" * 200], 200),
        (["--prompt", "x" * 200], 128),
        (["--file", "FILE", "--prompt", "x" * 200, "--dense-tail", "7"], 7),
        (["--file", "FILE", "--dense-tail", "0"], 0),
    ],
)
def test_run_reads_the_question_densely(
    evals: list[dict[str, Any]], text_file: Path, options: list[str], tail: int
) -> None:
    options = [str(text_file) if option == "FILE" else option for option in options]
    succeeded(invoke("run", "demo", "--raw", *options, "-n", "1", *SMALL))
    assert [call["dense_tail"] for call in evals] == [tail]


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


YARN = {
    "rope_scaling_type": "yarn",
    "rope_freq_scale": 0.25,
    "rope_freq_base": 5000,
    "yarn_orig_ctx": 48,
    "yarn_ext_factor": 0.5,
    "yarn_attn_factor": 2,
    "yarn_beta_fast": 16,
    "yarn_beta_slow": 2,
}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--threads-batch 2 --mlock --no-mmap", {"n_threads_batch": 2, "use_mlock": True, "use_mmap": False}),
        ("--h2o off --matmul-kernels own", {"h2o": None, "matmul_kernels": "own"}),
        (" ".join(f"--{name.replace('_', '-')} {value}" for name, value in YARN.items()).replace("-type", ""), YARN),
        ("--rope-scale 4", {"rope_freq_scale": 0.25}),
        ("--lora a", {"lora": [(Path("a"), 1.0)]}),
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
    opened = [record_calls(monkeypatch, module, name) for module, name in ((prompt, "Model"), (prompt, "Llama"))]
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


def test_inspect_shows_memory_sets_with_heavy_hitters(text_file: Path) -> None:
    result = succeeded(invoke("inspect", "demo", "--file", text_file, *SMALL))
    assert "Weight is the share of the heavy hitters, in 8 heads." in result.stdout.replace("\n", " ")
    assert "layers are 0 to 3" in invoke("inspect", "demo", "--file", text_file, *SMALL, "--layer", "4").stderr


# --- demo


def test_demo_prints_tables_and_writes_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DOCUMENT_BYTES", 1100)
    monkeypatch.setattr(demo, "LONG_BYTES", 1500)
    monkeypatch.chdir(tmp_path)
    result = succeeded(invoke("demo", *ONE_THREAD))
    assert "1,100 tokens" in result.stdout
    assert "1,500 tokens" in result.stdout
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
