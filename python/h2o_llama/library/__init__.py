"""Texts that were read, kept in a folder: whatever begins like one of them goes on from there."""

from h2o_llama.library._library import Library, default_folder
from h2o_llama.library._texts import Text

__all__ = ["Library", "Text", "default_folder"]
