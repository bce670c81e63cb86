"""lm-evaluation-harness on an h2o-llama model.

    python -m h2o_llama.eval.lm_eval_model --model h2o-llama --tasks hellaswag \\
        --model_args pretrained=model.gguf,n_ctx=8192,local_window=256,heavy_budget=256

is lm_eval's own command line, which knows the model "h2o-llama" then. It needs pip install "h2o-llama[eval]".
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_llama._internal import check
from h2o_llama.config import H2OConfig
from h2o_llama.eval._losses import log_softmax, piece_tokens, pieces
from h2o_llama.llama import Llama
from h2o_llama.sampling import SamplingOptions
from h2o_llama.sequence.generating import DENSE_TAIL

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    from tqdm import tqdm
except ImportError as error:
    raise ImportError('lm-evaluation-harness is missing: pip install "h2o-llama[eval]"') from error

_OWNER = "H2OLM"
_MAX_GEN_TOKENS = 256  # lm_eval's default
_SAMPLING = {name: name for name in SamplingOptions.__annotations__} | {"repetition_penalty": "repeat_penalty"}
_H2O_OPTIONS = [field.name for field in fields(H2OConfig)]


@register_model("h2o-llama")
class H2OLM(TemplateLM):  # type: ignore[misc]
    """The model "h2o-llama" of lm-evaluation-harness.

    `loglikelihood` computes what generation would: the context is read as a prompt whose last `dense_tail` tokens
    attend to everything kept, and so does the continuation. `loglikelihood_rolling` reads the whole text as a prompt,
    without a dense tail. Texts that do not fit into n_ctx lose their beginning.

    Raises ValueError, OSError or H2OError as `Llama` and `H2OConfig`; TypeError for an unknown option.

    Parameters
    ----------
    pretrained : str
        A GGUF file.
    h2o : {"on", "off"}
        "off" is llama.cpp's dense attention; dense_tail and the fields of `H2OConfig` do not matter then.
    dense_tail : int, default 128
        See above.
    **options
        The fields of `H2OConfig` (local_window, heavy_budget, …) and the arguments of `Llama` (n_ctx, n_threads, …).
        What lm_eval passes to every model (batch_size, max_batch_size, device) is ignored; for a GPU, use n_gpu_layers.
    """

    def __init__(
        self,
        pretrained: str,
        h2o: str = "on",
        dense_tail: int = DENSE_TAIL,
        batch_size: object = None,
        max_batch_size: object = None,
        device: object = None,
        **options: Any,
    ) -> None:
        super().__init__()
        config = {name: options.pop(name) for name in _H2O_OPTIONS if name in options}
        is_on = check.choice(_OWNER, "h2o", h2o, ("on", "off")) == "on"
        self._is_chat = False
        self._last: tuple[list[int], int, NDArray[np.float64]] = ([], 0, np.empty((0, 0)))
        self._dense_tail = check.integer(_OWNER, "dense_tail", dense_tail, 0)
        self._llm = Llama(pretrained, h2o=H2OConfig.from_dict(config) if is_on else None, **options)

    # --- tokens

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self._llm.token_eos

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context: the token that begins texts, or else the one that ends them."""
        return self._llm.token_bos if self._llm.token_bos >= 0 else self._llm.token_eos

    @property
    def tokenizer_name(self) -> str:
        """What lm_eval's caches tell models apart by."""
        return self._llm.model_path

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: object) -> list[int]:
        """Token ids, by default with the model's own ones around a text.

        Once a chat template was applied, names of special tokens count as these tokens.
        """
        return self._llm.tokenize(string, add_special=add_special_tokens is not False, parse_special=self._is_chat)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Messages as the model's chat template writes them, for lm_eval's --apply_chat_template.

        Without a generation prompt the last message is the begin of the answer, and the text ends with it.
        """
        self._is_chat = True
        if add_generation_prompt or chat_history[-1]["role"] != "assistant":
            return self._llm.apply_chat_template(chat_history, add_generation_prompt=add_generation_prompt)
        return self._llm.apply_chat_template(chat_history[:-1]) + chat_history[-1]["content"]

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template's source, which lm_eval keeps with its results."""
        return self._llm.chat_template if chat_template else None

    # --- requests

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        results = []
        for request, context, continuation in tqdm(requests, desc="loglikelihood", disable=disable_tqdm):
            n = len(continuation)
            if not 1 <= n <= self._llm.n_ctx:
                raise ValueError(
                    f"[{_OWNER}] a continuation must have from 1 to n_ctx={self._llm.n_ctx} tokens of its own, "
                    f"got {n} of {request[1][:40]!r}"
                )
            read = [*context, *continuation][-self._llm.n_ctx - 1 : -1]
            results.append(self._score(read, continuation, self._dense_tail + n - 1))
            self.cache_hook.add_partial("loglikelihood", request, results[-1])
        return results

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in windows of at most n_ctx tokens; each token is scored once."""
        results = []
        for request in tqdm(requests, desc="loglikelihood_rolling", disable=disable_tqdm):
            (text,) = request.args
            total = 0.0
            for window in get_rolling_token_windows(
                self.tok_encode(text, add_special_tokens=False), self.prefix_token_id, self._llm.n_ctx, 1
            ):
                context, continuation = make_disjoint_window(window)
                read = [*context, *continuation][:-1]
                total += self._score(read, continuation, 0)[0]
            results.append(total)
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
        return results

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Texts up to a stop string, greedy unless the task samples: then as it asks for, and nothing else."""
        results = []
        for request in tqdm(requests, desc="generate_until", disable=disable_tqdm):
            context, options = request.args
            n = options.get("max_gen_toks", _MAX_GEN_TOKENS)
            if n >= self._llm.n_ctx:
                raise ValueError(
                    f"[{_OWNER}] n_ctx={self._llm.n_ctx} has no room for max_gen_toks={n}: use a larger one"
                )
            prompt = self.tok_encode(context)[n - self._llm.n_ctx :]
            until = options.get("until") or []
            completion = self._llm(
                prompt,
                max_tokens=n,
                stop=[stop for stop in ([until] if isinstance(until, str) else until) if stop],
                dense_tail=self._dense_tail,
                reuse=False,  # whatever was asked before
                **_sampling(options),
            )
            results.append(completion["choices"][0]["text"])
            self.cache_hook.add_partial("generate_until", request.args, results[-1])
        return results

    def _score(self, tokens: list[int], continuation: list[int], dense_tail: int) -> tuple[float, bool]:
        """Sum of the continuation's log-probabilities, and whether each token is the most probable.

        Its last token is not among the tokens that are read.
        """
        total, is_greedy, n_done = 0.0, True, 0
        for log_p in self._log_probabilities(tokens, len(continuation), dense_tail):
            picked = continuation[n_done : n_done + len(log_p)]
            total += float(log_p[np.arange(len(picked)), picked].sum())
            is_greedy &= log_p.argmax(axis=-1).tolist() == picked
            n_done += len(picked)
        return total, is_greedy

    def _log_probabilities(self, tokens: list[int], n: int, dense_tail: int) -> Iterator[NDArray[np.float64]]:
        """Log-probabilities after each of the last n tokens, [rows, n_vocab], a few rows at a time."""
        if n == 1 and self._last[:2] == (tokens, dense_tail):
            yield self._last[2]
            return
        self._llm.reset()
        first = len(tokens) - n
        calls = [(first + a, first + b) for a, b in pieces(n, n, piece_tokens(self._llm.n_vocab))]
        for start, stop in [(0, first)] * (first > 0) + calls:
            tail = max(0, dense_tail - (len(tokens) - stop))
            self._llm.eval(tokens[start:stop], logits="all" if start >= first else "last", dense_tail=tail)
            if start >= first:
                log_p = log_softmax(self._llm.logits)
                # Several continuations of one token, as the letters of a multiple choice, need one prefill.
                self._last = (tokens, dense_tail, log_p) if n == 1 else self._last
                yield log_p


def _sampling(options: dict[str, Any]) -> SamplingOptions:
    """A task's generation_kwargs. Other options are off: the model's own probabilities are measured."""
    off: SamplingOptions = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    asked: Any = {_SAMPLING[name]: value for name, value in options.items() if name in _SAMPLING and value is not None}
    return {**off, **asked, **({} if options.get("do_sample") else {"temperature": 0.0})}


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
