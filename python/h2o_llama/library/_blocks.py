"""Files of blocks: each is named by the SHA-256 of its content, so an existing file need not be written again."""

from __future__ import annotations

import hashlib
from pathlib import Path

from h2o_llama.library._texts import is_digest
from h2o_llama.sequence import _snapshot_file

_KIND = "block"


class BlockFiles:
    """The blocks of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, digest: str) -> Path:
        """Where it is, or would be."""
        return self._folder / digest[:2] / digest

    def digests(self) -> dict[str, int]:
        """Bytes of the file of each block that is there."""
        found = {}
        for path in self._folder.glob("??/*"):
            if is_digest(path.name):
                try:
                    found[path.name] = path.stat().st_size
                except FileNotFoundError:
                    continue
        return found

    def add(self, content: bytes, width: int) -> tuple[str, bool]:
        """Its digest, and whether it is new. `width` is how many bytes make a number. Raises OSError."""
        digest = hashlib.sha256(content).hexdigest()
        path = self.path(digest)
        if path.exists():
            return digest, False
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"kind": _KIND, "sha256": digest}
        _snapshot_file.write(path, about, {"content": _snapshot_file.Section(content, width)})
        return digest, True

    def read(self, digest: str, *, is_verified: bool = False) -> bytes:
        """The content. Raises OSError, or DamagedFileError if it is none, damaged, or another block.

        Checksums are looked at in any case; `is_verified` computes the digest, too.
        """
        path = self.path(digest)
        about, (content,) = _snapshot_file.read(path, ("content",))
        if not isinstance(about, dict) or about.get("kind") != _KIND or about.get("sha256") != digest:
            raise _snapshot_file.damaged(path, "it is another block")
        if is_verified and hashlib.sha256(content).hexdigest() != digest:
            raise _snapshot_file.damaged(path, "its content is not what its name says")
        return content

    def remove(self, digest: str) -> None:
        """It need not be there."""
        self.path(digest).unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        """What a process left that was killed while it wrote. Nobody may be writing."""
        for path in self._folder.glob("??/.*.new"):
            path.unlink(missing_ok=True)
