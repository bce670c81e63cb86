"""Texts that were read, kept in a folder: a text with the same beginning is read from there on."""

from h2o_llama.library._library import Library as Library
from h2o_llama.library._library import default_folder as default_folder
from h2o_llama.library._texts import Text as Text
