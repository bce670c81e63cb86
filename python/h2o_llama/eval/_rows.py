"""Perplexity and KL divergence of settings, as rows of a file."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from h2o_llama._internal import check
from h2o_llama._internal.atomic import alone_with, replacing
from h2o_llama.config import H2OConfig
from h2o_llama.eval._losses import Losses, over_windows, read_windows, summary
from h2o_llama.eval._settings import DENSE, Setting
from h2o_llama.eval._subject import Progress, Row, Subject, default_text
from h2o_llama.llama import Llama
from h2o_llama.model import Model

_OWNER = "eval"


def _measure(
    subject: Subject, settings: Sequence[Setting], windows: NDArray[np.int32], progress: Progress
) -> dict[str, Row]:
    """Results by the settings' names."""
    n_tokens, chunk_size = windows.shape[1], subject.chunk_size
    with ExitStack() as stack:
        dense = stack.enter_context(subject.open(DENSE, n_tokens))
        readers = {s.name: stack.enter_context(subject.open(s, n_tokens)) for s in settings}
        found, seconds = read_windows(dense, readers, windows, chunk_size, progress)
        return {
            name: {
                "text": subject.text_name,
                **summary(losses[:, n_tokens // 2 :]),
                "over_windows": over_windows(losses[:, n_tokens // 2 :]),
                "first_chunk": over_windows(losses[:, :chunk_size]),
                "buckets": _buckets(losses, chunk_size),
                "tokens_per_s": windows.size / seconds[name],
                "tokens_per_s_dense": windows.size / seconds[DENSE.name],
            }
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


def evaluate(
    model: str | os.PathLike[str] | Model | Llama,
    settings: Sequence[Setting],
    *,
    text: str | bytes | None = None,
    text_name: str | None = None,
    n_tokens: Sequence[int] = (4096,),
    windows: int = 4,
    chunk_size: int = H2OConfig.chunk_size,
    n_threads: int | None = None,
    n_gpu_layers: int | None = None,
    json_file: str | os.PathLike[str] | None = None,
    progress: Callable[[str, int, int], object] | None = None,
) -> list[Row]:
    """Measure the cost of sparse attention: every setting against dense attention on the same tokens.

    Perplexity and KL divergence as llama-perplexity computes them: of each window of N tokens the second half is
    scored, the logits of positions N/2 to N - 2. If the text has as many tokens as the windows, they are
    llama-perplexity's. "buckets" has all positions, by the position that predicts. "over_windows" has errors between
    windows, as tokens of one text are alike, and so has "first_chunk", where H2O is dense attention and only rounding
    differs. The loss of an answer, or of any text after a prompt, is `loglikelihood` of `lm_eval_model`.

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
        By default source of this Python's standard library.
    text_name : str, optional
        What tables call it.
    n_tokens : sequence of int, default 4096
        Lengths N, at least two chunks each.
    windows : int, default 4
        How many pieces of N tokens at most are read, evenly from the whole text.
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
        A row for each length and setting. "task" ("perplexity"), "setting", "n_tokens", "chunk_size", "model",
        "model_fingerprint" (SHA-256 of parts of the file), "h2o", "windows" and the text's SHA-256 identify it; "file"
        is llama.cpp's description of the model, with its file type, "text" the text's name, "machine" where and with
        which version it was measured; the others are results: "nats" are natural logarithms per token, "_se" is a
        standard error, "_dense" is dense attention's number.
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
        plan = [(n, subject.windows(n, windows)) for n in n_tokens]
        rows: list[Row] = []
        for n, pieces in plan:
            # Equal for equal measurements only. A file has no tuples.
            identities = {
                s.name: {
                    "task": "perplexity",
                    "setting": s.name,
                    "n_tokens": n,
                    "h2o": json.loads(json.dumps(asdict(s.h2o), default=lambda f: getattr(f, "__qualname__", repr(f)))),
                    "text_sha256": subject.sha256,
                    "windows": len(pieces),
                    **common,
                }
                for s in settings
                if s.h2o is not None
            }
            missing = [s for s in settings if not find_row(known, identities[s.name])]
            rounds = subject.rounds(missing, n)
            for i, some in enumerate(rounds):
                label = f"{n:,} tokens" + (f" ({i + 1} of {len(rounds)})" if len(rounds) > 1 else "")
                results = _measure(subject, some, pieces, partial(progress or (lambda *_: None), label))
                new = [identities[name] | result | about for name, result in results.items()]
                known += new
                if path is not None:
                    append_rows(path, new)
            rows += [row for identity in identities.values() if (row := find_row(known, identity))]
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
