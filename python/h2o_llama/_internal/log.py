"""llama.cpp's log."""

is_printed = False
"""Whether it goes to stderr wherever `verbose` is not given: `h2o-llama --verbose`."""
