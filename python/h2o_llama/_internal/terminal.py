"""Text from outside on a terminal: names, paths, metadata, messages, warnings, answers of a model.

None of it is rich's markup, and no terminal may obey it.
"""

import sys
import warnings
from collections.abc import Callable

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.text import Text

from h2o_llama.errors import H2OWarning

# Control characters would move a terminal's cursor or be dropped by a browser: show their pictures instead.
_PICTURES = (
    {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
    | {0x7F: 0x2421}
    | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
    | dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)  # they reorder the text after them
    | dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)  # of names that are not UTF-8: they cannot be written
)


def printable(text: str) -> str:
    """The text with pictures of its control characters, but for line ends and tabs."""
    return text.translate(_PICTURES)


def plain(text: str, style: str = "") -> Text:
    """The text for rich, without markup."""
    return Text(printable(text), style)


def counted(n: int, noun: str) -> str:
    """A number of things."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def echo(text: object, err: bool = False) -> None:
    """Print a line to standard output, or to standard error."""
    print(printable(str(text)), file=sys.stderr if err else sys.stdout, flush=True)


def write(text: str) -> None:
    """Write to standard output: a terminal gets printable text, files and pipes the text itself."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_thoughts(text: str) -> None:
    """Write to standard error, dimmed on a terminal."""
    sys.stderr.write(f"\x1b[2m{printable(text)}\x1b[0m" if sys.stderr.isatty() else text)
    sys.stderr.flush()


def progress_bar() -> Callable[[int, int], None]:
    """A bar on standard error, drawn by calls with two numbers of tokens: done, and in all. Without a terminal, a line.

    It draws without a thread and leaves the cursor alone, as an exception may end the call that it shows.
    """
    console = Console(stderr=True)

    def show(n_done: int, n_total: int) -> None:
        if console.is_terminal:
            console.print(ProgressBar(n_total, n_done, width=40), end="")
        if console.is_terminal or n_done >= n_total:
            console.print(
                f" {n_done:,} of {n_total:,} tokens", end="\n" if n_done >= n_total else "\r", highlight=False
            )

    return show


def warn(message: str) -> None:
    """An H2OWarning about the line that has called this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "h2o_llama":
        level, frame = level + 1, frame.f_back
    warnings.warn(printable(message), H2OWarning, stacklevel=level)
