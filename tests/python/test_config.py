"""H2OConfig: its values, and its errors."""

import dataclasses
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from compare import case
from h2o_llama import H2OConfig
from h2o_llama._cli.options import upstream_options
from h2o_llama.config import OPTIONS, option_names


def test_defaults_with_a_cold_store() -> None:
    """As without eviction, but for generated tokens."""
    config = H2OConfig(evict=True, cold_store=Path("folder"))
    assert config == dataclasses.replace(H2OConfig(), evict=True, cold_store="folder")
    assert (config.heavy_budget, config.lookup_budget, config.positions) == (0, 3072, "text")


def test_sizes_that_are_not_given_go_with_the_chunk() -> None:
    assert H2OConfig(chunk_size=1024) == H2OConfig()
    for chunk_size, others, sizes, lookup_budget in (
        (4096, {}, (60, 0, 4), 3072),
        (4096, {"lookup_budget": 0}, (60, 448, 4), 0),
        (4096, {"preset": "fast"}, (60, 128, 4), 512),
        (4096, {"preset": "faithful"}, (60, 0, 4), 4096),
        (7, {"preset": "faithful"}, (0, 1, 0), 28),
        (256, {}, (15, 0, 4), 768),
        (256, {"heavy_budget": 7}, (15, 7, 4), 768),
        (256, {"evict": True}, (15, 112, 4), 0),
        (1, {"scorer": "sum"}, (0, 1, 0), 3),
    ):
        config = H2OConfig(chunk_size=chunk_size, **others)  # type: ignore[arg-type]
        assert (config.local_window, config.heavy_budget, config.sink_tokens) == sizes
        assert config.lookup_budget == lookup_budget


def test_what_was_not_given_follows_anew() -> None:
    """`dataclasses.replace` hands on given values, and nothing else."""
    config = H2OConfig(heavy_budget=7)
    assert dataclasses.replace(config, evict=True) == H2OConfig(heavy_budget=7, evict=True)
    assert dataclasses.replace(config, chunk_size=256) == H2OConfig(heavy_budget=7, chunk_size=256)
    assert dataclasses.replace(H2OConfig(evict=True), evict=False) == H2OConfig()
    assert dataclasses.replace(H2OConfig(evict=True), heavy_budget=5).heavy_budget == 5
    assert pickle.loads(pickle.dumps(config)) == config
    research = H2OConfig(research={"tile": 8}).with_research(ema_alpha=0.25)
    assert dataclasses.replace(research, evict=True) == H2OConfig(evict=True, research={"tile": 8, "ema_alpha": 0.25})
    assert H2OConfig.from_dict(dataclasses.asdict(research)) == research
    assert dataclasses.replace(pickle.loads(pickle.dumps(config)), evict=True).decode == "memory"
    assert dataclasses.replace(H2OConfig(preset="fast"), evict=True) == H2OConfig(preset="fast", evict=True)
    assert H2OConfig(local_window=60) != H2OConfig()  # they differ with other chunks
    for each in (config, research, H2OConfig(), H2OConfig(evict=True, cold_store="memory", dense_layers=2)):
        assert eval(repr(each)) == each


def test_sizes_become_whole_blocks() -> None:
    h2o = H2OConfig(scorer="block_ema")
    assert (h2o.sink_tokens, h2o.local_window, h2o.heavy_budget) == (16, 64, 0)
    blocks = H2OConfig(local_window=5, heavy_budget=9, sink_tokens=1, scorer="block_ema", research={"block_tokens": 4})
    assert blocks.memory_size == 8 + 12 + 4
    assert dataclasses.replace(h2o, scorer="sum", local_window=5).local_window == 5


def test_a_number_of_dense_layers_means_the_first() -> None:
    assert H2OConfig(dense_layers=3) == H2OConfig(dense_layers=[2, 0, 1, 0])
    assert H2OConfig(dense_layers=0) == H2OConfig()


def test_the_cores_table_has_every_option() -> None:
    """Name, default and choices are the core's; values that follow from others are off there."""
    follow = {"local_window", "heavy_budget", "sink_tokens", "lookup_budget"}
    config = H2OConfig().as_text()
    for name in option_names():
        option = OPTIONS[name]
        assert re.search(rf'^    {name} : |"{name}" \(', str(H2OConfig.__doc__), re.MULTILINE)
        assert option.default == ("0" if name in follow else config.get(name, option.default))
    assert set(upstream_options(H2OConfig(dense_layers=[3, 0, 1]))) >= {"--h2o-dense-layers", "0,1,3", "--h2o-chunk"}


def test_bad_values() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"local_window": -1}, "local_window must be an integer of at least 0, got -1"),
        ({"heavy_budget": 2**31 - 1}, r"local_window \+ heavy_budget \+ sink_tokens must be from 1"),
        ({"local_window": 0, "heavy_budget": 0, "sink_tokens": 0}, "must be from 1 to 2147483647, got 0"),
        ({"local_window": 17, "chunk_size": 16}, r"local_window must be at most chunk_size \(16\), got 17"),
        ({"scorer": "best"}, "scorer must be one of 'distant', 'sum', 'block_ema', got 'best'"),
        ({"evict": True, "schedule": "two_phase"}, "evict needs schedule single_pass, got two_phase"),
        ({"evict": True, "decode": "full"}, "evict needs decode memory, got full"),
        ({"chunk_size": 1000}, r"chunk_size must be a multiple of tile \(32\), or less, got 1000"),
        ({"evict": True, "lookup_budget": 1}, "evict needs lookup_budget 0 or a cold_store, got 1"),
        ({"evict": True, "cold_store": ""}, "cold_store must be 'memory', the path of a folder or None, got ''"),
        ({"evict": True, "cold_store": 1}, "cold_store must be 'memory', the path of a folder or None, got 1"),
        ({"evict": True, "cold_store": "x" * 2000}, r"cold_store must be of less than 1024 bytes, got 'x{77}\.\.\.'$"),
        ({"positions": "cache"}, "positions cache is for what eviction keeps: it needs evict"),
        ({"positions": "cache", "evict": True, "cold_store": "memory"}, "positions cache needs no cold_store"),
        ({"cold_store": "memory"}, "cold_store is for what is evicted: it needs evict"),
        ({"evict": 1}, "evict must be True or False, got 1"),
        ({"dense_layers": 1, "schedule": "two_phase"}, "dense_layers need schedule single_pass"),
        *(
            ({"dense_layers": bad}, "dense_layers must be an integer")
            for bad in (-1, 513, True, "0", [512], [0, 1.5], None)
        ),
        ({"keep_ratio": 0}, "keep_ratio must be above 0"),
        ({"keep_ratio": 1.5}, "keep_ratio must be a finite number from 0 to 1, got 1.5"),
        ({"ema_alpha": 1.0, "scorer": "block_ema"}, "ema_alpha must be at least 0 and below 1"),
        (
            {"local_window": 4, "heavy_budget": 8, "scorer": "block_ema", "block_tokens": 4, "chunk_size": 18},
            r"must be multiples of block_tokens \(4\), got 18, 4, 8 and 4",
        ),
    ]
    for arguments, message in cases:
        with case(arguments=arguments), pytest.raises(ValueError, match=r"^\[H2OConfig\] .*" + message):
            H2OConfig.from_dict(arguments)
    for research in ({"heavy_budget": 1}, 1):
        with pytest.raises(ValueError, match=r"^\[H2OConfig\] research must be a mapping with keys of \['tile', 'pos"):
            H2OConfig(research=research)  # type: ignore[arg-type]
