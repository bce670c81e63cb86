"""The adapter by which lm-evaluation-harness drives a model."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from chats import CHATML, log_softmax, rendered
from h2o_llama import H2OConfig, Llama, demo_model_path

os.environ["HF_DATASETS_OFFLINE"] = "1"
lm_eval = pytest.importorskip("lm_eval")
pytestmark = pytest.mark.slow  # and of 0.5 GB

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from h2o_llama.eval.lm_eval_model import H2OLM  # noqa: E402

N_CTX = 256
END = "<eos>"  # the demo model's name of the token that ends a text
S = 32
TEXT = "".join(f"def f{i}(x):\n    return {i} * x\n" for i in range(20))
CONTEXT, CONTINUATION = TEXT[:170], TEXT[170:190]
OPTIONS: dict[str, Any] = {"n_ctx": N_CTX, "n_threads": 1}
MEMORY = {"local_window": 4, "heavy_budget": 4, "lookup_budget": 0, "chunk_size": S}


def open_lm(**changes: Any) -> H2OLM:
    return H2OLM(str(demo_model_path()), **(OPTIONS | MEMORY | changes))


def log_p(h2o: bool, text: str, dense_tail: int, prefix: list[int] | None = None) -> NDArray[np.float64]:
    """Log-probabilities [n, n_vocab] of the token after each byte of a text, read in one call."""
    with Llama(demo_model_path(), h2o=H2OConfig(**MEMORY) if h2o else None, **OPTIONS) as llm:
        llm.eval([*(prefix or []), *text.encode()], logits="all", dense_tail=dense_tail)
        rows: NDArray[np.float64] = log_softmax(llm.logits)
        return rows


def request(kind: str, *arguments: Any) -> Any:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def loglikelihoods(lm: H2OLM, *pairs: tuple[str, str]) -> list[tuple[float, bool]]:
    results: list[tuple[float, bool]] = lm.loglikelihood([request("loglikelihood", *p) for p in pairs], True)
    return results


def picked(rows: NDArray[np.float64], text: str) -> float:
    return float(rows[np.arange(len(text)), list(text.encode())].sum())


# --- log-likelihoods


@pytest.mark.parametrize(("h2o", "tail"), [("off", 128), ("on", 0), ("on", 10), ("on", 300)])
def test_loglikelihood_of_a_continuation(h2o: str, tail: int) -> None:
    """The last `tail` tokens of the context, and the continuation after its first prediction, read all that is kept."""
    n = len(CONTINUATION)
    ((value, is_greedy),) = loglikelihoods(open_lm(h2o=h2o, dense_tail=tail), (CONTEXT, CONTINUATION))
    n_read = len(CONTEXT) + n - 1
    n_dense = min(n_read, tail + n - 1) if h2o == "on" else 0
    rows = log_p(h2o == "on", (CONTEXT + CONTINUATION)[:-1], n_dense)[-n:]
    assert value == pytest.approx(picked(rows, CONTINUATION), abs=2e-2)
    assert is_greedy == (rows.argmax(axis=-1).tolist() == list(CONTINUATION.encode()))


@pytest.mark.parametrize(("h2o", "n"), [("on", 200), ("off", 200), ("off", 1), ("off", 0)])
def test_rolling_reads_the_text_as_a_prompt(h2o: str, n: int) -> None:
    lm = open_lm(h2o=h2o)
    (value,) = lm.loglikelihood_rolling([request("loglikelihood_rolling", TEXT[:n])], True)
    expected = picked(log_p(h2o == "on", TEXT[: n - 1], 0, [lm.prefix_token_id]), TEXT[:n]) if n else 0.0
    assert value == pytest.approx(expected, abs=5e-2)


# --- generation


def test_generation_ends_before_a_stop_string() -> None:
    lm = open_lm(h2o="off")
    requests = [
        request("generate_until", CONTEXT, options)
        for options in ({"max_gen_toks": 30}, {"max_gen_toks": 30, "until": "\n"}, {"max_gen_toks": 30, "until": [""]})
    ]
    free, stopped, unstopped = lm.generate_until(requests, True)
    assert len(free) == 30
    assert stopped == free.split("\n")[0] != free
    assert unstopped == free


# --- chat templates


def test_chats_are_written_by_the_template() -> None:
    """Once one is, names of special tokens are tokens."""
    lm = open_lm(chat_template=CHATML)
    history = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    prompt = rendered(CHATML, history, add_generation_prompt=True)
    assert len(lm.tok_encode(END)) == len(END)
    assert lm.apply_chat_template(history) == prompt
    assert lm.tok_encode(END) == [lm.eot_token_id]
    begun = [*history, {"role": "assistant", "content": "The answer is"}]
    assert lm.apply_chat_template(begun, add_generation_prompt=False) == prompt + "The answer is"
    assert lm.chat_template(True) == CHATML
    assert lm.chat_template(False) is None


# --- through lm_eval itself


@pytest.mark.parametrize("h2o", ["on", "off"])
def test_lm_eval_drives_the_model(tmp_path: Path, h2o: str) -> None:
    """A task about keys in a text, without anything to download."""
    docs = [
        {"text": f"{TEXT[:90]}k{key}={value};\n{TEXT[90:180]}k{key}?", "answer": value, "choices": ["1111", value]}
        for key, value in ((17, "4829"), (42, "5308"), (63, "1958"))
    ]
    (tmp_path / "docs.json").write_text("\n".join(map(json.dumps, docs)))
    task = {
        "task": "keys",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "docs.json")}, "cache_dir": str(tmp_path / "cache")},
        "test_split": "test",
        "target_delimiter": "",
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{choices.index(answer)}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    (tmp_path / "keys.yaml").write_text(json.dumps(task))  # JSON is YAML
    results = lm_eval.simple_evaluate(
        model="h2o-llama",
        model_args=f"pretrained={demo_model_path()},h2o={h2o},dense_tail=16,n_ctx={N_CTX},n_threads=1,"
        + ",".join(f"{name}={value}" for name, value in MEMORY.items()),
        tasks=["keys"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )["results"]
    assert results["keys"]["acc,none"] == 1.0
