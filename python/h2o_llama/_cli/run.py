"""`h2o-llama run`: read a long prompt, then generate."""

import codecs
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from h2o_llama import Llama, Model, Snapshot, _core, shared_prefix
from h2o_llama._cli.ask import CUT, write_delta
from h2o_llama._cli.inputs import open_llama, open_model, read_prompt, said
from h2o_llama._cli.options import Options, option
from h2o_llama._cli.progress import progress_bars, took
from h2o_llama._internal.terminal import counted, echo, write
from h2o_llama._thoughts import check_think
from h2o_llama.batch._answerer import check_length, quotable
from h2o_llama.chat._known import known_day
from h2o_llama.chat.chat_completion import continue_chat
from h2o_llama.documents import document_messages
from h2o_llama.models._template import plain_prompt
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

    A file is asked about as by `ask` and `chat`; without --prompt it is a user's message. --raw, --load and --save take
    texts without a template. Measurements are written to standard error.
    """
    given = h2o = o.attention
    before = None if load is None else Snapshot.load(load)
    is_raw = raw or before is not None or save is not None
    if is_raw and o.image:
        raise typer.BadParameter("--image needs a chat template, and neither --raw, --load nor --save")
    text = "" if before and o.file is None and not o.prompt else read_prompt(o)
    with open_model(o) as weights:
        tokens: Sequence[int]
        core, budget = None, 0
        n_asked = len(weights.tokenize(o.prompt, add_special=False, parse_special=special))
        if is_raw:
            tokens = weights.tokenize(text, add_special=before is None, parse_special=special)
        else:
            budget, kwargs = check_think("run", o.thinking, None)
            asked = partial(_asked, weights, o, text.removesuffix(o.prompt), special, kwargs)
            core, tokens, n_asked = asked()
        if before is not None:
            h2o = _as_saved(before.origin.h2o, given)
        elif len(tokens) == 0:
            raise ValueError("the text is empty")
        name = "the text" if o.file is None else o.file.name
        n_before = before.n_tokens if before else 0
        if before is None:
            check_length(weights, given, name, len(tokens), 1, o.n_ctx)
        n_ctx = o.n_ctx or n_before + len(tokens) + o.max_tokens + (_ROOM if o.library else 0)
        llm = open_llama(o, weights, n_ctx, h2o)
        if not is_raw and (day := known_day(llm._state, tokens, lambda day: asked(day)[1])) is not None:
            core, tokens, n_asked = asked(day)
    with llm:
        if before is not None:
            llm.restore(before)
        llm.text_name = "" if o.file is None else name
        start = time.perf_counter()
        if len(tokens) > 0:
            dense_tail = o.dense_tail
            if dense_tail is None:
                dense_tail = DENSE_TAIL if o.file is None else max(DENSE_TAIL, n_asked)
            with progress_bars() as update:
                llm.eval(tokens, progress=lambda done, total: update("prompt", done, total), dense_tail=dense_tail)
        prefilled = time.perf_counter()
        if save is not None:
            llm.save(save)
        saved = time.perf_counter()
        cut = ""
        if core is None:
            drawn = llm.generate([], temperature=o.temp, seed=o.seed, draft=draft)
            n_generated = _stream(llm, islice(drawn, o.max_tokens))
        else:
            answer = continue_chat(
                llm, core, tokens, budget, max_tokens=o.max_tokens, draft=draft, temperature=o.temp, seed=o.seed
            )
            for chunk in answer.stream():
                write_delta(chunk["choices"][0]["delta"])
            write("\n")
            n_generated = answer.generation.answer.n_tokens
            cut = CUT * (answer.generation.finish_reason == "length")
        generated = time.perf_counter()
        stats = llm.kv.stats
        loaded = f"loaded {n_before:,} tokens, " if before else ""
        drafts = f" ({stats.accepted_tokens:,} of {stats.drafted_tokens:,} drafted)" if stats.drafted_tokens else ""
        chunks = f"{counted(llm.kv.chunk_index, 'chunk')} of {llm.kv.chunk_size:,}" if llm.h2o else "H2O off"
        told = f"{loaded}{took('read', len(tokens), prefilled - start, llm.n_cached)}; "
        told += f"{took('wrote', n_generated, generated - saved)}{drafts}{cut}"
        echo(f"[{told}; KV cache {decimal(stats.kv_bytes + stats.index_bytes)}, {chunks}]{quotable(llm)}", err=True)


def _as_saved(saved: Any, given: Any) -> Any:
    """A file does not say where to write: the command line does."""
    store = getattr(given, "cold_store", None)
    return saved if saved is None or saved.cold_store is None or store is None else replace(saved, cold_store=store)


def _asked(
    model: Model, o: Options, text: str, special: bool, kwargs: Any, day: str | None = None
) -> tuple[_core.ChatPrompt | None, Sequence[int], int]:
    """A question about a text, or one of both alone; and how many tokens there are from the question's first on."""

    def ask(question: str) -> tuple[_core.ChatPrompt | None, Sequence[int]]:
        if not model.chat_template:
            if o.image:
                raise ValueError(f"{o.model} has no chat template, so it cannot be asked about an image")
            both = text and question
            asked = plain_prompt(text, question) if both else text + question
            return None, model.tokenize(asked, parse_special=special)
        about = document_messages(text) if text and o.prompt else []
        messages = [*about, said(question if about else text + question, o.image)]
        return model._chat_prompt("run", messages, None, True, special, kwargs, day)

    core, tokens = ask(o.prompt)
    n_shared = shared_prefix(tokens, ask("B" if o.prompt[0] == "A" else "A")[1]) if o.prompt else len(tokens)
    return core, tokens, len(tokens) - n_shared


def _stream(llm: Llama, tokens: Iterable[int]) -> int:
    """Write each token to standard output at once, in whole characters. Returns the number of tokens."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    n = 0
    for token in tokens:
        n += 1
        write(decoder.decode(llm.detokenize([token])))
    write(decoder.decode(b"", final=True) + "\n")
    return n
