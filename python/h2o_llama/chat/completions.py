"""`llm(prompt)`."""

from __future__ import annotations

import collections.abc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, overload

from h2o_llama._internal import check
from h2o_llama.chat.completion import Completion, CompletionChunk, CompletionRun
from h2o_llama.chat.generation import Generation, check_stop
from h2o_llama.model import ModelView, Tokens
from h2o_llama.sampling import Sampling, SamplingOptions
from h2o_llama.sequence.sequence import DENSE_TAIL, Progress, Sequence

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Completions(ModelView, Sequence):
    """Text completion of a `Llama`."""

    @overload
    def __call__(
        self,
        prompt: str | bytes | Tokens,
        max_tokens: int | None = ...,
        *,
        stream: Literal[False] = ...,
        stop: str | collections.abc.Sequence[str] | None = ...,
        echo: bool = ...,
        progress: Progress | None = ...,
        dense_tail: int = ...,
        draft: int = ...,
        reuse: bool = ...,
        logprobs: int | None = ...,
        **sampling: Unpack[SamplingOptions],
    ) -> Completion: ...

    @overload
    def __call__(
        self,
        prompt: str | bytes | Tokens,
        max_tokens: int | None = ...,
        *,
        stream: Literal[True],
        stop: str | collections.abc.Sequence[str] | None = ...,
        echo: bool = ...,
        progress: Progress | None = ...,
        dense_tail: int = ...,
        draft: int = ...,
        reuse: bool = ...,
        logprobs: int | None = ...,
        **sampling: Unpack[SamplingOptions],
    ) -> Iterator[CompletionChunk]: ...

    def __call__(
        self,
        prompt: str | bytes | Tokens,
        max_tokens: int | None = 16,
        *,
        stream: bool = False,
        stop: str | collections.abc.Sequence[str] | None = None,
        echo: bool = False,
        progress: Progress | None = None,
        dense_tail: int = DENSE_TAIL,
        draft: int = 0,
        reuse: bool = False,
        logprobs: int | None = None,
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
            The text ends before any of these. The name of a special token is that token.
        echo : bool, default False
            Put the prompt in front of the text; of token ids, the text without special tokens.
        progress, dense_tail
            As in `eval`, for the prompt: by default its last 128 tokens attend to everything.
        draft : int, default 0
            As in `generate`: faster where the answer quotes or edits the prompt.
        reuse : bool, default False
            Keep what the sequence shares with the prompt, see `Llama.reuse`, instead of beginning afresh. Penalties and
            `dense_tail` are then about the tokens that are new.
        logprobs : int, optional
            Tell the log-probability of every generated token, and so many of the most probable ones beside it. Not with
            `echo`; those of a prompt are in `eval(tokens, logits="all")`.
        **sampling
            temperature, top_k, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty, seed, grammar,
            logit_bias, logits_processor: as in `generate`.

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
            max_tokens = check.integer(owner, "max_tokens", max_tokens, 1)
        tokens = self.tokenize(prompt, parse_special=True) if isinstance(prompt, str | bytes) else prompt
        ids = self._check_prompt(owner, tokens, 0)
        if len(ids) == 0:
            raise ValueError(f"[{owner}] prompt must not be empty")
        if logprobs is not None:
            logprobs = check.integer(owner, "logprobs", logprobs, 0, self.n_vocab)
        if check.flag(owner, "echo", echo) and logprobs is not None:
            raise ValueError(f"[{owner}] logprobs are of generated tokens: pass echo=False")
        generation = Generation(
            llm=self,
            prompt=ids,
            max_tokens=max_tokens,
            stop=check_stop(owner, stop),
            sampling=Sampling(**sampling).compiled(self.core_model),
            progress=self._check_progress(owner, progress),
            dense_tail=self._check_tail(owner, dense_tail, len(ids)),
            draft=self._check_draft(owner, draft),
            reuse=check.flag(owner, "reuse", reuse),
            n_top_logprobs=logprobs,
        )
        run = CompletionRun(generation, self._text_of(prompt) if echo else "")
        return run.stream() if check.flag(owner, "stream", stream) else run.complete()

    def _text_of(self, prompt: str | bytes | Tokens) -> str:
        if isinstance(prompt, str):
            return prompt
        return (prompt if isinstance(prompt, bytes) else self.detokenize(prompt)).decode(errors="replace")

    create_completion = __call__
