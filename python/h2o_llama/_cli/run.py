"""`h2o-llama run`: read a long prompt, then generate."""

import codecs
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from h2o_llama import Llama, Model, Snapshot
from h2o_llama._cli.ask import answer_all, answer_options, say_answer
from h2o_llama._cli.inputs import open_llama, open_model, read_prompt, said, title_of
from h2o_llama._cli.options import Options, option
from h2o_llama._cli.progress import progress_bars, took
from h2o_llama._internal.terminal import counted, echo, write
from h2o_llama.chat._generation import quotable
from h2o_llama.chat._question import Question, check_length
from h2o_llama.documents import document_messages
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

    A file is asked about as by `ask`; without --prompt it is a user's message. --raw, --load, --save and --special take
    texts without a template. Measurements are written to standard error.
    """
    o.attention  # noqa: B018 (checks it)
    is_raw = raw or special or load is not None or save is not None
    if is_raw and o.image:
        raise typer.BadParameter("--image needs a chat template, and none of --raw, --load, --save and --special")
    if save is not None and load is None and o.file is not None and o.prompt and not raw:
        raise typer.BadParameter("--save takes texts without a template: add --raw, or leave out --prompt")
    if not is_raw and o.file is not None and o.prompt and not o.image:
        answer_all(o, o.file, [o.prompt], draft=draft, dense_tail=o.dense_tail)
        return
    before = None if load is None else Snapshot.load(load)
    text = "" if before and o.file is None and not o.prompt else read_prompt(o)
    with open_model(o) as weights:
        if is_raw or (weights.chat_template is None and not o.image):
            _continue(o, weights, text, before, save, draft, special)
        else:
            _say(o, weights, text, {"draft": draft, "dense_tail": o.dense_tail})


def _say(o: Options, weights: Model, text: str, options: dict[str, Any]) -> None:
    """Answer one message, with images or without."""
    if weights.chat_template is None:
        raise ValueError(f"{o.model} has no chat template, so it cannot be asked about an image")
    about = document_messages(text.removesuffix(o.prompt)) if o.file is not None and o.prompt else []
    question = Question("run", weights, [*about, said(o.prompt if about else text, o.image)], think=o.thinking)
    n, name = len(question.prompt), "the text" if o.file is None else title_of(o.file)
    check_length(weights, o.attention, name, text, n, 1, o.n_ctx)
    with open_llama(o, weights, o.n_ctx or n + o.max_tokens + question.budget + _ROOM, o.attention) as llm:
        llm.text_name = "" if o.file is None else name
        say_answer(llm, question.on_known_day(llm._state), answer_options(o) | options)


def _continue(
    o: Options, weights: Model, text: str, before: Snapshot | None, save: Path | None, draft: int, special: bool
) -> None:
    """Generate more of a text, as it is."""
    h2o = o.attention
    tokens = weights.tokenize(text, add_special=before is None, parse_special=special)
    n_asked = len(weights.tokenize(o.prompt, add_special=False, parse_special=special))
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
            dense_tail = o.dense_tail
            if dense_tail is None:
                dense_tail = DENSE_TAIL if o.file is None else max(DENSE_TAIL, n_asked)
            with progress_bars("tokens") as update:
                llm.eval(tokens, progress=lambda done, total: update("prompt", done, total), dense_tail=dense_tail)
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
