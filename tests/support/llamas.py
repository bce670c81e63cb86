"""Opening the library under test, and running the same calls through it and through the oracle."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

import h2o_llama
from cases import Case
from compare import FollowLibrary, assert_logits_close, assert_scores_close, relative_error
from h2o_llama import H2OConfig
from kernels import ALL_ISAS
from oracle import GGUFModel, OracleSequence, read_model
from tolerances import AMX_ERROR


@cache
def architecture(path: Path) -> str:
    """Of a model's file."""
    return str(GGUFReader(path).fields["general.architecture"].contents())


def open_llama(path: Path, config: Case | None, *, n_ctx: int = 1024, **kwargs: Any) -> h2o_llama.Llama:
    """A `Llama` with H2O as configured, or without (then `S` etc. do not matter), recording every memory set."""
    # One thread: threads of so small a model would mostly wait for each other.
    arguments: dict[str, Any] = {"n_batch": n_ctx, "n_threads": 1}
    arguments["n_gpu_layers"] = int(os.environ.get("H2O_TEST_GPU_LAYERS", "0"))  # tools/check_gpu.py
    if config is None:
        arguments |= {"h2o": None, "n_ubatch": 512, "type_k": "f32", "type_v": "f32", "flash_attn": "off"}
    else:
        arguments |= {
            "type_k": config.kv_type,
            "type_v": config.kv_type,
            "flash_attn": config.flash_attn,
            "h2o": config.h2o,
            "keep_history": True,
            "cold_store_compression": config.cold_store_compression,
        }
        if config.n_ctx_train is not None:
            key = f"{architecture(path)}.context_length"
            arguments["kv_overrides"] = {key: config.n_ctx_train}
    return h2o_llama.Llama(str(path), n_ctx=n_ctx, **(arguments | kwargs))


TINY = H2OConfig(local_window=4, heavy_budget=6, sink_tokens=2, chunk_size=16)


def open_tiny(path: Path | h2o_llama.Llama, **kwargs: Any) -> h2o_llama.Llama:
    """With small chunks and calls, as a user opens it: for tests of what does not depend on them."""
    defaults = {"n_ctx": 256, "n_batch": 64, "n_ubatch": 16, "n_threads": 1, "h2o": TINY}
    return h2o_llama.Llama(path, **(defaults | kwargs))


def eval_calls(
    llm: h2o_llama.Llama, calls: Sequence[Sequence[int]], dense_tail: int = 0, decode: bool = True
) -> list[Any]:
    """Logits [len(call), n_vocab] of every call. With `decode`, a call of one token is a decode step."""
    logits = []
    for call in calls:
        is_step = decode and len(call) == 1
        llm.eval(call, logits="all", dense_tail=0 if is_step else dense_tail, decode=is_step)
        logits.append(np.array(llm.logits))
    return logits


def oracle_calls(oracle: OracleSequence, calls: Sequence[Sequence[int]], dense_tail: int = 0) -> list[Any]:
    logits = []
    for call in calls:
        if len(call) == 1:
            oracle.decode_step(call[0])
        else:
            oracle.eval(call, dense_tail)
        logits.append(oracle.logits)
    return logits


def assert_agrees_with_oracle(
    path: Path,
    model: GGUFModel,
    config: Case,
    calls: Sequence[Sequence[int]],
    dense_tail: int = 0,
    **kwargs: Any,
) -> OracleSequence:
    """Property P5: logits of every call, every memory set, scores, and the cache itself.

    With AMX's kernel and the index, an oracle that decides near ties otherwise may agree instead. Returns the oracle.
    """
    bounds = config.tolerance(model, calls)
    with open_llama(path, config, **kwargs) as llm:
        actual = eval_calls(llm, calls, dense_tail)
        for noise in index_noises() if config.h2o.has_key_index else (None,):
            follow = FollowLibrary(llm.kv.history, bounds.scores)
            oracle = config.oracle(model, choose_memory=follow, index_noise=noise)
            expected = oracle_calls(oracle, calls, dense_tail)
            pairs = list(zip(actual, expected, strict=True))
            if all(relative_error(got, want) <= bounds.logits for got, want in pairs):
                break

        assert llm.kv.memory_initialized == (oracle.n_tokens > config.h2o.chunk_size)
        assert llm.kv.n_tokens == oracle.n_tokens
        assert llm.kv.chunk_index == oracle.chunk_index
        assert len(llm.kv.history) == len(oracle.history)
        dense = config.h2o.dense_layers
        assert isinstance(dense, tuple)
        assert list(llm.kv.layers) == [il for il in model.hparams.attention_layers if il not in dense]
        for got, want in pairs:
            assert_logits_close(got, want, bounds.logits)
        for il in llm.kv.layers:
            np.testing.assert_array_equal(llm.kv.memory_indices(il), oracle.memory_indices(il))
            kept = kept_positions(oracle, config, il)
            assert_scores_close(llm.kv.scores(il)[kept], oracle.scores(il)[kept], bounds.scores)
            cached = oracle.cache.read(il, slice(0, oracle.n_tokens))
            if config.h2o.cold_store:
                kept[:] = True
            for got, want in zip((llm.kv.keys(il), llm.kv.values(il)), cached, strict=True):
                if config.h2o.positions == "text" or want is cached[1]:  # else keys are where attention has them
                    assert_logits_close(got[kept], want[kept], bounds.logits)
                assert np.isnan(got[~kept]).all()
    return oracle


def index_noises() -> Iterator[Callable[[Any], Any] | None]:
    """None; and with AMX's kernel noise as large as its error, by which the index decides near ties otherwise."""
    yield None
    for seed in range(32) if ALL_ISAS[0] == "amx" else ():
        rng = np.random.default_rng(seed)

        def noisy(x: Any, rng: np.random.Generator = rng) -> Any:
            size = AMX_ERROR * np.sqrt(np.mean(x * x, axis=-1, keepdims=True))
            return (x + size * rng.standard_normal(x.shape)).astype(x.dtype)

        yield noisy


def decode_calls(llm: h2o_llama.Sequence, calls: Sequence[Sequence[int]]) -> Any:
    """Logits of generated tokens; the tokens of a call are computed together."""
    logits = []
    for call in calls:
        llm.eval(call, logits="all", decode=True)
        logits.append(np.array(llm.logits))
    return np.concatenate(logits)


def decode_each(sequences: Sequence[h2o_llama.Sequence], tokens: Sequence[int]) -> Any:
    """Append a generated token to each in one step. Returns their logits."""
    rows = np.empty((len(tokens), sequences[0].model.n_vocab), np.float32)
    with sequences[0]._state.claim:
        contexts = [sequence._state.context for sequence in sequences]
        h2o_llama._core.Context.decode_each(contexts, np.array(tokens, np.int32), rows)
    return rows


def rows_of(path: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    """What the model's first layer is given for these tokens, [n, n_embd]."""
    model = read_model(path)
    rows = model.tok_embd.rows(np.array(tokens), np.float32)
    return np.asarray(rows * np.float32(model.hparams.embedding_scale))


# --- as upstream's programs see a sequence


def remove(sequence: h2o_llama.Sequence, start: int) -> bool:
    try:
        with sequence._state.used() as context:
            context.rewind(start)
    except h2o_llama.H2OError:
        return False
    return True


def min_position(sequence: h2o_llama.Sequence) -> int:
    with sequence._state.used() as context:
        return context.min_position


def rewind_points(sequence: h2o_llama.Sequence, position: int) -> tuple[int, int]:
    """The nearest positions that can be gone back to, at or below this one and at or above it."""
    with sequence._state.used() as context:
        before, after = context.rewind_points(position)
    return before, after


def state_of(sequence: h2o_llama.Sequence) -> bytes:
    with sequence._state.used() as context:
        return context.get_state()


def restore(sequence: h2o_llama.Sequence, state: bytes) -> None:
    with sequence._state.used() as context:
        context.set_state(state)


# --- views of a sequence


def arrays(sequence: h2o_llama.Sequence) -> list[Any]:
    """Memory sets, scores, K and V of every layer."""
    kv = sequence.kv
    return [x for il in kv.layers for x in (kv.memory_indices(il), kv.scores(il), kv.keys(il), kv.values(il))]


def view(sequence: h2o_llama.Sequence, history: bool = True) -> list[Any]:
    """All that is known of a sequence. A state has no history: no earlier memory sets."""
    if sequence.h2o is None:
        return [sequence.n_tokens]
    seen = [sequence.n_tokens, sequence.kv.chunk_index, *arrays(sequence)]
    if history:
        seen += [sets[il] for sets in sequence.kv.history for il in sequence.kv.layers]
    return seen


def extra_keys_of(sequence: h2o_llama.Sequence) -> dict[tuple[int, int, int], list[int]]:
    """By layer, head and tile, where keys are kept."""
    assert sequence.h2o is not None
    found, size = {}, sequence.h2o.chunk_size
    tiles = sum(-(-min(size, sequence.n_tokens - i) // sequence.h2o.tile) for i in range(0, sequence.n_tokens, size))
    for layer in sequence.kv.layers:
        for head, tile in np.ndindex(len(sequence.kv.memory_indices(layer)), tiles):
            with suppress(h2o_llama.H2OError):
                found[layer, head, tile] = sequence.kv.extra_keys(layer, head, tile).tolist()
    return found


def kept_positions(oracle: OracleSequence, config: Case, il: int) -> NDArray[np.bool_]:
    """Which positions every KV head of the layer still has, [n_head_kv, n_tokens]."""
    memory = oracle.memory_indices(il)
    kept = np.full((len(memory), oracle.n_tokens), not config.h2o.evict)
    for head, positions in zip(kept, memory, strict=True):
        head[positions[positions >= 0]] = True
        head[len(oracle.history) * config.h2o.chunk_size :] = True
    return kept
