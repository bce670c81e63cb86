"""How far the library may be from the oracle, per type of activations and of cache. The only place for such numbers.

The oracle computes with dequantised weights and rounds K, V and the activations of every matrix product as ggml does,
so what remains is the order of float32 additions, and *flips*: a value that lies next to a rounding boundary and, after
a difference of 1e-7, is rounded to the other side. A flip costs a whole step of the type, and the layers carry it on.
Measured on the fixture models with 200 to 300 tokens, the largest of all architectures (scores in parentheses), the
library's attention by its own operator or composed of ggml's:

    weights  cache   oracle, float32       upstream's dense    two_phase and       single_pass and
                     and float64           and the oracle      the oracle          the oracle
    F32      F32     6e-7 (3e-6)           1e-6                3e-6 (2e-5)         3e-6 (2e-5)
             with AMX                                          1e-5 (4e-5)         1e-5 (3e-5)
             TF32      1e-3 (6e-3)
    F32      F16     8e-5 (8e-4)           4e-4                1e-4 (2e-3)         1e-4 (1e-3)
    F32      BF16                                              4e-4 (6e-3)         4e-4 (2e-2)
    F32      Q8_0    2e-4 (1e-2)           8e-3                2e-3 (2e-2)         2e-3 (2e-2)
    F16      F16     5e-4 (3e-3)           7e-4                1e-3 (4e-3)         8e-4 (4e-3)
    Q8_0     F16     1e-2 (3e-2)           2e-2                2e-2 (5e-2)         2e-2 (4e-2)

TF32 is what a GPU multiplies up to 16 columns in: both factors of the oracle's products rounded to it, against float32.

With K-quants it is 1.3e-1 on a real model of 24 layers (Qwen2.5 0.5B, Q4_K_M), as much as an error would be: the oracle
refuses them.

(Upstream also rounds Q and the softmax weights to the cache's dot-product type; the oracle does not, as a kernel may do
better.) The bounds leave a factor of three or so for other tokens, longer prompts and larger models. An error in the
algorithm is far outside: leaving out the memory set changes the logits by 1e-1.
"""

import os
from dataclasses import dataclass

# Layers of the tests' models are on a GPU: tools/check_gpu.py.
ON_GPU = os.environ.get("H2O_TEST_GPU_LAYERS", "0") != "0"


@dataclass(frozen=True)
class Tolerance:
    """`logits`: max |difference| / max |logit|. `scores`: |difference| / (score + SCORE_FLOOR), as for near ties."""

    logits: float
    scores: float
    reason: str


# Scores are sums of softmax weights: below this, a score is a rest that rounding dominates.
SCORE_FLOOR = 0.05

ACTIVATIONS = {
    "F32": Tolerance(
        5e-5,
        1e-3,
        "no rounding: another order of additions, polynomial exp, RoPE angles in float32; "
        "with AMX, factors that are sums of two BF16 (2^-16)",
    ),
    "TF32": Tolerance(4e-3, 2e-2, "activations and weights rounded to TF32 (2^-11) before each product"),
    "F16": Tolerance(2e-3, 2e-2, "activations rounded to F16 (2^-11) before each product; flips"),
    "BF16": Tolerance(2e-2, 1e-1, "activations rounded to BF16 (2^-8) before each product; flips"),
    "Q8_0": Tolerance(5e-2, 2e-1, "activations rounded to 8 bits per block of 32 before each product; flips"),
}

KV_CACHE = {
    "F32": Tolerance(0.0, 0.0, "exact"),
    "F16": Tolerance(1e-3, 5e-3, "K, V, in dense attention also Q, rounded to F16; flips. Design, P5: 1e-3"),
    "BF16": Tolerance(1e-2, 5e-2, "K, V, in dense attention also Q, rounded to BF16; flips"),
    "Q8_0": Tolerance(2e-2, 1e-1, "K and V rounded to 8 bits per block of 32; flips"),
}

# Added when a sequence has decode steps with flash attention: upstream's kernel for one query sums V in F16. Upstream's
# dense decode alone is up to 4e-3 off on the fixture models (without flash attention: 4e-4).
FLASH_ATTN_DECODE = Tolerance(6e-3, 5e-2, "sums of V in F16")

# The same library on the same tokens by another path (split prompts, more threads): no rounding differs but for flips.
SELF_LOGITS_F32 = 1e-4


def against_dense(dense: float) -> float:
    """The bound for logits of a model in F32, compared with dense attention, which differs from itself by `dense` when
    the prompt comes token by token.

    On tiny models of all architectures that is 2e-7 to 3e-6, and up to 2e-4 where ggml rounds activations to F16 (the
    table of its GELU). H2O is off by twice as much at most; with AMX by 1e-5.
    """
    return 2e-5 + 4 * dense


# With the AMX kernel of attention, whose factors are sums of two BF16, the error of later layers' keys is this
# part of their size (rms; measured 2e-6 to 3e-6, in float32 3e-7). Near ties of the index, which has
# keys in 4 bits, are decided otherwise.
AMX_ERROR = 2.0**-18


# Errors of a logit and of an output whose size is 1, by kernels of attention's operator, two to three times the largest
# that were measured. float32 rounds every partial sum to 2^-24, "amx" rounds every number to 2^-17. With keys and
# values in Q8_0, q and weights have 16 bits, with VNNI 8; with "amx" all factors 8 where rows are many. CUDA multiplies
# in F16, with 11 bits: the reference rounds q likewise; weights are rounded, too, and keys and values in Q8_0.
ATTENTION: dict[str, dict[str, tuple[float, float]]] = {
    **{isa: {"any": (2.0**-18, 0.0), "q8_0": (2.0**-14, 2.0**-16)} for isa in ("portable", "avx2", "avx512")},
    **{isa: {"any": (2.0**-18, 0.0), "q8_0": (2.0**-6, 2.0**-8)} for isa in ("avxvnni", "avx512vnni")},
    "amx": {"any": (2.0**-15, 0.0), "q8_0": (2.0**-6, 2.0**-8)},
    "cuda": {
        "any": (2.0**-18, 2.0**-11),
        "q8_0": (2.0**-10, 2.0**-9),
    },
}


def attention_tolerance(kernel: str, type: str, d_k: int) -> tuple[float, float]:
    """Of a logit and of an output.

    Tensor cores cut off the 17 numbers that they add (a step's and the sum so far), each at 2^-23 of the largest, and
    the sum. There are d/16 steps. All cut off the same way would be d*2^-22; they are not.
    """
    bounds = ATTENTION[kernel]
    logit, output = bounds.get(type) or bounds["any"]
    return logit + (d_k * 2.0**-24 if kernel == "cuda" else 0), output


# The bounds hold for this many layers; the errors of more are independent, and add up like a random walk.
LAYERS = 4


def tolerance(
    activation_type: str,
    kv_type: str = "f16",
    *,
    n_layer: int = LAYERS,
    flash_attn_decode: bool = False,
    upstreams_layers: bool = False,
) -> Tolerance:
    """The bounds for a model whose weights want such activations and for such a cache: the errors add."""
    activations = activation_type.upper()
    if activations == "F32" and ON_GPU:
        activations = "TF32"
    parts = [ACTIVATIONS[activations], KV_CACHE[kv_type.upper()]]
    if upstreams_layers:
        parts += 2 * [KV_CACHE[kv_type.upper()]]  # Q and the softmax weights are rounded to the cache's type, too
    if flash_attn_decode:
        parts.append(FLASH_ATTN_DECODE)
    growth = max(1, n_layer / LAYERS) ** 0.5
    return Tolerance(
        logits=growth * sum(part.logits for part in parts),
        scores=growth * sum(part.scores for part in parts),
        reason="; ".join(part.reason for part in parts),
    )
