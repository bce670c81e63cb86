"""Texts that were read, kept in a folder: a text with the same beginning is read from there on."""

from h2o_llama.library._library import Library, default_folder
from h2o_llama.library._texts import Text

__all__ = ["Library", "Text", "default_folder"]
