"""The errors of this package that are not builtin."""


class H2OError(RuntimeError):
    """Something failed while running: llama.cpp refused a model, memory ran out, a context is in use."""


class UnsupportedModelError(H2OError):
    """H2O does not work with this model, or not on the devices that its layers are on. h2o=None may work."""


# What users see and catch is h2o_llama.H2OError.
H2OError.__module__ = UnsupportedModelError.__module__ = "h2o_llama"
