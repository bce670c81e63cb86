"""llama.cpp's log."""

import logging

NAME = "h2o_llama.llama_cpp"
"""The logger that gets it, when a call into llama.cpp returns. Where a program sets up no logging it stays silent."""

logging.getLogger(NAME).addHandler(logging.NullHandler())

is_printed = False
"""Whether stderr gets it wherever `verbose` is not given: `h2o-llama --verbose`."""
