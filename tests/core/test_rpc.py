"""A model over several machines: llama.cpp's RPC servers, here two of this one. Only in a build with RPC."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oracle
from command_line import invoke
from h2o_llama import H2OConfig, H2OError, Llama, _core, demo_model_path
from h2o_llama._cli.serve import rpc_program
from servers import Server, running

S = 64
TEXT = (Path(oracle.__file__).parent / "attention.py").read_bytes()[: 9 * S + 11]

needs_rpc = pytest.mark.skipif(
    not (Path(_core.__file__).parent / "lib" / "ggml-rpc-server").exists(),
    reason="this build has no RPC: pip install . -C cmake.define.GGML_RPC=ON",
)


@contextmanager
def serving_rpc(log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address and the process of an RPC server."""
    with running(log, listens, "rpc-server", "--threads=1") as server:
        yield f"127.0.0.1:{server.port}", server.process


def listens(server: Server) -> bool:
    socket.create_connection(("127.0.0.1", server.port)).close()
    return True


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Of two servers, which hold half of the layers each."""
    folder = tmp_path_factory.mktemp("rpc")
    with serving_rpc(folder / "first") as (first, _), serving_rpc(folder / "second") as (second, _):
        yield [first, second]


def load(h2o: H2OConfig | None, **options: Any) -> Llama:
    return Llama(demo_model_path(), n_ctx=1024, n_batch=2 * S, n_threads=1, h2o=h2o, **options)


def read(llm: Llama) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Logits after the text, and after each of two more tokens; the memory sets."""
    tokens = llm.tokenize(TEXT)
    logits = []
    for part in (tokens[:-2], tokens[-2:-1], tokens[-1:]):
        llm.eval(part)
        logits.append(llm.logits.copy())
    return logits, [] if llm.kv is None else [llm.kv.memory_indices(layer) for layer in llm.kv.layers]


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "two phases": {"schedule": "two_phase", "lookup_budget": 0},
    "evict": {"evict": True},
    "a cold store": {"evict": True, "cold_store": "memory", "dense_layers": (1,)},
}


@needs_rpc
@pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=list(CONFIGURATIONS))
def test_servers_compute_what_one_machine_does(addresses: list[str], options: dict[str, Any]) -> None:
    h2o = H2OConfig(chunk_size=S, **options)
    with load(h2o) as here, load(h2o, rpc_servers=addresses) as there:
        (logits, memory), (logits_there, memory_there) = read(here), read(there)
    for a, b in zip(logits, logits_there, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-4)
    for a, b in zip(memory, memory_there, strict=True):
        np.testing.assert_array_equal(b, a)
        assert (a >= 0).all()


@needs_rpc
@pytest.mark.parametrize(
    "options", [{"tensor_split": [1]}, {"tensor_split": [1, 1, 1]}, {"tensor_split": [0, 0]}, {"main_gpu": 2}]
)
def test_devices_that_are_not_there(addresses: list[str], options: dict[str, Any]) -> None:
    expected = "2 numbers of at least 0, not all 0" if "tensor_split" in options else "an integer from 0 to 1"
    with pytest.raises(ValueError, match=rf"\[Llama\] {next(iter(options))} must be {expected}"):
        load(None, rpc_servers=addresses, **options)


@needs_rpc
@pytest.mark.parametrize("h2o", [None, H2OConfig(chunk_size=S), H2OConfig(chunk_size=S, evict=True)])
def test_a_server_that_ends_is_an_error_and_not_the_end(tmp_path: Path, h2o: H2OConfig | None) -> None:
    with serving_rpc(tmp_path / "log") as (address, process):
        with load(h2o, rpc_servers=address) as llm:
            tokens = llm.tokenize(TEXT)
            llm.eval(tokens[: 2 * S])
            process.kill()
            process.wait()
            for _ in range(2):
                with pytest.raises(H2OError, match="RPC server crashed, was stopped"):
                    llm.eval(tokens[2 * S :])
            # with H2O a reset is of the host only
            with nullcontext() if h2o else pytest.raises(H2OError, match="RPC server crashed, was stopped"):
                llm.reset()
        with pytest.raises(H2OError, match="Failed to connect"):
            load(h2o, rpc_servers=address)


@needs_rpc
def test_the_command_line_takes_servers(addresses: list[str]) -> None:
    run = ["run", "demo", "--prompt", "def ", "-n", "4", "--temp", "0"]
    here, there = invoke(*run), invoke(*run, "--rpc", ",".join(addresses))
    assert (here.exit_code, there.exit_code) == (0, 0), there.output
    assert here.stdout == there.stdout != ""


@pytest.mark.parametrize("servers", ["", "host", "host:", ":1", "host:0", "host:65536", "host:1,", ["a:1", 2], 7])
def test_what_is_no_address(servers: Any) -> None:
    with pytest.raises(ValueError, match="rpc_servers must be HOST:PORT"):
        load(None, rpc_servers=servers)


def test_servers_and_layers_go_together() -> None:
    with pytest.raises(ValueError, match="each named once"):
        load(None, rpc_servers="a:1,a:1")
    with pytest.raises(ValueError, match="n_gpu_layers must be left out"):
        load(None, rpc_servers="a:1", n_gpu_layers=0)


def test_a_build_without_rpc_says_how_to_get_it() -> None:
    with pytest.raises(H2OError, match=r"\[rpc-server\] .*no-such-server is missing: install h2o-llama from its"):
        rpc_program("no-such-server")
