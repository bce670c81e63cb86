"""For people who work on patches/: edit the patched llama.cpp as a git tree, and write the patches from its commits.

    python tools/patches.py edit                 make vendor/llama.cpp a git tree: upstream, then one commit per patch
    python tools/patches.py refresh              write patches/*.patch from these commits
    python tools/patches.py refresh --into NAME  first put uncommitted changes into patch NAME: those in the files that
                                                 are named; without names, those that are staged; else all
    python tools/patches.py check                does every patch apply exactly, and would refresh write the same?

A patch is a file NNNN-what.patch: some lines about its purpose (edit them in the file), then a unified diff.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "vendor"))

import fetch  # noqa: E402

_NAME = re.compile(r"\d{4}-[a-z0-9-]+\.patch")
# The same result for everybody: no configuration but this one.
_GIT_ENV = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_EDITOR": "true",
    **{f"GIT_{who}_{what}": "h2o-llama" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


class PatchesError(Exception):
    """The message is one line."""


def edit(layout: fetch.Layout) -> str:
    """Replace vendor/llama.cpp by a git tree of upstream and one commit per patch."""
    if (layout.tree / ".git").exists():
        raise PatchesError(f"{layout.tree} is an editable tree already")
    with tempfile.TemporaryDirectory(prefix=".new-", dir=layout.tree.parent) as folder:
        new = Path(folder) / "llama.cpp"
        _make_git_tree(layout, new)
        fetch.keep_times(layout.tree, new)
        fetch.replace_tree(new, layout.tree)
    return f"{layout.tree} is an editable tree with {len(layout.patches())} patches; the build uses it unchanged"


def refresh(layout: fetch.Layout, into: str | None, purpose: str | None, paths: list[str]) -> str:
    """Write patches/ from the commits of the editable tree, after folding uncommitted changes into patch `into`."""
    tree = layout.tree
    if not (tree / ".git").exists():
        raise PatchesError("there is no editable tree: run `python tools/patches.py edit` first")
    if into is not None:
        _fold(layout, into, purpose, paths)
    patches = _read_commits(tree, layout.root / "patches")
    for path in layout.patches():
        if path.name not in patches:
            path.unlink()
    (layout.root / "patches").mkdir(exist_ok=True)
    for name, text in patches.items():
        (layout.root / "patches" / name).write_bytes(text)
    left = _git(tree, "status", "--porcelain").splitlines()
    note = f"; not in any patch yet: {', '.join(line[3:] for line in left)}" if left else ""
    return f"{len(patches)} patches written{note}"


def check(layout: fetch.Layout) -> str:
    """PatchesError unless every patch applies exactly and is what `refresh` would write."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "llama.cpp"
        _make_git_tree(layout, tree)
        written = _read_commits(tree, layout.root / "patches")
    for path in layout.patches():
        if path.read_bytes() != written[path.name]:
            raise PatchesError(f"{path.name} is not what `tools/patches.py refresh` writes")
    return f"{len(written)} patches apply exactly and are written the same again"


def _make_git_tree(layout: fetch.Layout, tree: Path) -> None:
    fetch.extract_pristine(layout, tree)
    _git(tree, "init", "--quiet", "--initial-branch=h2o")
    (tree / ".git" / "info" / "exclude").write_text(f"/{fetch.STAMP}\n*.orig\n")
    _git(tree, "add", "--all", "--force")
    _git(tree, "commit", "--quiet", f"--message=llama.cpp {fetch.read_pin(layout.requirements).tag}")
    for patch in layout.patches():
        if not _NAME.fullmatch(patch.name):
            raise PatchesError(f"{patch.name} is not called NNNN-what.patch")
        fetch.apply_patches([patch], tree)
        _git(tree, "commit", "--quiet", "--all", f"--message={patch.name}")


def _fold(layout: fetch.Layout, name: str, purpose: str | None, paths: list[str]) -> None:
    """Commit uncommitted changes as patch `name`, into its existing commit when there is one."""
    tree = layout.tree
    commits = _commits(tree)
    if paths:
        _git(tree, "reset", "--quiet")
    if paths or not _git(tree, "diff", "--cached", "--name-only"):
        _git(tree, "add", "--update", "--", *(paths or ["."]))
    if not _git(tree, "diff", "--cached", "--name-only"):
        raise PatchesError(" ".join(["there are no uncommitted changes", *(["in", *paths] if paths else [])]))
    if name in commits:
        _git(tree, "commit", "--quiet", f"--fixup={commits[name]}")
        try:
            _git(tree, "rebase", "--quiet", "--interactive", "--autosquash", "--autostash", "--root")
        except PatchesError as error:
            _git(tree, "rebase", "--abort")
            _git(tree, "reset", "--quiet", "--soft", "HEAD~1")
            raise PatchesError(f"a later patch changes the same lines, {name} is left as it was: {error}") from error
        return
    if not _NAME.fullmatch(name):
        raise PatchesError(f"{name} is not called NNNN-what.patch")
    if any(name < other for other in commits):
        raise PatchesError(f"a new patch goes last: {name} would not come after {max(commits)}")
    if not purpose:
        raise PatchesError("say what the new patch is for: --purpose TEXT")
    (layout.root / "patches").mkdir(exist_ok=True)
    (layout.root / "patches" / name).write_text(f"{purpose}\n", encoding="utf-8")
    _git(tree, "commit", "--quiet", f"--message={name}")


def _commits(tree: Path) -> dict[str, str]:
    """Patch name (the commit's subject) → commit, in order, without upstream's."""
    lines = _git(tree, "log", "--reverse", "--format=%H %s").splitlines()[1:]
    return {subject: commit for commit, _, subject in (line.partition(" ") for line in lines)}


def _read_commits(tree: Path, patches: Path) -> dict[str, bytes]:
    """Patch name → contents: the header that the file has now, then the commit's diff."""
    result = {}
    for name, commit in _commits(tree).items():
        diff = _git(
            tree, "diff", "--unified=1", "--no-renames", "--no-ext-diff", "--no-color", "--full-index",
            "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/", f"{commit}~1", commit,
        )  # fmt: skip
        body = re.sub(r"^(?:diff --git .*\n)(?:index .*\n)", "", diff, flags=re.MULTILINE)
        if re.search(r"^diff --git ", body, re.MULTILINE):
            raise PatchesError(
                f"{name} adds, removes, renames or changes the mode of a file: patches only change lines"
            )
        path = patches / name
        header = re.split(r"^--- a/", path.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)[0].strip()
        if not header:
            raise PatchesError(f"{name} has no description above the diff")
        result[name] = f"{header}\n\n{body}".encode()
    return result


def _git(tree: Path, *arguments: str) -> str:
    command = ["git", "-c", "core.autocrlf=false", "-c", "commit.gpgsign=false", *arguments]
    try:
        result = subprocess.run(command, cwd=tree, env=_GIT_ENV, stdin=subprocess.DEVNULL, capture_output=True)
    except FileNotFoundError as error:
        raise PatchesError("git is needed to work on patches") from error
    if result.returncode != 0:
        raise PatchesError(f"git {arguments[0]}: {result.stderr.decode(errors='replace').strip()}")
    return result.stdout.decode("utf-8", errors="surrogateescape")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("edit")
    commands.add_parser("check")
    refresh_parser = commands.add_parser("refresh")
    refresh_parser.add_argument("--into", metavar="NAME", help="patch that takes the uncommitted changes; may be new")
    refresh_parser.add_argument("--purpose", metavar="TEXT", help="header of a new patch")
    refresh_parser.add_argument("paths", nargs="*", metavar="PATH", help="only changes in these (relative to the tree)")
    options = parser.parse_args()
    layout = fetch.Layout(ROOT)
    try:
        if options.command == "edit":
            print(edit(layout))
        elif options.command == "check":
            print(check(layout))
        else:
            print(refresh(layout, options.into, options.purpose, options.paths))
    except (PatchesError, fetch.VendorError) as error:
        sys.exit(f"patches: {error}")


if __name__ == "__main__":
    main()
