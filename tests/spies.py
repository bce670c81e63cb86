"""What a function is called with."""

import inspect
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
