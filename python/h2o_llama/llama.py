"""A loaded model with a context."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _check, _core, hub
from h2o_llama._claim import Claim
from h2o_llama.completion import Completion, CompletionChunk, CompletionRun, check_stop
from h2o_llama.config import H2OConfig
from h2o_llama.drafting import DraftLength
from h2o_llama.errors import H2OError
from h2o_llama.fingerprint import model_fingerprint
from h2o_llama.llama_kv import LlamaKV
from h2o_llama.loading import load_model
from h2o_llama.model import ModelView, Tokens
from h2o_llama.named_files import find_model
from h2o_llama.params import ContextParams
from h2o_llama.rewinding import keep_prefix, rewind
from h2o_llama.sampling import Sampling, SamplingOptions, check_seed
from h2o_llama.snapshot import Snapshot, SnapshotOrigin, restore_snapshot, take_snapshot

if TYPE_CHECKING:
    from typing_extensions import Unpack

Progress = Callable[[int, int], object]

_OWNER = "Llama"

DENSE_TAIL = 128
"""Tokens at the end of a prompt that attend to everything, where text is generated: room for a question."""


class Llama(ModelView):
    """A GGUF model with one sequence of tokens, and H2O sparse attention over it.

    One call at a time: a second thread, or a callback that calls back, gets an `H2OError` at once. `close()`, or
    leaving a `with` block, frees the memory.

    Parameters
    ----------
    model_path : str, os.PathLike or Llama
        A GGUF file, or the name of a model that `h2o-llama pull` has fetched; or an open `Llama`, to share its
        weights: either may be closed before the other.
    n_ctx : int, default 0
        How many tokens the sequence can hold; 0 is what the model was trained for.
    n_batch : int, default 4096
        The most tokens of one call into llama.cpp; a longer prompt takes several. At least n_ubatch.
    n_ubatch : int, default 1024
        The most tokens computed at once. With H2O this is the chunk size S.
    n_threads : int, optional
        Threads to compute with; by default one for each CPU this process may use.
    n_gpu_layers : int, optional
        Layers to keep on the GPU, -1 for all, if the package was built for one; by default none. Shared weights stay
        where they are: the default is the other `Llama`'s, and nothing else is possible.
    type_k, type_v : str, default "f16"
        Types of the K and V cache: "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0" or "iq4_nl".
    flash_attn : {"auto", "on", "off"}
        Flash attention where H2O is off and for generated tokens; H2O's own attention is then one operator where the
        device has it, and with "off" composed of several, which is slower. A quantised V needs it.
    h2o : H2OConfig or None, default H2OConfig()
        What the memory sets hold; None is llama.cpp's dense attention.
    record : bool, default False
        Keep the memory sets of all chunks for `kv.history`.
    profile : bool, default False
        Measure the parts of a prefill for `kv.stats`; waiting for each of them takes a little time.
    seed : int, optional
        Default seed of `generate`, 0 to 2**32 - 2; by default every call draws differently.
    verbose : bool, default False
        Print llama.cpp's log to stderr. Otherwise nothing is printed.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If an argument is bad, or the file is no valid GGUF model file.
    H2OError
        If llama.cpp refuses the model, or H2O cannot work with it.

    Warns
    -----
    UserWarning
        If a memory set is not smaller than a chunk: that costs more than it saves.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str] | Llama,
        n_ctx: int = 0,
        n_batch: int = 4096,
        n_ubatch: int = 1024,
        n_threads: int | None = None,
        n_gpu_layers: int | None = None,
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attn: str = "auto",
        h2o: H2OConfig | None = H2OConfig(),  # noqa: B008 (it is frozen)
        record: bool = False,
        profile: bool = False,
        seed: int | None = None,
        verbose: bool = False,
    ) -> None:
        if n_gpu_layers is None:
            n_gpu_layers = model_path.n_gpu_layers if isinstance(model_path, Llama) else 0
        self._params = ContextParams(
            n_ctx, n_batch, n_ubatch, n_threads, n_gpu_layers, type_k, type_v, flash_attn, h2o, record, profile, verbose
        )
        self._seed = check_seed(_OWNER, seed)
        self._claim = Claim(_OWNER)
        if isinstance(model_path, Llama):
            if n_gpu_layers != model_path.n_gpu_layers:
                expected = f"that of the shared weights ({model_path.n_gpu_layers}), or left out"
                raise _check.bad_argument(_OWNER, "n_gpu_layers", expected, n_gpu_layers)
            self._model: _core.Model | None = model_path.core_model
            self._model_path = model_path.model_path
            self._fingerprint: str = model_path._fingerprint
        else:
            self._model = load_model(model_path, n_gpu_layers, verbose)
            self._model_path = os.fspath(find_model(model_path))
            self._fingerprint = model_fingerprint(self._model_path)
        if self._model.has_encoder:
            raise H2OError(f"[{_OWNER}] {self._model_path} is an encoder-decoder model, which is not supported")
        self._n_ctx = int(n_ctx) or self._model.n_ctx_train
        self._context = self._params.make_context(self._model, self._n_ctx)
        self._logits: NDArray[np.float32] | None = None
        self._draft_logits = np.empty((0, 0), dtype=np.float32)  # of a call with a draft, a row for each token
        self._scorers_are_known = False

    @classmethod
    def from_pretrained(cls, repo_id: str, filename: str = "*Q8_0.gguf", **kwargs: Any) -> Llama:
        """Load a model from the Hugging Face hub; needs `pip install "h2o-llama[hub]"`.

        Parameters
        ----------
        repo_id : str
            Such as "Qwen/Qwen3-0.6B-GGUF".
        filename : str, default "*Q8_0.gguf"
            Name of a file in it, or a pattern that only one file matches. Of a model in parts, name the first.
        **kwargs
            The arguments of `Llama`.

        Raises
        ------
        ImportError
            If huggingface_hub is not installed.
        ValueError
            If no file or several files match; the message lists them.
        """
        return cls(hub.download_model(repo_id, filename), **kwargs)

    # --- life

    def close(self) -> None:
        """Free the context and the model. Closing twice is fine, using what is closed raises ValueError."""
        with self._claim:
            self._context.close()
            self._model = None
            self._logits = None

    def __enter__(self) -> Llama:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def reset(self) -> None:
        """Forget the sequence: its tokens, scores, memory sets and logits."""
        with self.use_context() as context:
            context.clear()
            self._logits = None

    @contextmanager
    def use_context(self) -> Iterator[_core.Context]:
        """The core's context, for one call of this package's own classes."""
        with self._claim:
            self.core_model  # noqa: B018 (raises if closed)
            yield self._context

    # --- the sequence

    @property
    def model_path(self) -> str:
        return self._model_path

    @property
    def n_gpu_layers(self) -> int:
        """Layers asked for on the GPU; -1 is all."""
        return self._params.n_gpu_layers

    @property
    def n_ctx(self) -> int:
        """How many tokens the sequence can hold."""
        return self._n_ctx

    @property
    def n_tokens(self) -> int:
        """Tokens in the sequence."""
        with self.use_context() as context:
            return context.n_tokens

    @property
    def logits(self) -> NDArray[np.float32]:
        """Logits of the last `eval`, float32 [n_outputs, n_vocab]: of all its tokens, or of the last one."""
        with self.use_context():
            if self._logits is None:
                raise H2OError(f"[{_OWNER}] there are no logits: call eval first")
            return self._logits

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The sequence, as token ids, int32 [n_tokens]."""
        with self.use_context() as context:
            return context.tokens

    @property
    def h2o(self) -> H2OConfig | None:
        """The configuration; None if H2O is off."""
        return self._params.h2o

    @property
    def kv(self) -> LlamaKV:
        """A look inside the KV cache."""
        return LlamaKV(self, self._params.record)

    def eval(
        self,
        tokens: Tokens,
        logits: Literal["last", "all"] = "last",
        progress: Progress | None = None,
        dense_tail: int = 0,
        decode: bool = False,
    ) -> None:
        """Append tokens to the sequence and compute their logits.

        They are a prompt, of which any split into calls gives the same result, unless they are said to be generated.
        More than n_batch tokens take several calls into llama.cpp.

        Parameters
        ----------
        tokens : sequence of int, or integer ndarray [n]
            Token ids, at least one.
        logits : {"last", "all"}
            Whether `Llama.logits` is [1, n_vocab] afterwards, or [n, n_vocab].
        progress : callable, optional
            Called as progress(n_done, n) after every chunk. What it raises ends the eval and is raised again.
        dense_tail : int, default 0
            The last so many of these tokens attend to everything in the sequence, as with h2o=None: for the question at
            the end of a prompt. Costs O(dense_tail * n_tokens). Without H2O every token does.
        decode : bool, default False
            The tokens were generated: they attend to what `H2OConfig.decode` says, and scores stay as they are.
            `generate` does this by itself; it is for a sampling loop of your own. Without H2O it makes no difference.

        Raises
        ------
        ValueError
            If a token is no token id, or the sequence would get longer than n_ctx. Nothing has changed then.
        H2OError
            If the computation fails. As after an exception from `progress`, or Ctrl-C, the unfinished call into
            llama.cpp is undone: the sequence is as it was before, plus the calls that were finished; `n_tokens` tells.

        Warns
        -----
        UserWarning
            At the first eval, if `H2OConfig.scorer` cannot rank positions in some layers. `kv.scorer` tells what does.
        """
        _check.choice("Llama.eval", "logits", logits, ("last", "all"))
        with self.use_context() as context:
            ids = self._check_prompt("Llama.eval", tokens, context.n_tokens)
            if len(ids) == 0:
                raise ValueError("[Llama.eval] tokens must not be empty")
            tail = self._check_tail("Llama.eval", dense_tail, context.n_tokens + len(ids))
            if _check.flag("Llama.eval", "decode", decode) and tail > 0:
                raise ValueError("[Llama.eval] dense_tail is for a prompt: with decode=True leave it 0")
            progress = self._check_progress("Llama.eval", progress)
            self._eval(context, ids, logits == "all", progress, tail, bool(decode))
            others = self._layers_by_another_scorer(context)
        if others and self.h2o:
            warnings.warn(
                f"[{_OWNER}] this model changes its keys after RoPE, which scorer {self.h2o.scorer!r} cannot take "
                f"back: in layers {_ranges(list(others))} {min(others.values())!r} ranks positions instead",
                stacklevel=2,
            )

    def _eval(
        self,
        context: _core.Context,
        ids: NDArray[np.int32],
        all_logits: bool,
        progress: Progress | None,
        dense_tail: int,
        decode: bool,
    ) -> None:
        out = np.empty((len(ids) if all_logits else 1, self.n_vocab), dtype=np.float32)
        self._logits = None
        for start, stop in self._params.split_calls(len(ids)):
            report = None if progress is None else _Report(progress, start, len(ids))
            rows = out[start:stop] if all_logits else out[: int(stop == len(ids))]
            context.decode(ids[start:stop], rows, max(0, dense_tail - (len(ids) - stop)), decode, report)
            if report is not None and self._params.h2o is None:
                report(stop - start)
        self._logits = out

    # --- the past

    @property
    def _origin(self) -> SnapshotOrigin:
        p = self._params
        return SnapshotOrigin(
            model=os.path.basename(self._model_path),
            fingerprint=self._fingerprint,
            n_vocab=self.n_vocab,
            type_k=p.type_k,
            type_v=p.type_v,
            flash_attn=p.flash_attn,
            n_ubatch=int(p.n_ubatch),
            h2o=p.h2o,
        )

    def snapshot(self) -> Snapshot:
        """The sequence as it is now, to go back to or to go on from elsewhere.

        Raises
        ------
        H2OError
            If llama.cpp cannot save it.
        MemoryError
            If a second copy of K and V does not fit.
        """
        with self.use_context() as context:
            return take_snapshot(context, self._origin)

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot in the place of the sequence: all that follows is as if its tokens had just been evaluated.

        Bit for bit, on the same machine; `kv.stats` begins anew. `n_ctx`, `n_batch` and threads may be others. With
        `record`, `kv.history` is there if it was recorded for the snapshot, too.

        Raises
        ------
        ValueError
            If it is of another model or configuration, or does not fit into n_ctx.
        H2OError
            If llama.cpp refuses it. In either case the sequence stays as it was.
        """
        with self.use_context() as context:
            restore_snapshot(context, snapshot, self._origin, self._n_ctx)
            self._logits = None if snapshot.logits is None else snapshot.logits[np.newaxis].copy()

    def rewind(self, n_tokens: int) -> None:
        """Keep the first tokens of the sequence, as if those after them had never been there.

        That is possible where nothing has been left by them: with scorer "key_diff" everywhere in the open chunk, with
        scorers of attention, which cannot be taken back, down to the last prompt token; further back only to the end of
        the last closed chunk, with `record` of every one; and to 0. Without H2O everywhere, but for recurrent models.

        Parameters
        ----------
        n_tokens : int
            How many to keep. There are no logits then, unless it is all of them.

        Raises
        ------
        ValueError
            If the sequence has fewer.
        H2OError
            If it is not possible there; the message names the nearest positions that are. Nothing has changed then.
        """
        with self.use_context() as context:
            rewind(context, n_tokens, bool(self._params.record))
            if not context.has_logits:
                self._logits = None

    def reuse(self, tokens: Tokens) -> int:
        """Keep what the sequence shares with a text that is to be evaluated: `n_cached = llm.reuse(tokens)`.

        The sequence goes back to where the two part, or as little before as `rewind` can. What is kept stays as it was
        computed, generated tokens as generated. Then `llm.eval(tokens[n_cached:])`, or `generate`, computes the rest: a
        turn of a chat costs what is new in it.

        Parameters
        ----------
        tokens : sequence of int, or integer ndarray [n]
            Token ids: the whole text.

        Returns
        -------
        int
            How many of the tokens are in the sequence now. All only if it was this text already and has its logits;
            else at least the last one is left to be evaluated.
        """
        with self.use_context() as context:
            n_cached = keep_prefix(context, _check.token_ids("Llama.reuse", tokens, self.n_vocab))
            if not context.has_logits:
                self._logits = None
            return n_cached

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sequence to a file: `snapshot().save(path)`. See `Snapshot.save`."""
        self.snapshot().save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file that `save` has written: `restore(Snapshot.load(path))`. See there."""
        self.restore(Snapshot.load(path))

    def _layers_by_another_scorer(self, context: _core.Context) -> dict[int, str]:
        """Those that are not ranked by the scorer of the configuration, once: empty after the first call."""
        if self._scorers_are_known:
            return {}
        self._scorers_are_known = True
        kv = _core.KV.of_context(context)
        if kv is None:
            return {}
        scorers = {layer: kv.scorer(layer) for layer in kv.layers}
        return {layer: scorer for layer, scorer in scorers.items() if self.h2o and scorer != self.h2o.scorer}

    def _check_prompt(self, owner: str, tokens: Tokens, n_tokens: int) -> NDArray[np.int32]:
        ids = _check.token_ids(owner, tokens, self.n_vocab)
        if n_tokens + len(ids) > self._n_ctx:
            raise ValueError(
                f"[{owner}] {len(ids)} tokens after {n_tokens} do not fit into n_ctx={self._n_ctx}: "
                "use a larger n_ctx, fewer tokens, or reset()"
            )
        return ids

    def _check_progress(self, owner: str, progress: Progress | None) -> Progress | None:
        if progress is not None and not callable(progress):
            raise _check.bad_argument(owner, "progress", "callable or None", progress)
        return progress

    def _check_tail(self, owner: str, dense_tail: int, n_tokens: int) -> int:
        return self._params.check_dense_tail(self.core_model, owner, dense_tail, n_tokens)

    def _check_draft(self, owner: str, draft: int) -> int:
        n = _check.integer(owner, "draft", draft, 0)
        if n > 0 and self.core_model.is_recurrent:
            raise _check.bad_argument(owner, "draft", "0, as a recurrent model cannot take tokens back", draft)
        return n

    # --- generation

    def generate(
        self,
        tokens: Tokens,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        seed: int | None = None,
        progress: Progress | None = None,
        dense_tail: int = DENSE_TAIL,
        draft: int = 0,
    ) -> Iterator[int]:
        """Append tokens to the sequence, then generate more, one at a time.

        Every token that comes out is in the sequence already, and none else. It ends when the model ends its text (the
        token that says so does not come out), or when the sequence has n_ctx tokens.

        Parameters
        ----------
        tokens : sequence of int, or integer ndarray [n]
            Token ids; empty to go on after the last eval.
        temperature, top_k, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty, seed
            See `h2o_llama.sampling.Sampling`. Penalties count the tokens given and generated here.
        progress, dense_tail
            As in `eval`, for the tokens given: by default the last 128 of them attend to everything.
        draft : int, default 0
            Prompt lookup decoding, for answers that quote or edit what is in the sequence: where the text's end was
            there before, up to so many tokens that followed are computed together with the next token, and kept as
            far as they are what is drawn. 15 is a good value; 0 is off. The same tokens come out, for every kind of
            sampling and with the same seed, but for rounding: logits of tokens computed together differ a little, most
            with quantised weights, which can decide near ties. Needs a model that can take tokens back: no recurrent
            one. `kv.stats` counts; looking at `kv` takes back what is drafted.

        Raises
        ------
        ValueError, H2OError
            As `eval`. H2OError too if there are no tokens and no logits to go on from.
        """
        if seed is None:
            seed = self._seed
        sampling = Sampling(temperature, top_k, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty, seed)
        progress = self._check_progress("Llama.generate", progress)
        with self.use_context() as context:
            ids = self._check_prompt("Llama.generate", tokens, context.n_tokens)
            tail = self._check_tail("Llama.generate", dense_tail, context.n_tokens + len(ids))
            n_draft = self._check_draft("Llama.generate", draft)
        return self._generate(ids, sampling, progress, tail, n_draft)

    def _generate(
        self, ids: NDArray[np.int32], sampling: Sampling, progress: Progress | None, dense_tail: int, draft: int
    ) -> Iterator[int]:
        sampler = sampling.make_sampler(self.n_vocab)
        for token in ids.tolist():
            sampler.accept(token)
        if len(ids) > 0:
            self.eval(ids, progress=progress, dense_tail=dense_tail)
        length = DraftLength(draft)
        n_drafted = n_accepted = 0
        while True:
            with self.use_context() as context:
                n_left = self._n_ctx - context.n_tokens
                if n_left <= 0:
                    return
                token = sampler.sample(context)
                if self.core_model.is_eog(token):
                    return
                if context.accept_draft(token):
                    n_accepted += 1
                    self._logits = self._draft_logits[context.logits_index :][:1]
                else:
                    length.report(n_drafted, n_accepted)
                    n_drafted, n_accepted = self._eval_with_draft(context, token, length.limits, n_left - 1), 0
            yield token

    def _eval_with_draft(self, context: _core.Context, token: int, limits: tuple[int, int], n_left: int) -> int:
        """Append a generated token, and compute a draft of what follows. Returns the number of tokens in the draft."""
        shortest, longest = limits
        ids = np.array([token], dtype=np.int32)
        if longest > 0:
            ids = np.append(ids, context.find_draft(token, shortest, min(longest, n_left)))
        if len(ids) == 1:
            self._eval(context, ids, False, None, 0, True)
        else:
            rows = np.empty((len(ids), self.n_vocab), dtype=np.float32)
            self._logits = None
            context.decode_draft(ids, rows)
            self._draft_logits, self._logits = rows, rows[:1]
        return len(ids) - 1

    @overload
    def __call__(
        self,
        prompt: str | bytes | Tokens,
        max_tokens: int | None = ...,
        *,
        stream: Literal[False] = ...,
        stop: str | Sequence[str] | None = ...,
        echo: bool = ...,
        progress: Progress | None = ...,
        dense_tail: int = ...,
        draft: int = ...,
        reuse: bool = ...,
        **sampling: Unpack[SamplingOptions],
    ) -> Completion: ...

    @overload
    def __call__(
        self,
        prompt: str | bytes | Tokens,
        max_tokens: int | None = ...,
        *,
        stream: Literal[True],
        stop: str | Sequence[str] | None = ...,
        echo: bool = ...,
        progress: Progress | None = ...,
        dense_tail: int = ...,
        draft: int = ...,
        reuse: bool = ...,
        **sampling: Unpack[SamplingOptions],
    ) -> Iterator[CompletionChunk]: ...

    def __call__(
        self,
        prompt: str | bytes | Tokens,
        max_tokens: int | None = 16,
        *,
        stream: bool = False,
        stop: str | Sequence[str] | None = None,
        echo: bool = False,
        progress: Progress | None = None,
        dense_tail: int = DENSE_TAIL,
        draft: int = 0,
        reuse: bool = False,
        **sampling: Unpack[SamplingOptions],
    ) -> Completion | Iterator[CompletionChunk]:
        """Complete a text, as OpenAI's completions do. The sequence becomes this text: what else it held is gone.

        Parameters
        ----------
        prompt : str, bytes, or token ids
            In text, names of special tokens count as these tokens.
        max_tokens : int or None, default 16
            The most tokens to generate; None: until the model ends, or the context is full.
        stream : bool, default False
            Return an iterator of chunks, a few characters each, instead of one dict.
        stop : str or list of str, optional
            The text ends before any of these.
        echo : bool, default False
            Put the prompt in front of the text.
        progress, dense_tail
            As in `eval`, for the prompt: by default its last 128 tokens attend to everything.
        draft : int, default 0
            As in `generate`: faster where the answer quotes or edits the prompt.
        reuse : bool, default False
            Keep what the sequence shares with the prompt, see `Llama.reuse`, instead of beginning afresh. Penalties and
            `dense_tail` are then about the tokens that are new.
        **sampling
            temperature, top_k, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty, seed: as in
            `generate`.

        Returns
        -------
        dict, or iterator of dict
            {"id", "object": "text_completion", "created", "model", "choices": [{"text", "index", "logprobs",
            "finish_reason"}], "usage"}. With `draft`, usage["completion_tokens_details"] counts
            "accepted_prediction_tokens" and "rejected_prediction_tokens"; with `reuse`, usage["prompt_tokens_details"]
            "cached_tokens". Chunks have no "usage", and only the last has
            a finish_reason ("stop" or "length").

        Raises
        ------
        ValueError, H2OError
            As `generate`.
        """
        owner = "Llama.__call__"
        if max_tokens is not None:
            max_tokens = _check.integer(owner, "max_tokens", max_tokens, 1)
        tokens = self.tokenize(prompt, parse_special=True) if isinstance(prompt, str | bytes) else prompt
        ids = self._check_prompt(owner, tokens, 0)
        if len(ids) == 0:
            raise ValueError(f"[{owner}] prompt must not be empty")
        run = CompletionRun(
            llm=self,
            prompt=ids,
            echo=self.detokenize(ids).decode(errors="replace") if _check.flag(owner, "echo", echo) else "",
            max_tokens=max_tokens,
            stop=check_stop(stop),
            sampling=Sampling(**sampling),
            progress=self._check_progress(owner, progress),
            dense_tail=self._check_tail(owner, dense_tail, len(ids)),
            draft=self._check_draft(owner, draft),
            reuse=_check.flag(owner, "reuse", reuse),
        )
        return run.stream() if _check.flag(owner, "stream", stream) else run.complete()


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, such as "0-2, 4"."""
    starts = [n for n in numbers if n - 1 not in numbers]
    stops = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, stops, strict=True))


class _Report:
    """Turns the progress of one call into that of the whole prompt."""

    def __init__(self, progress: Progress, n_before: int, n_total: int) -> None:
        self._progress = progress
        self._n_before = n_before
        self._n_total = n_total

    def __call__(self, n_done: int) -> None:
        self._progress(self._n_before + n_done, self._n_total)
