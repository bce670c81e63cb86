"""One text, and all that is done with it."""
