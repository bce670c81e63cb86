"""A text with its blocks in one file, to hand on: a ZIP archive that is not compressed, as its members are."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

from h2o_llama._internal.atomic import replacing
from h2o_llama.errors import DamagedFileError
from h2o_llama.library._blocks import BlockFiles
from h2o_llama.library._texts import Stored, TextFiles, is_digest, read_text

_OWNER = "Library.import_file"
_TEXT = "text"
_BLOCKS = "blocks/"


def write_parcel(path: Path, text: Stored, blocks: BlockFiles) -> None:
    """Raises OSError, and leaves no file then."""
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
        archive.write(text.path, _TEXT)
        for digest in dict.fromkeys(text.contents.blocks):
            archive.write(blocks.path(digest), f"{_BLOCKS}{digest}")


def read_parcel(path: Path, texts: TextFiles, blocks: BlockFiles) -> str:
    """Add what `write_parcel` has written; returns the text's id. Nobody else may be writing.

    Raises DamagedFileError if it is anything else, or OSError; nothing has changed then.
    """
    new: list[str] = []
    try:
        with zipfile.ZipFile(path) as archive:
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise DamagedFileError(f"[{_OWNER}] {path} is no exported text: it is compressed")
            for name in archive.namelist():
                digest = name.removeprefix(_BLOCKS)
                if is_digest(digest) and not blocks.path(digest).exists():
                    new.append(digest)
                    _unpack(archive, name, blocks.path(digest))
                    blocks.read(digest, is_verified=True)
            return _add_text(archive, path, texts, blocks)
    except BaseException as error:
        for digest in new:
            blocks.remove(digest)
        if isinstance(error, zipfile.BadZipFile | KeyError | EOFError | NotImplementedError):
            raise DamagedFileError(f"[{_OWNER}] {path} is no exported text, or damaged: {error}") from error
        raise


def _add_text(archive: zipfile.ZipFile, source: Path, texts: TextFiles, blocks: BlockFiles) -> str:
    incoming = texts.incoming()
    try:
        _unpack(archive, _TEXT, incoming)
        contents = read_text(incoming)
        n_missing = len(set(contents.blocks) - blocks.digests().keys())
        if n_missing:
            raise DamagedFileError(f"[{_OWNER}] {source} lacks {n_missing} of its blocks")
        target = texts.path(contents)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(incoming, target)
        return contents.id
    finally:
        incoming.unlink(missing_ok=True)


def _unpack(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(name) as source, replacing(path) as file:
        shutil.copyfileobj(source, file)
