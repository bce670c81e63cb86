"""Files that are replaced as a whole."""

import os
from pathlib import Path

import pytest

from h2o_llama._internal.atomic import replacing


def replace(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


@pytest.mark.skipif(os.name != "posix", reason="links and permissions are others")
def test_links_and_permissions_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to(target)
    replace(link, b"new")  # its target need not exist
    target.chmod(0o640)
    replace(link, b"newer")
    assert link.is_symlink()
    assert target.read_bytes() == b"newer"
    assert target.stat().st_mode & 0o777 == 0o640
    assert list(target.parent.iterdir()) == [target]
