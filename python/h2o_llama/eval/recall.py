"""How much of what a document says is found again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from h2o_llama import Llama, _check
from h2o_llama.eval.answering import answer
from h2o_llama.eval.tasks import Item, Turn, make_item
from h2o_llama.eval.tasks.item import QuestionPlace, has_depth
from h2o_llama.eval.tasks.keys import MODEL_NAME
from h2o_llama.sequence import DENSE_TAIL

_OWNER = "measure_recall"


@dataclass(frozen=True)
class RecallCell:
    """Mean share of answers found at one length and depth, over n items.

    `n_tokens` is the length asked for; the items are as long as whole lines allow. Kinds without depth have None.
    """

    kind: str
    n_tokens: int
    depth: float | None
    question: str
    recall: float
    n: int


def measure_recall(
    llms: Mapping[str, Llama],
    *,
    kinds: Sequence[str],
    n_tokens: int,
    depths: Sequence[float],
    samples: int,
    seed: int = 0,
    style: str = "auto",
    dense_tail: int = DENSE_TAIL,
    question: QuestionPlace = "after",
    haystack: bytes | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, list[RecallCell]]:
    """Ask every model the same questions about the same documents; answers are greedy.

    The options are those of `Recall`.

    An answer is found if its bytes are said, in either case and not as a part of a longer word; in style "keys" they
    must follow the question at once. Generated tokens attend to the whole cache, so in style "keys" a first digit that
    is guessed (one chance in nine) is often followed by the right ones even if the question could not see them.

    The models are open contexts of one model by name, each with n_ctx of at least n_tokens, the most tokens that the
    document, the questions and the answers have together. What they hold is lost. All depths have the same documents
    and needles. `progress` is called as progress(n_done, n) after every prompt of every model.

    Returns a cell per kind and depth, in this order, for each name; kinds without depth have one. Raises ValueError if
    an argument is bad, or a context is too small.
    """
    if not llms:
        raise _check.bad_argument(_OWNER, "llms", "at least one model", llms)
    n_tokens = _check.integer(_OWNER, "n_tokens", n_tokens, 1)
    samples = _check.integer(_OWNER, "samples", samples, 1)
    dense_tail = _check.integer(_OWNER, "dense_tail", dense_tail, 0)
    for name, llm in llms.items():
        if llm.n_ctx < n_tokens:
            raise ValueError(f"[{_OWNER}] {n_tokens} tokens do not fit into n_ctx={llm.n_ctx} of {name!r}")
    one = next(iter(llms.values()))
    if style == "auto":
        style = "keys" if one.metadata.get("general.name") == MODEL_NAME else "english"

    places = [(kind, depth) for kind in kinds for depth in (depths if has_depth(kind) else [0.0])]

    def item_of(kind: str, depth: float, sample: int) -> Item:
        return make_item(
            kind,
            n_tokens=n_tokens,
            depth=depth,
            seed=f"{seed} {sample}",
            style=style,
            count_tokens=lambda text: len(one.tokenize(text)),
            question=question,
            haystack=haystack,
        )

    for place in places:
        item_of(*place, 0)  # what is wrong shows before anything is computed
    n_prompts = len(places) * samples * len(llms)
    n_done = 0
    cells: dict[str, list[RecallCell]] = {name: [] for name in llms}
    for kind, depth in places:
        shares: dict[str, list[float]] = {name: [] for name in llms}
        for sample in range(samples):
            item = item_of(kind, depth, sample)
            for name, llm in llms.items():
                shares[name].append(share_found(llm, item, dense_tail))
                n_done += 1
                if progress is not None:
                    progress(n_done, n_prompts)
        for name, found in shares.items():
            cells[name].append(RecallCell(kind, n_tokens, item.depth, question, float(np.mean(found)), samples))
    return cells


def share_found(llm: Llama, item: Item, dense_tail: int) -> float:
    """Read the document afresh, ask its questions, and count which of the answers come."""
    llm.reset()
    n_found = 0
    for i, turn in enumerate(item.turns):
        tokens = llm.tokenize(turn.question, add_special=False) if i else llm.tokenize(item.prompt)
        n_found += count_found(answer(llm, tokens, turn.n_generate, dense_tail), turn)
    return n_found / sum(len(turn.answers) for turn in item.turns)


def count_found(text: bytes, turn: Turn) -> int:
    """How many of the answers are in a text, as whole words."""
    return sum(
        re.search(rb"(?<!\w)" + re.escape(wanted) + rb"(?!\w)", text, re.IGNORECASE) is not None
        for wanted in turn.answers
    )
