"""A model over several machines: llama.cpp's RPC servers, here two of this one. Only in a build with RPC."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

import numpy as np
import pytest

from command_line import invoke
from h2o_llama import H2OConfig, H2OError, Llama, _core, demo_model_path
from h2o_llama._cli.serve import rpc_program
from servers import Server, running

S = 64
TEXT = (Path(__file__).parent / "oracle" / "attention.py").read_bytes()[: 9 * S + 11]

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


SET_TENSOR, GET_TENSOR, GET_ALLOC_SIZE = 6, 8, 13
RPC_TENSOR = struct.Struct("<8xI40xI172x64s4x")
"""A tensor in the protocol: its type, its operator and, near the end, its name."""


@contextmanager
def counted(address: str) -> Iterator[tuple[str, Counter[str], set[tuple[int, int, int]]]]:
    """An address before this one, and the bytes that go through it to tensors and from them, by name.

    And what the server was asked about: the operator's number, and the types of its second and third source.
    """
    host, port = address.split(":")
    sizes: Counter[str] = Counter()
    asked: set[tuple[int, int, int]] = set()

    def count(command: int, data: bytes) -> None:
        if command == GET_ALLOC_SIZE:
            tensors = list(RPC_TENSOR.iter_unpack(data[4:]))  # the operator, then its sources
            asked.add((tensors[0][1], tensors[2][0], tensors[3][0]))
        if command in (SET_TENSOR, GET_TENSOR):
            name = RPC_TENSOR.unpack_from(data)[2].split(b"\0")[0].decode()
            # next are an offset, then the bytes or their number
            n = len(data) - RPC_TENSOR.size - 8 if command == SET_TENSOR else struct.unpack("<Q", data[-8:])[0]
            sizes[("to " if command == SET_TENSOR else "from ") + name] += n

    class Relay(BaseRequestHandler):
        def pass_back(self, server: socket.socket) -> None:
            while data := server.recv(1 << 16):
                self.request.sendall(data)
            self.request.shutdown(socket.SHUT_WR)

        def handle(self) -> None:
            with socket.create_connection((host, int(port))) as server, self.request.makefile("rb") as requests:
                for end in (self.request, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = Thread(target=self.pass_back, args=(server,))
                back.start()
                while head := requests.read(9):
                    command, n = struct.unpack("<BQ", head)
                    data = requests.read(n)
                    count(command, data)
                    server.sendall(head + data)
                server.shutdown(socket.SHUT_WR)
                back.join()

    with ThreadingTCPServer(("127.0.0.1", 0), Relay) as relay:
        thread = Thread(target=relay.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{relay.server_address[1]}", sizes, asked
        finally:
            relay.shutdown()
            thread.join()


@needs_rpc
@pytest.mark.parametrize("positions", ["text", "cache"])
def test_rows_stay_where_they_are(addresses: list[str], positions: str) -> None:
    """A closing chunk costs scores and numbers of rows, always as many bytes. K and V never cross."""
    h2o = H2OConfig(chunk_size=S, evict=True, research={"positions": positions})
    with counted(addresses[0]) as (address, sizes, _), load(h2o, rpc_servers=address) as llm:
        tokens = llm.tokenize(TEXT)
        n_bytes = []
        for chunk in range(9):
            sizes.clear()
            llm.eval(tokens[chunk * S :][:S])
            n_bytes.append(sizes.total())
            assert not [name for name in sizes if "cache_" in name]
            assert any(name.startswith("from h2o_add_scores") for name in sizes)
            rows = sum(n for name, n in sizes.items() if "h2o_memory_chunk_rows" in name)
            n_head, n_memory = llm.kv.memory_indices(0).shape
            assert rows < 5 * n_head * (n_memory + S)  # numbers of 4 bytes, once for all layers
        assert n_bytes[8] == n_bytes[7] < llm.kv.stats.kv_bytes


@needs_rpc
def test_servers_are_asked_about_all_types(addresses: list[str]) -> None:
    """What a server answers about attention to K and V of some types says nothing about others."""
    types = {"f16": 1, "q4_0": 2, "q8_0": 8}  # ggml's numbers
    with counted(addresses[0]) as (address, _, asked):
        for type_v in types:
            h2o = H2OConfig(chunk_size=S, decode="memory")
            load(h2o, rpc_servers=address, type_v=type_v).close()
    operators = {operator for operator, k, v in asked if (k, v) == (types["f16"], types["f16"])}
    assert operators
    assert {(operator, types["f16"], v) for operator in operators for v in types.values()} <= asked


@needs_rpc
@pytest.mark.parametrize(
    ("options", "device"), [({"tensor_split": [1, 0]}, 0), ({"tensor_split": (0.0, 2)}, 1), ({"main_gpu": 1}, 1)]
)
def test_layers_are_where_they_were_put(
    addresses: list[str], capfd: pytest.CaptureFixture[str], options: dict[str, Any], device: int
) -> None:
    with load(None, rpc_servers=addresses, verbose=True, **options):
        log = capfd.readouterr().err
    lines = [line for line in log.splitlines() if "model buffer size" in line and "RPC" in line]
    assert lines
    assert all(addresses[device] in line for line in lines), log


@needs_rpc
@pytest.mark.parametrize(
    "options", [{"tensor_split": [1]}, {"tensor_split": [1, 1, 1]}, {"tensor_split": [0, 0]}, {"main_gpu": 2}]
)
def test_devices_that_are_not_there(addresses: list[str], options: dict[str, Any]) -> None:
    expected = "2 numbers of at least 0, not all 0" if "tensor_split" in options else "an integer from 0 to 1"
    with pytest.raises(ValueError, match=rf"\[Llama\] {next(iter(options))} must be {expected}"):
        load(None, rpc_servers=addresses, **options)


@needs_rpc
def test_a_snapshot_goes_from_one_machine_to_several(addresses: list[str]) -> None:
    h2o = H2OConfig(chunk_size=S, evict=True)
    with load(h2o) as here, load(h2o, rpc_servers=addresses) as there:
        tokens = here.tokenize(TEXT)
        here.eval(tokens[:-5])
        there.restore(here.snapshot())
        for llm in (here, there):
            llm.eval(tokens[-5:])
        np.testing.assert_allclose(there.logits, here.logits, rtol=1e-5, atol=1e-4)


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
def test_nobody_listens() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(H2OError, match=f"Failed to connect to {address}: start `h2o-llama rpc-server`"):
            load(None, rpc_servers=address)


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
