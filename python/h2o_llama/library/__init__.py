"""Texts that were read, kept in a folder: whatever begins like one of them goes on from there."""

from h2o_llama.library._texts import Text
from h2o_llama.library.library import Library, default_folder

__all__ = ["Library", "Text", "default_folder"]
