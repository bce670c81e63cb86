"""`h2o-llama run`: read a long prompt, then generate."""

import codecs
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from h2o_llama import Llama, Snapshot
from h2o_llama._cli.ask import answer_all
from h2o_llama._cli.inputs import open_llama, open_model, read_prompt, title_of
from h2o_llama._cli.options import Options, option
from h2o_llama._cli.progress import progress_bars, took
from h2o_llama._internal.terminal import counted, echo, write
from h2o_llama.chat._generation import quotable
from h2o_llama.chat._question import check_length
from h2o_llama.sequence.generating import DENSE_TAIL

_ROOM = 2048
"""Tokens that a text of the library may have after the prefix that it shares with this one."""


def run(
    o: Options,
    draft: Annotated[int, option("Tokens to try at once where the text quotes itself, 15 say; 0 is none.", min=0)] = 0,
    load: Annotated[
        Path | None,
        option(
            "Continue the text that --save has written, with its options of H2O; a cold store is in memory, or "
            "where --cold-store says."
        ),
    ] = None,
    save: Annotated[Path | None, option("Save the text after reading, before generation.")] = None,
    special: Annotated[bool, option("Names such as <|im_end|> in the text are tokens.", "--special")] = False,
    raw: Annotated[bool, option("Continue the text and --prompt, without a template.", "--raw")] = False,
) -> None:
    """Read a text with H2O, and generate an answer or more text.

    A question about a file is asked as by `ask`. Otherwise, and with --raw, --load, --save or --special, the text is
    continued without a template. Measurements are written to standard error.
    """
    if save is not None and load is None and o.file is not None and o.prompt and not raw:
        raise typer.BadParameter("--save takes texts without a template: add --raw, or leave out --prompt")
    if o.file is not None and o.prompt and load is None and not (raw or special):
        answer_all(o, o.file, [o.prompt], draft=draft, dense_tail=o.dense_tail)
        return
    h2o = o.attention
    before = None if load is None else Snapshot.load(load)
    text = "" if before and o.file is None and not o.prompt else read_prompt(o)
    with open_model(o) as weights:
        tokens = weights.tokenize(text, add_special=before is None, parse_special=special)
        name = "the text" if o.file is None else title_of(o.file)
        if before is not None:
            h2o = _as_saved(before.origin.h2o, h2o)
        elif len(tokens) == 0:
            raise ValueError("the text is empty")
        else:
            check_length(weights, h2o, name, text, len(tokens), 1, o.n_ctx)
        n_before = before.n_tokens if before else 0
        n_ctx = o.n_ctx or n_before + len(tokens) + o.max_tokens + (_ROOM if o.library else 0)
        with open_llama(o, weights, n_ctx, h2o) as llm:
            if before is not None:
                llm.restore(before)
            llm.text_name = "" if o.file is None else name
            start = time.perf_counter()
            if len(tokens) > 0:
                tail = DENSE_TAIL if o.dense_tail is None else o.dense_tail
                with progress_bars(" tokens") as update:
                    llm.eval(tokens, progress=lambda done, total: update("prompt", done, total), dense_tail=tail)
            prefilled = time.perf_counter()
            if save is not None:
                llm.save(save)
            saved = time.perf_counter()
            drawn = llm.generate([], max_tokens=o.max_tokens, temperature=o.temp, seed=o.seed, draft=draft)
            n_generated = _stream(llm, drawn)
            generated = time.perf_counter()
            stats = llm.kv.stats
            loaded = f"loaded {n_before:,} tokens, " if before else ""
            drafts = f" ({stats.accepted_tokens:,} of {stats.drafted_tokens:,} drafted)" if stats.drafted_tokens else ""
            chunks = f"{counted(llm.kv.chunk_index, 'chunk')} of {llm.kv.chunk_size:,}" if llm.h2o else "H2O off"
            told = f"{loaded}{took('read', len(tokens), prefilled - start, llm.n_cached)}; "
            told += f"{took('wrote', n_generated, generated - saved)}{drafts}"
            size = decimal(stats.kv_bytes + stats.index_bytes)
            echo(f"[{told}; KV cache {size}, {chunks}]{quotable(llm._state)}", err=True)


def _as_saved(saved: Any, given: Any) -> Any:
    """A file does not say where to write: the command line does."""
    store = getattr(given, "cold_store", None)
    return saved if saved is None or saved.cold_store is None or store is None else replace(saved, cold_store=store)


def _stream(llm: Llama, tokens: Iterable[int]) -> int:
    """Write each token to standard output at once, in whole characters. Returns the number of tokens."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    n = 0
    for token in tokens:
        n += 1
        write(decoder.decode(llm.detokenize([token])))
    write(decoder.decode(b"", final=True) + "\n")
    return n
