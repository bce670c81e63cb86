"""The errors of this package, one class for each thing that a program would treat differently.

Each is an `H2OError`, and the builtin exception that says the same: `except ValueError` catches a damaged file.
"""


class H2OError(RuntimeError):
    """Something failed while running: llama.cpp refused a model, or a computation failed."""


class UnsupportedModelError(H2OError):
    """H2O does not work with this model, or not on the devices that its layers are on. h2o=None may work.

    `option` is the field of `H2OConfig` that the model needs another value of, if that is all.
    """

    option: str | None = None


class BusyError(H2OError):
    """Another thread is using it, or the call whose callback this is; or all sequences are in use. Try again later."""


class OutOfMemoryError(H2OError, MemoryError, ValueError):
    """More memory is needed than there is. The message names the argument that asks for it, where one does."""


class DamagedFileError(H2OError, ValueError):
    """A file is damaged, cut off, or of another kind or version."""


class Cancelled(H2OError):
    """A generation cannot continue: it was cancelled, its time is over, or its sequence was changed since."""


class H2OWarning(UserWarning):
    """The category of this package's warnings."""


# What users see and catch is h2o_llama.H2OError.
for _class in (H2OError, *H2OError.__subclasses__(), H2OWarning):
    _class.__module__ = "h2o_llama"
