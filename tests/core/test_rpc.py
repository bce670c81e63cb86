"""A model over several machines: llama.cpp's RPC servers, here two of this one. What they compute: test_devices.py."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from command_line import invoke
from devices import has_rpc, serving_rpc
from h2o_llama import H2OConfig, H2OError, Llama, demo_model_path
from h2o_llama._cli.serve import rpc_program

S = 64
TEXT = Path(__file__).read_bytes()[: 9 * S + 11]

needs_rpc = pytest.mark.skipif(
    not has_rpc(),
    reason="this build has no RPC: pip install . -C cmake.define.GGML_RPC=ON",
)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Of two servers, which hold half of the layers each."""
    folder = tmp_path_factory.mktemp("rpc")
    with serving_rpc(folder / "first") as (first, _), serving_rpc(folder / "second") as (second, _):
        yield [first, second]


def load(h2o: H2OConfig | None, **options: Any) -> Llama:
    return Llama(demo_model_path(), n_ctx=1024, n_batch=2 * S, n_threads=1, h2o=h2o, **options)


@needs_rpc
@pytest.mark.parametrize(
    "options", [{"tensor_split": [1]}, {"tensor_split": [1, 1, 1]}, {"tensor_split": [0, 0]}, {"main_gpu": 2}]
)
def test_devices_that_are_not_there(addresses: list[str], options: dict[str, Any]) -> None:
    expected = "2 numbers of at least 0, not all 0" if "tensor_split" in options else "an integer from 0 to 1"
    with pytest.raises(ValueError, match=rf"\[Llama\] {next(iter(options))} must be {expected}"):
        load(None, rpc_servers=addresses, **options)


@needs_rpc
@pytest.mark.parametrize("h2o", [None, H2OConfig(chunk_size=S, evict=True)])
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
