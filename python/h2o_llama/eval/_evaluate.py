"""Perplexity and KL divergence of settings, next to dense attention's on the same tokens."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from h2o_llama._demo.document import default_text
from h2o_llama._internal import check
from h2o_llama._internal.machine import available_cpus, describe, kv_bytes_at_least, physical_memory
from h2o_llama.config import H2OConfig
from h2o_llama.eval._losses import over_windows, piece_tokens, read_windows, summary
from h2o_llama.llama import Llama
from h2o_llama.model import Model

_OWNER = "eval"

Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """One way to compute attention, and what tables and rows call it. Without `h2o` it is dense."""

    name: str
    h2o: H2OConfig | None

    @classmethod
    def of(cls, h2o: H2OConfig) -> Self:
        """With the name that a command line takes: the preset, then options that differ from it.

        Such as "balanced decode=memory". The size of chunks, the same for all, is left out. Where H2O chooses nothing,
        `h2o` gets the default scorer, so that equal measurements are equal settings.
        """
        if h2o.heavy_budget == 0:
            h2o = replace(h2o, scorer=H2OConfig.scorer)
        plain = H2OConfig(preset=h2o.preset, chunk_size=h2o.chunk_size, evict=h2o.evict, cold_store=h2o.cold_store)
        expected = plain.as_text()
        changed = [f"{name}={text}" for name, text in h2o.as_text().items() if text != expected.get(name)]
        kept = [] if not h2o.evict else ["evict" if h2o.cold_store is None else "evict to a cold store"]
        return cls(" ".join([h2o.preset, *kept, *changed]), h2o)


DENSE = Setting("dense", None)


def sweep(*, chunk_size: int = H2OConfig.chunk_size, **values: Sequence[Any]) -> list[Setting]:
    """The settings of all combinations of values of parameters, the last one changing fastest.

    A name is a parameter of `H2OConfig` or a key of `research`.

    Raises ValueError if a value is out of range, or a parameter has none.
    """
    settings = [
        Setting.of(H2OConfig.from_dict({**dict(zip(values, chosen, strict=True)), "chunk_size": chunk_size}))
        for chosen in product(*values.values())
    ]
    if not settings:
        raise ValueError(f"[{_OWNER}] there is no setting: give at least one value for each part of the sweep")
    return list(dict.fromkeys(settings))


def evaluate(
    model: str | os.PathLike[str] | Model | Llama,
    settings: Sequence[Setting],
    *,
    text: str | bytes | None = None,
    text_name: str | None = None,
    n_tokens: Sequence[int] = (4096,),
    windows: int = 4,
    n_threads: int | None = None,
    n_gpu_layers: int | None = None,
    progress: Callable[[str, int, int], object] = lambda *_: None,
) -> Iterator[Row]:
    """Measure the cost of sparse attention: every setting against dense attention on the same tokens.

    Perplexity and KL divergence as llama-perplexity computes them: of each window of N tokens the second half is
    scored, the logits of positions N/2 to N - 2. If the text has as many tokens as the windows, they are
    llama-perplexity's. "over_windows" has errors between windows, as tokens of one text are alike, and so has
    "first_chunk", where H2O is dense attention and only rounding differs. The loss of an answer, or of any text after a
    prompt, is `loglikelihood` of `lm_eval_model`.

    Dense attention and as many settings as fit into half of the machine's memory read a text side by side.

    Raises ValueError if an argument is bad or the text is too short, before anything is measured; H2OError if the model
    cannot be measured.

    Parameters
    ----------
    model : str, os.PathLike or Llama
        A GGUF file, or an open model, whose weights are used.
    settings : sequence of Setting
        See `sweep`. All have chunks of the same size.
    text : str or bytes, optional
        By default source of this Python's standard library.
    text_name : str, optional
        What tables call it.
    n_tokens : sequence of int, default 4096
        Lengths N, at least two chunks each.
    windows : int, default 4
        How many pieces of N tokens at most are read, evenly from the whole text.
    n_threads, n_gpu_layers
        As in `Llama`.
    progress : callable, optional
        Called as progress(name, n_done, n), with a name for each length.

    Returns
    -------
    iterator of dict
        A row for each length and setting, once it is measured. "setting", "n_tokens", "chunk_size", "model", "h2o" and
        "windows" identify it; "file" is llama.cpp's description of the model, with its file type, "text" the
        text's name, "machine" where and with which version it was measured; the others are results: "nats" are natural
        logarithms per token, "_se" is a standard error, "_dense" is dense attention's number.
    """
    names = [s.name for s in settings]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"[{_OWNER}] settings must be at least one, each with its own name, got {names}")
    if any(s.h2o is None for s in settings):
        raise ValueError(f"[{_OWNER}] dense attention is measured with every setting: leave it out of settings")
    sizes = {s.h2o.chunk_size for s in settings if s.h2o is not None}
    if len(sizes) > 1:
        raise ValueError(f"[{_OWNER}] settings must have chunks of one size, got {sorted(sizes)}")
    (chunk_size,) = sizes
    for n in n_tokens:
        if check.integer(_OWNER, "n_tokens", n, 1) < 2 * chunk_size:
            raise ValueError(
                f"[{_OWNER}] n_tokens must be at least two chunks, got {n} with chunks of {chunk_size}: the first "
                "chunk is read densely, and there would be too little after it to tell settings apart"
            )
    weights = Model._of(model, n_gpu_layers=n_gpu_layers)
    source = default_text() if text is None else text.encode() if isinstance(text, str) else text
    tokens = np.array(weights.tokenize(source), dtype=np.int32)
    plan = {n: _windows(weights, tokens, n, windows) for n in n_tokens}
    about = {
        "text": text_name or ("Python's library" if text is None else "a text"),
        "chunk_size": chunk_size,
        "model": Path(weights.model_path).name,
        "file": weights.desc,
        "machine": describe() | {"threads": available_cpus() if n_threads is None else n_threads},
    }
    context: dict[str, Any] = {"n_batch": max(4096, chunk_size), "n_ubatch": chunk_size}
    context |= {"n_threads": n_threads, "n_gpu_layers": n_gpu_layers}
    return _rows(weights, settings, plan, about, context, progress)


def _rows(
    weights: Model,
    settings: Sequence[Setting],
    plan: Mapping[int, NDArray[np.int32]],
    about: Row,
    context: Mapping[str, Any],
    progress: Callable[[str, int, int], object],
) -> Iterator[Row]:
    with weights:
        for n, windows in plan.items():
            rounds = _rounds(weights, settings, about["chunk_size"], n)
            for i, some in enumerate(rounds):
                label = f"{n:,} tokens" + (f" ({i + 1} of {len(rounds)})" if len(rounds) > 1 else "")
                with ExitStack() as stack:
                    dense, *readers = (
                        stack.enter_context(Llama(weights, n_ctx=n, h2o=s.h2o, **context)) for s in (DENSE, *some)
                    )
                    found, seconds = read_windows(
                        dense, readers, windows, about["chunk_size"], partial(progress, label)
                    )
                for setting, losses, taken in zip(some, found, seconds[1:], strict=True):
                    h2o = json.dumps(asdict(setting)["h2o"], default=lambda f: getattr(f, "__qualname__", repr(f)))
                    yield {
                        "setting": setting.name,
                        "n_tokens": n,
                        "windows": len(windows),
                        "h2o": json.loads(h2o),
                        **about,
                        **summary(losses[:, n // 2 :]),
                        "over_windows": over_windows(losses[:, n // 2 :]),
                        "first_chunk": over_windows(losses[:, : about["chunk_size"]]),
                        "tokens_per_s": windows.size / taken,
                        "tokens_per_s_dense": windows.size / seconds[0],
                    }


def _windows(weights: Model, tokens: NDArray[np.int32], size: int, most: int) -> NDArray[np.int32]:
    """Windows that are evenly spread over the text and do not overlap, int32 [n, size], at most `most`.

    The first is the text's beginning, the last, if there are several, its end. As in llama-perplexity, a BOS, if the
    model begins texts so, replaces the first token of each.

    Raises ValueError if the text has none, or `most` is bad.
    """
    n = min(check.integer(_OWNER, "windows", most, 1), len(tokens) // size)
    if n == 0:
        raise ValueError(
            f"[{_OWNER}] the text has {len(tokens):,} tokens, but a window needs {size:,}: give a longer text or a "
            "smaller length"
        )
    starts = np.linspace(0, len(tokens) - size, n).astype(np.int64)
    windows: NDArray[np.int32] = tokens[starts[:, None] + np.arange(size)]
    if weights.tokenize(b"")[:1] == [weights.token_bos]:
        windows[:, 0] = weights.token_bos
    return windows


def _rounds(weights: Model, settings: Sequence[Setting], chunk_size: int, n_ctx: int) -> list[Sequence[Setting]]:
    """The settings, as many at a time as fit into half of the machine's memory together with dense attention."""
    core = weights._handle
    # Logits are in llama.cpp's buffers for a chunk and here for a piece.
    logits = 4 * core.n_vocab * (chunk_size + piece_tokens(core.n_vocab))
    has_index = any(s.h2o is not None and s.h2o.has_key_index for s in settings)
    each = kv_bytes_at_least(core, n_ctx, "f16", "f16", has_index) + logits
    room = (physical_memory() or 0) // 2 - core.size - each
    size = max(1, room // each)
    return [settings[i : i + size] for i in range(0, len(settings), size)]
