"""How positions become angles (RoPE), where that is not what the model's file says."""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, cast

from h2o_llama._internal import check


class RopeOptions(TypedDict, total=False):
    """Keyword arguments of `Model` and `Llama`. Omitted ones, and None, are the model's own.

    Parameters
    ----------
    rope_scaling_type : {"none", "linear", "yarn"}
        How positions beyond the trained ones are read: linear interpolation, or YaRN (Peng et al., 2023).
    rope_freq_base : float
        The base of the frequencies, from 2 on.
    rope_freq_scale : float
        What positions are multiplied by: 0.25 reads texts that are four times as long.
    yarn_orig_ctx : int
        YaRN: tokens of the texts that the model was trained for before it was scaled.
    yarn_ext_factor : float
        YaRN: how far high frequencies stay unchanged, 0 to 1. 0 is interpolation alone; by default 1.
    yarn_attn_factor : float
        YaRN: the square root of a factor of attention's logits. llama.cpp only looks at it where
        yarn_ext_factor is 0; otherwise it is the paper's.
    yarn_beta_fast, yarn_beta_slow : float
        YaRN: frequencies that turn more often than beta_fast in yarn_orig_ctx tokens stay unchanged, ones that turn
        less often than beta_slow are interpolated. By default 32 and 1.
    """

    rope_scaling_type: Literal["none", "linear", "yarn"] | None
    rope_freq_base: float | None
    rope_freq_scale: float | None
    yarn_ext_factor: float | None
    yarn_attn_factor: float | None
    yarn_beta_fast: float | None
    yarn_beta_slow: float | None
    yarn_orig_ctx: int | None


SCALING_TYPES = {"none": 0, "linear": 1, "yarn": 2}
"""enum llama_rope_scaling_type"""

# Values outside make angles that are NaN or infinite.
_LIMITS = {
    "rope_freq_base": (2, 1e12),
    "rope_freq_scale": (1e-4, 1e4),
    "yarn_ext_factor": (0, 1),
    "yarn_attn_factor": (1e-4, 1e4),
    "yarn_beta_fast": (1e-4, 1e6),
    "yarn_beta_slow": (1e-4, 1e6),
}


def check_rope(owner: str, given: Mapping[str, Any]) -> RopeOptions:
    """The given options.

    Raises ValueError if a value is bad, TypeError for an unknown option.
    """
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name not in RopeOptions.__annotations__:
            raise TypeError(f"[{owner}] there is no argument {name!r}")
        if value is None:
            continue
        if name == "rope_scaling_type":
            options[name] = check.choice(owner, name, value, SCALING_TYPES)
        elif name == "yarn_orig_ctx":
            options[name] = check.integer(owner, name, value, 1)
        else:
            options[name] = check.real(owner, name, value, *_LIMITS[name])
    return cast(RopeOptions, options)


def as_core(rope: RopeOptions) -> dict[str, float]:
    """As the core takes them."""
    return {name: SCALING_TYPES[value] if isinstance(value, str) else value for name, value in rope.items()}  # type: ignore[misc]


def scaled_length(n_trained: int, metadata: Mapping[str, str], rope: RopeOptions) -> int:
    """Tokens of the texts that a model reads with these options, if it was trained for texts of n_trained tokens."""
    scale = rope.get("rope_freq_scale")
    if scale is None:
        return n_trained
    prefix = metadata.get("general.architecture", "") + ".rope.scaling."
    kind = rope.get("rope_scaling_type") or metadata.get(prefix + "type", "linear")
    if kind == "none":
        return n_trained
    if kind == "yarn":
        original = rope.get("yarn_orig_ctx") or float(metadata.get(prefix + "original_context_length", n_trained))
    else:
        original = n_trained / (float(metadata.get(prefix + "factor", 0)) or 1)
    return max(n_trained, int(original / scale))
