"""The tasks "perplexity" and "continuation", the losses of a text and of the text after a prompt; and runs of tasks."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from h2o_llama._internal import check
from h2o_llama._internal.atomic import alone_with, replacing
from h2o_llama.config import H2OConfig
from h2o_llama.eval._losses import Losses, over_windows, read_windows, summary
from h2o_llama.eval._settings import DENSE, Setting
from h2o_llama.eval._subject import Progress, Row, Subject, default_text
from h2o_llama.llama import Llama
from h2o_llama.model import Model

_OWNER = "eval"


@dataclass(frozen=True)
class Perplexity:
    """Perplexity and KL divergence as llama-perplexity computes them.

    Windows of N tokens, at most `windows`, are taken evenly from the whole text, and the second half of each is scored:
    the logits of positions N/2 to N - 2. If the text has as many tokens as the windows, they are llama-perplexity's.
    "buckets" has all positions, by the position that predicts. "over_windows" has errors between windows, as tokens of
    one text are alike, and so has "first_chunk", where H2O is dense attention and only rounding differs.
    """

    windows: int = 4
    name = "perplexity"
    contexts_each = 1

    def variants(self, subject: Subject, n_tokens: int) -> list[Row]:
        """One row."""
        return [subject.identity(n_tokens, self.windows)]

    def measure(
        self, subject: Subject, settings: Sequence[Setting], n_tokens: int, progress: Progress
    ) -> Mapping[str, Sequence[Row]]:
        """Results by the settings' names."""
        windows, chunk_size = subject.windows(n_tokens, self.windows), subject.chunk_size
        with ExitStack() as stack:
            dense = stack.enter_context(subject.open(DENSE, n_tokens))
            readers = {s.name: stack.enter_context(subject.open(s, n_tokens)) for s in settings}
            found, seconds = read_windows(dense, readers, windows, 0, chunk_size, progress)
            return {
                name: [
                    {
                        "text": subject.text_name,
                        **summary(losses[:, n_tokens // 2 :]),
                        "over_windows": over_windows(losses[:, n_tokens // 2 :]),
                        "first_chunk": over_windows(losses[:, :chunk_size]),
                        "buckets": _buckets(losses, chunk_size),
                        "tokens_per_s": windows.size / seconds[name],
                        "tokens_per_s_dense": windows.size / seconds[DENSE.name],
                    }
                ]
                for name, losses in found.items()
            }


def _buckets(losses: Losses, chunk_size: int) -> list[Row]:
    """Means by position: a power of two that fits into the first chunk, then twice as many each time."""
    end = losses.shape[1]
    edges = [0, 1 << (chunk_size.bit_length() - 1)]
    while edges[-1] < end:
        edges.append(2 * edges[-1])
    edges[-1] = end
    rows = []
    for start, stop in pairwise(edges):
        means = summary(losses[:, start:stop])
        shown = {key: means[key] for key in ("ppl", "ppl_dense", "kld_mean", "same_top")}
        rows.append({"start": start, "stop": stop, **shown, "n": means["n_scored"]})
    return rows


# Whether the continuation attends to all K and V of the prompt, or to its chunk's memory set.
_OVER = ("full", "memory")


@dataclass(frozen=True)
class Continuation:
    """How well the text after a prompt of N tokens is predicted, from what the prompt's prefill left in the cache.

    At most `windows` prompts are taken evenly from the text, each with `length` tokens after it, at least 2: the
    continuation. It is given, not generated. Its tokens attend to everything kept ("over": "full"), as generated tokens
    do, or to a memory set and their own chunk ("memory"), as the prompt's. Its first token is not scored: the prompt
    predicts it.
    """

    length: int = 256
    windows: int = 4
    name = "continuation"
    contexts_each = len(_OVER)

    def variants(self, subject: Subject, n_tokens: int) -> list[Row]:
        """A row for each "over"."""
        size = n_tokens + check.integer("eval", "length", self.length, 2)
        common = subject.identity(size, self.windows)
        return [{**common, "over": over, "prompt_tokens": n_tokens, "length": self.length} for over in _OVER]

    def measure(
        self, subject: Subject, settings: Sequence[Setting], n_tokens: int, progress: Progress
    ) -> Mapping[str, Sequence[Row]]:
        """Results by the settings' names, for each "over"."""
        size = n_tokens + self.length
        windows = subject.windows(size, self.windows)
        with ExitStack() as stack:
            dense = stack.enter_context(subject.open(DENSE, size))
            readers = {
                f"{s.name}, {over}": stack.enter_context(subject.open(s, size)) for s in settings for over in _OVER
            }
            tails = [f"{s.name}, full" for s in settings]
            found, _ = read_windows(dense, readers, windows, n_tokens, subject.chunk_size, progress, tails)
        return {
            s.name: [
                {"text": subject.text_name, **summary(losses), "over_windows": over_windows(losses)}
                for losses in (found[f"{s.name}, {over}"] for over in _OVER)
            ]
            for s in settings
        }


Task = Perplexity | Continuation
"""One kind of measurement: `variants` are values that tell a setting's rows of a length apart, and from rows of other
options. They raise ValueError if the task cannot be done with this text and length, before anything is computed."""


def evaluate(
    model: str | os.PathLike[str] | Model | Llama,
    settings: Sequence[Setting],
    *,
    text: str | bytes | None = None,
    text_name: str | None = None,
    n_tokens: Sequence[int] = (4096,),
    tasks: Sequence[Task] = (Perplexity(), Continuation()),
    chunk_size: int = H2OConfig.chunk_size,
    n_threads: int | None = None,
    n_gpu_layers: int | None = None,
    json_file: str | os.PathLike[str] | None = None,
    progress: Callable[[str, int, int], object] | None = None,
) -> list[Row]:
    """Measure the cost of sparse attention: every setting against dense attention on the same tokens.

    Dense attention and as many settings as fit into half of the machine's memory read a text side by side.

    Raises ValueError if an argument is bad, the text is too short, or `json_file` holds something else; H2OError if the
    model cannot be measured.

    Parameters
    ----------
    model : str, os.PathLike or Llama
        A GGUF file, or an open model, whose weights are used.
    settings : sequence of Setting
        See `sweep` and `window`.
    text : str or bytes, optional
        What "perplexity" and "continuation" read; by default source of this Python's standard library.
    text_name : str, optional
        What tables call it.
    n_tokens : sequence of int, default 4096
        Lengths N, at least two chunks each.
    tasks : sequence of Task
        `Perplexity`, `Continuation`.
    chunk_size : int, default 1024
        S, for all settings.
    n_threads, n_gpu_layers
        As in `Llama`.
    json_file : str or os.PathLike, optional
        A list of rows: those in it are not measured again, and finished ones are added at once.
    progress : callable, optional
        Called as progress(name, n_done, n), with a name for each task and length.

    Returns
    -------
    list of dict
        Rows for each length, task and setting. "task", "setting", "n_tokens", "chunk_size", "model",
        "model_fingerprint" (SHA-256 of parts of the file), "h2o" and the task's options, the text's
        SHA-256 among them, identify it; "file" is llama.cpp's description of the model, with its file type,
        "text" the text's name, "machine" where and with which version it was measured; the others are results: "nats"
        are natural logarithms per token, "_se" is a standard error, "_dense" is dense attention's number.
    """
    names = [s.name for s in settings]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"[{_OWNER}] settings must be at least one, each with its own name, got {names}")
    if any(s.h2o is None for s in settings):
        raise ValueError(f"[{_OWNER}] dense attention is measured with every setting: leave it out of settings")
    check.integer(_OWNER, "chunk_size", chunk_size, 2)
    for n in n_tokens:
        if check.integer(_OWNER, "n_tokens", n, 1) < 2 * chunk_size:
            raise ValueError(
                f"[{_OWNER}] n_tokens must be at least two chunks, got {n} with chunks of {chunk_size}: the first "
                "chunk is read densely, and there would be too little after it to tell settings apart"
            )
    path = None if json_file is None else Path(json_file)
    known: list[Row] = []
    if path is not None:
        append_rows(path, [])  # if it cannot be written, fail before anything is measured
        known = read_rows(path)
    source = default_text() if text is None else text.encode() if isinstance(text, str) else text
    name = text_name or ("Python's library" if text is None else "a text")
    subject = Subject(model, source, name, chunk_size=chunk_size, n_threads=n_threads, n_gpu_layers=n_gpu_layers)
    try:
        about = {"file": subject.weights.desc, "machine": subject.machine}
        common = {
            "chunk_size": chunk_size,
            "model": Path(subject.weights.model_path).name,
            "model_fingerprint": subject.fingerprint,
        }
        plan = [(n, task, task.variants(subject, n)) for n in n_tokens for task in tasks]
        rows: list[Row] = []
        for n, task, variants in plan:
            # Equal for equal measurements only. A file has no tuples.
            identities = {
                s.name: [
                    {
                        "task": task.name,
                        "setting": s.name,
                        "n_tokens": n,
                        "h2o": json.loads(
                            json.dumps(
                                asdict(s.h2o), default=lambda scorer: getattr(scorer, "__qualname__", repr(scorer))
                            )
                        ),
                    }
                    | common
                    | variant
                    for variant in variants
                ]
                for s in settings
                if s.h2o is not None
            }
            missing = [s for s in settings if not all(find_row(known, i) for i in identities[s.name])]
            rounds = subject.rounds(missing, n, task.contexts_each)
            for i, some in enumerate(rounds):
                label = f"{task.name}, {n:,} tokens" + (f" ({i + 1} of {len(rounds)})" if len(rounds) > 1 else "")
                results = task.measure(subject, some, n, partial(progress or (lambda *_: None), label))
                new = [
                    identity | result | about
                    for s in some
                    for identity, result in zip(identities[s.name], results[s.name], strict=True)
                ]
                known += new
                if path is not None:
                    append_rows(path, new)
            rows += [row for s in settings for i in identities[s.name] if (row := find_row(known, i))]
        return rows
    finally:
        subject.close()


def read_rows(path: Path) -> list[Row]:
    """The rows of a file; none if it is missing or empty.

    Raises ValueError if it is not a list of rows as `evaluate` writes them.
    """
    try:
        content = path.read_bytes()
        rows = json.loads(content) if content else []
    except FileNotFoundError:
        return []
    except ValueError:  # no JSON, or no UTF-8
        rows = None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "task" in row for row in rows):
        raise ValueError(f"[{_OWNER}] {path} is not a list of rows of this command: name another file, or remove it")
    return rows


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Add rows to a file, to which other runs may add theirs.

    It is replaced as a whole: readers see all of the rows or none of them.
    """
    with alone_with(path):
        text = json.dumps([*read_rows(path), *rows], indent=1) + "\n"
        with replacing(path) as file:
            file.write(text.encode())


def find_row(rows: Sequence[Row], identity: Row) -> Row | None:
    """The newest row that has all of these values."""
    return next((row for row in reversed(rows) if identity.items() <= row.items()), None)
