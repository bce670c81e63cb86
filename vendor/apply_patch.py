"""Apply a unified diff exactly: patch-ng does the work, and this refuses whatever it would let pass.

patch-ng accepts a patch that is already applied, and prints instead of raising. Here every hunk must match the file
at its own line, with all of its context, or nothing is changed.
"""

import logging
from pathlib import Path
from typing import Any

import patch_ng

logging.getLogger("patch_ng").setLevel(logging.CRITICAL)


class PatchError(Exception):
    """Names the patch and the file."""


def apply_patch(patch: Path, root: Path) -> None:
    """Apply `patch` (paths with a/ and b/) to the tree under `root`; PatchError when it does not fit exactly."""
    patch_set = patch_ng.fromfile(str(patch))
    if not patch_set or patch_set.errors:
        raise PatchError(f"patch {patch.name} is not a unified diff")
    for item in patch_set:
        _check_item(patch, item, root)
    if not patch_set.apply(strip=1, root=str(root)):
        raise PatchError(f"patch {patch.name} does not apply")


def _check_item(patch: Path, item: Any, root: Path) -> None:
    source, target = item.source.decode().removeprefix("a/"), item.target.decode().removeprefix("b/")
    if source != target:
        raise PatchError(f"patch {patch.name} adds, removes or renames {target}: patches only change existing files")
    path = root / target
    if not path.is_file():
        raise PatchError(f"patch {patch.name} does not apply: {target} does not exist")
    lines = path.read_bytes().split(b"\n")
    for hunk in item.hunks:
        before = [line[1:].rstrip(b"\n") for line in hunk.text if line[:1] in (b" ", b"-")]
        start = hunk.startsrc - 1
        if lines[start : start + len(before)] != before:
            raise PatchError(f"patch {patch.name} does not apply: {target}, hunk at line {hunk.startsrc}")
