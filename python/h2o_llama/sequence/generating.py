"""Generating after a text, token by token."""

import threading
from collections.abc import Generator

from typing_extensions import Unpack

from h2o_llama._internal.llama_cpp import understands
from h2o_llama._prompt import Tokens
from h2o_llama.sampling import Sampling, SamplingOptions
from h2o_llama.sequence._drawing import DENSE_TAIL, Drawing, Stopping
from h2o_llama.sequence._engine import ProgressOption
from h2o_llama.sequence._state import HasState
from h2o_llama.sequence.many import ManyGenerations, check_max_tokens


class GenerateOptions(SamplingOptions, total=False):
    """Options of `generate`, but `progress`; see there."""

    max_tokens: int | None
    dense_tail: int
    draft: int
    stopping_criteria: Stopping


@understands
def generate(
    sequence: HasState,
    tokens: Tokens,
    *,
    max_tokens: int | None = None,
    progress: ProgressOption = None,
    dense_tail: int = DENSE_TAIL,
    draft: int = 0,
    stopping_criteria: Stopping = None,
    **sampling: Unpack[SamplingOptions],
) -> Generator[int, None, None]:
    r"""Append tokens to the sequence, then generate more, one at a time.

    A token comes out when it is drawn, and is computed when the next one is asked for or the sequence is looked at:
    so the sequence has exactly the tokens that came out. It ends when the model ends its text (the token
    that says so does not come out), or when the sequence has n_ctx tokens.

    Parameters
    ----------
    tokens : sequence of int, or integer ndarray [n]
        Token ids; empty to continue after the last eval.
    max_tokens : int or None, default None
        The most tokens to generate; None: until the text ends.
    progress, dense_tail
        As in `eval`, for the tokens given: by default the last 128 of them attend to everything.
    draft : int, default 0
        Prompt lookup decoding, for answers that quote or edit the sequence. If the last tokens occurred earlier, up
        to `draft` tokens are guessed to follow as they did there, and computed together with the next token; right
        guesses are kept. 15 is a good value, and with decode="memory" the most where attention is scored; 0 is off.
        The same tokens come out, for every kind of sampling and with the same seed, but for rounding: logits of tokens
        computed together differ a little, most with quantised weights, which can decide near ties. Needs a model
        that can take tokens back: no recurrent one. `kv.stats` counts; looking at `kv` takes back drafted tokens.
    stopping_criteria : callable, or sequence of callables, optional
        Each is called as criterion(input_ids, logits) before a token is drawn, int32 [n_tokens] and float32 [n_vocab],
        and ends the text by returning True. It must not call back into the `Llama`.
    **sampling
        The fields of `h2o_llama.sampling.Sampling`: temperature, top_k, top_p, seed, grammar and the others.
        Penalties count the tokens given and generated here, and a grammar is about the tokens generated here.

    Raises
    ------
    ValueError, H2OError
        As `eval`. H2OError too if there are neither tokens nor logits to continue from.
    Cancelled
        If the sequence was reset, rewound, restored or reused between two tokens.

    Examples
    --------
    >>> prompt = llm.tokenize("k17=4829;\n" + "# a comment\n" * 20 + "k17?")
    >>> llm.detokenize(list(llm.generate(prompt, temperature=0, max_tokens=5)))
    b'4829;'
    """
    owner, state = f"{sequence._state.owner}.generate", sequence._state
    n_most = check_max_tokens(owner, max_tokens)
    options = Sampling.of(owner, sampling)
    drawing = Drawing(owner, state, options, tokens, progress, dense_tail, draft, stopping_criteria)
    return tokens_of(sequence, ManyGenerations({sequence: drawing}, n_most))


def tokens_of(sequence: HasState, steps: ManyGenerations[HasState]) -> Generator[int, None, None]:
    """The tokens of one sequence. Its text goes to the library at the end."""
    reader = threading.current_thread()
    try:
        for step in steps:
            yield step[sequence]
            reader = threading.current_thread()
    finally:
        if threading.current_thread() is reader:  # another thread may collect an abandoned stream
            sequence._state.give_away()
