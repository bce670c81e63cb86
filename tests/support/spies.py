"""What a function is called with, and a way to stop it."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest


def record_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[dict[str, Any]]:
    """The arguments by name of every call from here on of a function, or of a method that is called on an `owner`."""
    calls: list[dict[str, Any]] = []
    function = getattr(owner, name)
    signature = inspect.signature(function)

    def spy(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        calls.append(bound.arguments)
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, spy)
    return calls


class Stop(Exception):
    pass


def stop_at(limit: int) -> Callable[[int, int], None]:
    """A progress callback that raises Stop when `limit` tokens are done."""

    def progress(n_done: int, n_total: int) -> None:
        if n_done >= limit:
            raise Stop

    return progress
