"""The one error of this package that is not a builtin."""


class H2OError(RuntimeError):
    """Something failed while running: llama.cpp refused a model, memory ran out, a context is in use."""


# What users see and catch is h2o_llama.H2OError.
H2OError.__module__ = "h2o_llama"
