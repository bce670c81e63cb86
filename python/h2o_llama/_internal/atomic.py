"""Files that are replaced as a whole or not at all."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None  # type: ignore[assignment]


def check_target(path: Path) -> None:
    """Raise OSError if a file cannot be written there: better before a long computation than after it."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path.parent))


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Waits until no other process or thread is in such a block about a file of the same folder."""
    if fcntl is None:
        yield
        return
    folder = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)  # and with it the lock


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
