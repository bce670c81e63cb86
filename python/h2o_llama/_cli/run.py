"""`h2o-llama run`: read a long prompt, then generate."""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from h2o_llama import H2OConfig, Llama, Model, Snapshot, shared_prefix
from h2o_llama._cli import options
from h2o_llama._cli.options import NONE, Changes
from h2o_llama._cli.prompt import has_library, open_model, progress_bars, read_prompt, said, tokenize
from h2o_llama._internal.terminal import counted, echo, write
from h2o_llama.sequence._engine import MATMUL_KERNELS
from h2o_llama.sequence._prompt import Tokens
from h2o_llama.sequence.generating import DENSE_TAIL

_ROOM = 2048
"""Tokens that a text of the library may have after the prefix that it shares with this one."""


def run(
    model: options.Model,
    file: options.File = None,
    prompt: options.Prompt = "",
    h2o: options.Attention = None,
    mmproj: options.Mmproj = None,
    image: options.Images = None,
    max_tokens: Annotated[int, options.max_tokens(least=0)] = 128,
    dense_tail: options.DenseTail = None,
    n_ctx: Annotated[int, typer.Option(min=0, help="Tokens the cache holds; 0 is the prompt's and -n's.")] = 0,
    threads: options.Threads = None,
    threads_batch: options.ThreadsBatch = None,
    matmul_kernels: options.MatmulKernels = MATMUL_KERNELS[0],
    gpu_layers: options.RpcGpuLayers = None,
    rpc: options.Rpc = None,
    mlock: options.Mlock = False,
    no_mmap: options.NoMmap = False,
    changes: Changes = NONE,
    temp: options.Temp = 0.8,
    seed: options.Seed = None,
    draft: Annotated[
        int, typer.Option(min=0, help="Tokens to try at once where the text quotes itself, 15 say; 0 is none.")
    ] = 0,
    load: Annotated[
        Path | None,
        typer.Option(
            help="Continue the text that --save has written, with its chunks and H2O options, but for where "
            "--cold-store is: memory by default."
        ),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Save the text after reading, before generation.")] = None,
    special: Annotated[
        bool, typer.Option("--special", help="Names such as <|im_end|> in the text are tokens.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="The text unchanged: not as a chat message, where the model has a template.")
    ] = False,
    library: options.Library = True,
) -> None:
    """Read a prompt with H2O and generate text after it.

    A model with a chat template is asked the text as a user's message, unless --raw, --load or --save is given.

    Standard output gets the text, standard error progress and a line of measurements.
    """
    before = None if load is None else Snapshot.load(load)
    text = b"" if before and file is None and not prompt else read_prompt(file, prompt)
    with open_model(model, gpu_layers, rpc, h2o, matmul_kernels, mlock, no_mmap, changes, mmproj) as weights:
        tokens: Tokens
        if not (raw or before or save) and weights.chat_template:
            tokens, n_asked = _asked_by_the_template(weights, text, prompt, special, image)
        else:
            if image:
                raise typer.BadParameter("--image needs a chat template, and neither --raw, --load nor --save")
            if before is None:
                tokens = tokenize(weights, text, special)
            else:
                tokens = weights.tokenize(text, add_special=False, parse_special=special)
                h2o = _as_saved(before.origin.h2o, h2o)
            n_asked = len(weights.tokenize(prompt, add_special=False, parse_special=special))
        if dense_tail is None:
            dense_tail = DENSE_TAIL if file is None else max(DENSE_TAIL, n_asked)
        n_before = before.n_tokens if before else 0
        n_ctx = n_ctx or n_before + len(tokens) + max_tokens + (_ROOM if library else 0)
        llm = Llama(
            weights,
            n_ctx=n_ctx,
            n_threads=threads,
            n_threads_batch=threads_batch,
            h2o=h2o,
            matmul_kernels=matmul_kernels,
            library=has_library(library),
        )
    with llm:
        if before is not None:
            llm.restore(before)
        llm.text_name = "" if file is None else file.name
        start = time.perf_counter()
        if len(tokens) > 0:
            with progress_bars() as update:
                llm.eval(tokens, progress=lambda done, total: update("prompt", done, total), dense_tail=dense_tail)
        prefilled = time.perf_counter()
        if save is not None:
            llm.save(save)
        saved = time.perf_counter()
        n_generated = _stream(llm, islice(llm.generate([], temperature=temp, seed=seed, draft=draft), max_tokens))
        generated = time.perf_counter()
        stats = llm.kv.stats
        loaded = f"loaded {n_before:,} tokens, " if before else ""
        known = f"{llm.n_cached:,} of them from the library, " if llm.n_cached else ""
        drafts = f" ({stats.accepted_tokens:,} of {stats.drafted_tokens:,} drafted)" if stats.drafted_tokens else ""
        chunks = "H2O off" if h2o is None else f"{counted(llm.kv.chunk_index, 'chunk')} of {llm.kv.chunk_size:,}"
        echo(
            f"{loaded}prompt {counted(len(tokens), 'token')}, {known}"
            f"{(len(tokens) - llm.n_cached) / (prefilled - start):,.1f} tokens/s | "
            f"generated {counted(n_generated, 'token')}, {n_generated / (generated - saved):,.1f} tokens/s{drafts} | "
            f"KV cache {decimal(stats.kv_bytes + stats.index_bytes)} | {chunks}",
            err=True,
        )


def _as_saved(saved: H2OConfig | None, given: H2OConfig | None) -> H2OConfig | None:
    """A file does not say where to write: the command line does."""
    if saved is None or saved.cold_store is None or given is None or given.cold_store is None:
        return saved
    return replace(saved, cold_store=given.cold_store)


def _asked_by_the_template(
    model: Model, text: bytes, prompt: str, special: bool, images: list[Path] | None
) -> tuple[Tokens, int]:
    """A user's message that ends with the prompt, and how many tokens there are from the prompt's first on."""

    def ask(asked: bytes) -> Sequence[int]:
        return model.chat_tokens([said(asked.decode(errors="replace"), images)], parse_special=special)

    tokens = ask(text)
    n_asked = len(tokens) - shared_prefix(tokens, ask(text.removesuffix(prompt.encode()))) if prompt else 0
    return tokens, n_asked


def _stream(llm: Llama, tokens: Iterable[int]) -> int:
    """Write each token to standard output at once, in whole characters. Returns the number of tokens."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    n = 0
    for token in tokens:
        n += 1
        write(decoder.decode(llm.detokenize([token])))
    write(decoder.decode(b"", final=True) + "\n")
    return n
