"""The machine: its CPUs and memory as this process may use them, and what a measurement was made on."""

import math
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np

from h2o_llama import _core
from h2o_llama.errors import OutOfMemoryError


@contextmanager
def core_errors() -> Iterator[None]:
    """Around calls of the core: a MemoryError of Python's becomes an OutOfMemoryError."""
    try:
        yield
    except MemoryError as error:
        if isinstance(error, OutOfMemoryError):
            raise
        raise OutOfMemoryError(str(error) or "[h2o] not enough memory") from error


_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def available_cpus() -> int:
    """CPUs that this process may run on, at most its share of their time; at least 1."""
    try:
        n = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        n = os.cpu_count() or 1
    quota = _cpu_quota()
    return n if quota is None else max(1, min(n, math.ceil(quota)))


def _cpu_quota() -> float | None:
    """How many CPUs' time a container or a service may take (`docker --cpus`, systemd's CPUQuota); None: no limit."""
    files = _limits("cpu", "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    quotas = [_quota(*content.split()) for content in files]
    return min((quota for quota in quotas if quota is not None), default=None)


def _limits(controller: str, file: str, *files_1: str) -> list[str]:
    """What a file, of version 1 several, says of this process' cgroup and the enclosing ones; a container sees its own
    as the root.
    """
    version_1 = version_2 = Path()
    for line in _read(_OWN_CGROUPS).splitlines():
        fields = line.split(":", 2)
        if len(fields) < 3:
            continue
        _, controllers, path = fields  # of version 2 no controllers
        if not controllers:
            version_2 = Path(path.lstrip("/"))
        elif controller in controllers.split(","):
            version_1 = Path(path.lstrip("/"))
    limits = [_read(_CGROUPS / folder / file) for folder in (version_2, *version_2.parents)]
    for folder in (version_1, *version_1.parents):
        own = _CGROUPS / controller / folder  # where several controllers share a folder, a link to that
        limits.append(" ".join(_read(own / name) for name in files_1))
    return limits


def _quota(quota: str = "", period: str = "", *_: str) -> float | None:
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", or no such file
        return None
    return share if share > 0 else None  # version 1 says -1


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""


_CPU_INFO = Path("/proc/cpuinfo")


def describe() -> dict[str, str | int | float]:
    """The machine, the versions and the date, for the JSON files."""
    return {
        "cpu": cpu_model(),
        "cores": available_cpus(),
        # More than a little of it at the start means that something else was running.
        "load_average_1min": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "h2o_llama": version("h2o-llama"),
        "llama_cpp_commit": _core.UPSTREAM_COMMIT,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def cpu_model() -> str:
    """Name of the CPU as Linux gives it, or what the system calls it."""
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def physical_memory() -> int | None:
    """Bytes of memory that this process could have at most; None if the system does not tell."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    limits = _limits("memory", "memory.max", "memory.limit_in_bytes")
    return min([total, *(int(limit) for limit in limits if limit.strip().isdigit())])  # else "max", or no such file


def head_size(model: _core.Model, of: Literal["key", "value"] = "key") -> int:
    """Numbers of a head's key or value."""
    name = f"{model.metadata.get('general.architecture', '')}.attention.{of}_length"
    return int(model.metadata.get(name, model.n_embd // max(model.n_head, 1)))


def kv_bytes_at_least(model: _core.Model, n_cells: int, type_k: str, type_v: str, has_index: bool = False) -> int:
    """A lower bound for the bytes of a KV cache of `n_cells` tokens, and of an index of its keys."""
    prefix = model.metadata.get("general.architecture", "") + ".attention."
    size_k, size_v = head_size(model), head_size(model, "value")
    # Other memories than the plain KV cache hold less than this for most of their layers; and so may layers with head
    # counts of their own, which are an array and not in the metadata, while n_head_kv is the first layer's.
    is_plain = prefix + "head_count_kv" in model.metadata and not (
        model.is_recurrent or model.n_swa > 0 or prefix + "kv_lora_rank" in model.metadata
    )
    per_key = _core.type_size(type_k) + (_core.type_size("q4_0") if has_index and type_k != "q8_0" else 0)
    per_layer = model.n_head_kv * (size_k * per_key + size_v * _core.type_size(type_v))
    return int(n_cells * per_layer) * (model.n_layer if is_plain else 1)


def check_fits(owner: str, name: str, value: int, needed: int, purpose: str) -> None:
    """Raise OutOfMemoryError if the machine has less than the `needed` bytes, {} in `purpose`, that `name` asks for."""
    available = physical_memory()
    if available is not None and needed > available:
        raise OutOfMemoryError(
            f"[{owner}] {name}={value} needs {purpose.format(f'{needed / 2**30:.1f} GiB')}, but this machine has "
            f"{available / 2**30:.1f} GiB of memory: use a smaller {name}"
        )
