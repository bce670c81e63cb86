"""H2O sparse attention for llama.cpp: long prompts at bounded cost, and a look at which tokens attention kept."""

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from h2o_llama._api import *  # noqa: F403

__version__ = version("h2o-llama")


def __getattr__(name: str) -> Any:
    if (name.startswith("__") and name != "__all__") or find_spec(f"h2o_llama.{name}"):  # import finds modules itself
        raise AttributeError(name)
    api = import_module("h2o_llama._api")
    return [word for word in vars(api) if word[0] != "_"] if name == "__all__" else getattr(api, name)


def __dir__() -> list[str]:
    return list(__getattr__("__all__"))
