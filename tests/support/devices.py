"""Devices that a build may have: Vulkan's, and llama.cpp's RPC servers."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np

from h2o_llama import _core
from servers import Server, running

VULKAN = "Vulkan0"


def has_vulkan() -> bool:
    try:
        _core.ops_max_rows(np.zeros((1, 1), np.float32), "f32", VULKAN, 1)
    except ValueError:
        return False
    return True


def has_rpc() -> bool:
    return (Path(_core.__file__).parent / "lib" / "ggml-rpc-server").exists()


@contextmanager
def serving_rpc(log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address and the process of an RPC server."""
    with ExitStack() as stack:
        with patch.dict(os.environ, {"GGML_VK_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}):  # its CPU alone
            server = stack.enter_context(running(log, _listens, "rpc-server", "--threads=1"))
        yield f"127.0.0.1:{server.port}", server.process


def _listens(server: Server) -> bool:
    socket.create_connection(("127.0.0.1", server.port)).close()
    return True
