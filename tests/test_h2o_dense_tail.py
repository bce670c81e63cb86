"""`dense_tail`: the last tokens of a call attend to everything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from compare import assert_logits_close
from h2o_llama import H2OConfig, Llama, demo_model_path
from h2o_llama._demo.document import build_document
from h2o_llama.sequence.generating import DENSE_TAIL
from inputs import limited, random_tokens
from llamas import Config, eval_calls, open_llama
from oracle import DenseOracle, GGUFModel
from pairwise import pairwise
from tolerances import SELF_LOGITS_F32

S = 16
CONFIG = Config(S=S, L=4, H=6, A=1)


@pairwise("schedule", "flash_attn", "model_path")
def test_a_tail_of_everything_is_dense_attention(
    schedule: str, flash_attn: str, model_path: Path, oracle_model: GGUFModel
) -> None:
    config = replace(CONFIG, flash_attn=flash_attn, schedule=schedule)
    tokens = random_tokens(limited(100, model_path), oracle_model.hparams.n_vocab, seed=2)
    expected = DenseOracle(oracle_model, "f32").logits(np.array(tokens))
    with open_llama(model_path, config) as llm:
        (logits,) = eval_calls(llm, [tokens], dense_tail=len(tokens))
    assert_logits_close(logits, expected, config.tolerance(oracle_model).logits)


def test_one_call_or_two(schedule: str, tiny_model: Path) -> None:
    """The tail may come in a call of its own, or several; a call longer than n_batch takes several too."""
    tokens = random_tokens(150, seed=3)
    config = replace(CONFIG, schedule=schedule)
    with open_llama(tiny_model, config) as llm, open_llama(tiny_model, config, n_batch=32) as parts:
        (expected,) = eval_calls(llm, [tokens], dense_tail=50)
        scores = {il: llm.kv.scores(il) for il in llm.kv.layers}
        (actual,) = eval_calls(parts, [tokens], dense_tail=50)
        assert_logits_close(actual, expected, SELF_LOGITS_F32)
        llm.reset()
        llm.eval(tokens[:100])
        actual = np.concatenate(eval_calls(llm, [tokens[100:103], tokens[103:]], dense_tail=100))
        assert_logits_close(actual, expected[100:], SELF_LOGITS_F32)
        for il in llm.kv.layers:
            np.testing.assert_allclose(llm.kv.scores(il), scores[il], rtol=1e-4, atol=1e-5)


def test_stats_tell_of_tails(schedule: str, tiny_model: Path) -> None:
    """40 tokens before the end of 90: 50 ... 63, 64 ... 79 and 80 ... 89."""
    with open_llama(tiny_model, replace(CONFIG, schedule=schedule)) as llm:
        llm.eval(random_tokens(90), dense_tail=40)
        stats = llm.kv.stats
        assert stats.tail_runs == 3
        assert stats.tail_ms > 0
        assert stats.prefill_tokens == 90
        assert stats.single_pass_runs == (4 if schedule == "single_pass" else 0)
        assert (stats.phase1_runs, stats.phase2_runs) == ((1, 4) if schedule == "two_phase" else (0, 0))


def test_without_h2o_a_tail_changes_nothing(tiny_model: Path) -> None:
    tokens = random_tokens(60)
    with open_llama(tiny_model, None) as llm:
        (expected,) = eval_calls(llm, [tokens])
        llm.reset()
        (actual,) = eval_calls(llm, [tokens], dense_tail=30)
    np.testing.assert_array_equal(actual, expected)


# --- what it is for


def test_a_question_after_the_document_is_answered_as_dense_attention_answers_it() -> None:
    """The demo model, keys at three depths, all but the last far outside a memory set of sinks and window.

    By default, the first tokens of an answer are looked up: the question repeats the key.
    """
    document = build_document(2500, (0.02, 0.4, 0.95))
    h2o = H2OConfig(local_window=28, heavy_budget=0, lookup_budget=0, chunk_size=256)
    with (
        Llama(demo_model_path(), n_ctx=2600, n_threads=1, h2o=h2o) as llm,
        Llama(llm, n_ctx=2600, n_ubatch=256, n_threads=1, h2o=None) as dense,
        Llama(
            llm,
            n_ctx=2600,
            n_threads=1,
            h2o=H2OConfig(local_window=60, heavy_budget=320, sink_tokens=4, lookup_budget=128, chunk_size=256),
        ) as default,
    ):
        for needle in document.needles:
            prompt = document.text + needle.question
            answers = {}
            for name, model, tail in (
                ("dense", dense, 0),
                ("tail", llm, DENSE_TAIL),
                ("none", llm, 0),
                ("default", default, 0),
            ):
                answer = model(prompt, max_tokens=4, temperature=0.0, dense_tail=tail)
                answers[name] = answer["choices"][0]["text"].encode()
            assert answers["dense"] == needle.answer
            assert answers["tail"] == needle.answer
            assert answers["default"] == needle.answer
            assert (answers["none"] == needle.answer) == (needle is document.needles[-1])
