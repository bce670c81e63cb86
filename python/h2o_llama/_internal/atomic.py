"""Files that are replaced as a whole or not at all."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock


def check_target(path: Path) -> None:
    """Raise OSError if a file cannot be written there: better before a long computation than after it."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path.parent))


def alone_with(path: Path, seconds: float = -1) -> FileLock:
    """Entered by one process or thread at a time. The others wait, or raise `filelock.Timeout` after that time."""
    path = Path(os.path.realpath(path))
    return FileLock(path.with_name(f".{path.name[:100]}.lock"), timeout=seconds, thread_local=False)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the block ends, on the disk too; deleted if the block raises.

    A link stays one: its target is replaced. The file's permissions stay.
    """
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.new")
    try:
        with temporary.open("xb") as file:
            if path.exists():
                shutil.copymode(path, temporary)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # elsewhere a folder cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
