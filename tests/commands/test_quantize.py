"""`quantize_model` and `h2o-llama quantize`: the written files, and the messages and remains of failures."""

import itertools
import signal
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

import models
from bad_files import write_files
from command_line import invoke, succeeded
from compare import case
from full_disk import file_size_limit
from h2o_llama import H2OError, Llama, _core, demo_model_path
from h2o_llama.models._quantize import quantize_model

TOKENS = list(range(40))


def logits_of(path: Path) -> np.ndarray:
    with Llama(path, n_ctx=64, n_ubatch=64, n_threads=1, h2o=None) as llm:
        llm.eval(TOKENS, logits="all")
        return llm.logits


def matrix_types(path: Path) -> set[str]:
    return {t.tensor_type.name for t in GGUFReader(path).tensors if len(t.shape) > 1}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A file to write, in a folder of its own."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "made.gguf"


def test_every_type_can_be_evaluated(tiny_model: Path, out: Path) -> None:
    """And has the type, but for some tensors."""
    expected = logits_of(tiny_model)
    for name in _core.quantize_types():
        with case(name=name):
            quantize_model(tiny_model, out, name, n_threads=1)
            error = np.linalg.norm(logits_of(out) - expected) / np.linalg.norm(expected)
            assert (error == 0) == (name == "F32")
            assert error < 0.6
            if name in ("F32", "F16", "BF16", "Q8_0", "Q4_0"):
                assert {name} <= matrix_types(out) <= {name, "Q6_K", "Q8_0"}


# --- failures


@pytest.mark.parametrize("how", ["dots", "link", "hard link"])
def test_a_model_is_not_written_over_itself(how: str, tiny_model: Path, tmp_path: Path) -> None:
    source, other = tmp_path / "model.gguf", tmp_path / "other.gguf"
    source.write_bytes(tiny_model.read_bytes())
    if how == "link":
        other.symlink_to(source)
    elif how == "hard link":
        other.hardlink_to(source)
    target = tmp_path / "x" / ".." / "model.gguf" if how == "dots" else other
    (tmp_path / "x").mkdir()
    with pytest.raises(ValueError, match="is the model itself: give another file"):
        quantize_model(source, target, "Q8_0")
    assert source.read_bytes() == tiny_model.read_bytes()


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, out: Path) -> None:
    source = tmp_path / "bad.gguf"
    models.write_model(models.ONE_LAYER, source)
    tensors = {t.name: t for t in GGUFReader(source, "r+").tensors}
    tensors["blk.0.ffn_up.weight"].data[3, 5] = np.nan
    with pytest.raises(H2OError, match=r"\[quantize\] llama\.cpp cannot quantize .*bad\.gguf: .*ffn_up\.weight"):
        quantize_model(source, out, "Q4_K_M")
    assert list(out.parent.iterdir()) == []


def test_no_damaged_file_ends_the_process(
    tiny_model: Path, out: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every file of bad_files.py, as three types. Some only the loader minds: those are written."""
    folder = tmp_path / "bad"
    folder.mkdir()
    write_files(tiny_model, folder)
    files = sorted(folder.iterdir())
    raised = {}
    for file, name in itertools.product(files, ("Q8_0", "Q4_K_S", "F16")):
        try:
            quantize_model(file, out, name, 2)
            raised[file.name, name] = "nothing"
        except H2OError as error:
            raised[file.name, name] = type(error).__name__
    assert capfd.readouterr() == ("", "")
    assert set(raised.values()) == {"nothing", "H2OError", "DamagedFileError"}
    assert raised["rope-scaling", "Q8_0"] == "H2OError"  # an assertion of llama.cpp
    assert raised["truncated-0", "Q8_0"] == "DamagedFileError"
    assert [path for path in out.parent.iterdir() if path != out] == []


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.99])
def test_a_full_disk_leaves_the_old_file(share: float, tiny_model: Path, out: Path) -> None:
    quantize_model(tiny_model, out, "Q8_0")
    n_bytes = out.stat().st_size
    out.write_bytes(b"old")
    with file_size_limit(int(share * n_bytes)), pytest.raises(OSError, match="File too large") as error:
        quantize_model(tiny_model, out, "Q8_0")
    assert error.value.filename == str(out)
    assert out.read_bytes() == b"old"
    assert list(out.parent.iterdir()) == [out]


def quantize_for_ever(out: Path) -> None:
    while True:
        quantize_model(demo_model_path(), out, "IQ4_NL", n_threads=1)
        out.unlink()


def test_an_interruption_leaves_nothing(out: Path) -> None:
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            quantize_for_ever(out)
    finally:
        signal.signal(signal.SIGALRM, previous)
    out.unlink(missing_ok=True)
    assert list(out.parent.iterdir()) == []


# --- the command line


def test_the_command_takes_the_demo_model(out: Path) -> None:
    result = succeeded(invoke("quantize", "demo", out, "q8_0"))
    assert result.stderr == ""
    assert result.stdout.startswith(f"Written: {out}, 2.")
    assert matrix_types(out) == {"Q8_0"}
