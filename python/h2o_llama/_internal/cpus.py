"""The CPUs that this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

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
    quotas = [_quota(*file.split()) for file in _limits()]
    return min((quota for quota in quotas if quota is not None), default=None)


def _limits() -> list[str]:
    """ "quota period" of this process' cgroup and the enclosing ones; a container sees its own as the root."""
    version_1 = version_2 = Path()
    for line in _read(_OWN_CGROUPS).splitlines():
        fields = line.split(":", 2)
        if len(fields) < 3:
            continue
        _, controllers, path = fields  # of version 2 no controllers
        if not controllers:
            version_2 = Path(path.lstrip("/"))
        elif "cpu" in controllers.split(","):
            version_1 = Path(path.lstrip("/"))
    limits = [_read(_CGROUPS / folder / "cpu.max") for folder in (version_2, *version_2.parents)]
    for folder in (version_1, *version_1.parents):
        own = _CGROUPS / "cpu" / folder  # where several controllers share a folder, a link to that
        limits.append(f"{_read(own / 'cpu.cfs_quota_us')} {_read(own / 'cpu.cfs_period_us')}")
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
