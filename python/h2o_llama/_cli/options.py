"""One table of the options that several commands have, and what their values mean."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from h2o_llama import H2OConfig
from h2o_llama._thoughts import MAX_THOUGHTS
from h2o_llama.chat._generation import MAX_TOKENS
from h2o_llama.config import OPTIONS as H2O
from h2o_llama.config import PRESETS, named_config, option_names, uses_gpu
from h2o_llama.models._files import check_adapters
from h2o_llama.models.rope import SCALING_TYPES, RopeOptions, check_rope
from h2o_llama.sequence._engine import MATMUL_KERNELS
from h2o_llama.sequence.generating import DENSE_TAIL

KEYS = [name for name in H2O if name in option_names() and name not in ("evict", "cold_store")]
"""Of --h2o-set; the others have options of their own."""


def option(help: str, *names: str, **options: Any) -> Any:
    """An option of a command; its name follows from the parameter's, or is given."""
    return typer.Option(*names, help=help, **options)


def _x(help: str, *names: str, **options: Any) -> Any:
    """An option that --help-all lists."""
    return option(help, *names, hidden=True, **options)


_NAME = "A GGUF file, ORG/REPO[:TYPE] of Hugging Face, or a name `pull` lists."
_MODEL = typer.Argument(metavar="MODEL", help=_NAME)
MODEL = typer.Option("--model", "-m", metavar="MODEL", help=_NAME)
"""Of commands whose argument is a document."""

DOCUMENT = "A file of text, HTML, PDF, mail or an office program"
FILE = f"{DOCUMENT}, or a name that `pull` lists; - is standard input."
_H2O = f"How much a token attends to: auto, {', '.join(PRESETS)}; or off."
_TAIL = f"{DENSE_TAIL}, and all of the question about a file"
_LAYERS = "Layers on the GPU and by --rpc; -1 is all."
_SCALING = f"How positions beyond the trained ones are read: {', '.join(SCALING_TYPES)}."
_THINK = f"Thoughts before an answer, or the most tokens of them; at most {MAX_THOUGHTS:,} otherwise."
_KERNELS = "Whose kernels multiply by weights: own, upstream, or auto, which is own with H2O."


@dataclass(kw_only=True)
class Options:
    """Every option that more than one command has, in the order of --help. A command names its own."""

    model: Annotated[str, _MODEL] = "demo"
    file: Annotated[Path | None, option(FILE, "--file", "-f")] = None
    prompt: Annotated[str, option("A question about the file, or a text.", "--prompt", "-p")] = ""
    h2o: Annotated[str, option(_H2O, "--h2o", metavar="NAME")] = "auto"
    evict: Annotated[bool, option("Drop tokens outside of memory sets: bounded memory.", "--evict")] = False
    cold_store: Annotated[str | None, option("With --evict: keep them in 'memory' or a folder.", metavar="WHERE")] = (
        None
    )
    h2o_set: Annotated[list[str] | None, option("A setting of `options`. Repeatable.", metavar="KEY=VALUE")] = None
    mmproj: Annotated[Path | None, option("The model's file for images (its 'mmproj').")] = None
    image: Annotated[list[Path] | None, option("An image, with --mmproj. Repeatable.", "--image", metavar="FILE")] = (
        None
    )
    max_tokens: Annotated[int, option("The most tokens of an answer.", "--max-tokens", "-n", min=0)] = MAX_TOKENS
    think: Annotated[str | None, option(_THINK, metavar="off|on|N", show_default="the model's choice")] = None
    n_ctx: Annotated[int, option("Tokens of the context; 0: as many as are needed.", min=0)] = 0
    temp: Annotated[float, option("Temperature; 0: the most probable token.", min=0)] = 0.8
    seed: Annotated[int | None, option("Seed of the sampling; random by default.", min=0)] = None
    dense_tail: Annotated[int | None, option("Last tokens that attend to all before.", min=0, show_default=_TAIL)] = (
        None
    )
    cache_reuse: Annotated[int, option("After an edit, keep pieces of N tokens or more (256, say); 0: off.", min=0)] = 0
    library: Annotated[bool, option("Keep the text, and reuse one that begins alike.", "--library/--no-library")] = True

    threads: Annotated[int | None, _x("CPU threads; all cores by default.", "--threads", "-t", min=1)] = None
    threads_batch: Annotated[int | None, _x("CPU threads that read; by default as --threads.", min=1)] = None
    matmul_kernels: Annotated[str, _x(_KERNELS, metavar="NAME")] = MATMUL_KERNELS[0]
    gpu_layers: Annotated[int | None, _x(_LAYERS, min=-1, show_default="0, with --rpc -1")] = None
    rpc: Annotated[str | None, _x("Machines with `h2o-llama rpc-server`, for layers.", metavar="HOST:PORT,…")] = None
    mlock: Annotated[bool, _x("Keep the weights in RAM, never swapped.", "--mlock")] = False
    no_mmap: Annotated[bool, _x("Read the model's file instead of mapping it.", "--no-mmap")] = False
    lora: Annotated[list[str] | None, option("A LoRA adapter. Repeatable.", metavar="FILE[:SCALE]")] = None
    rope_scaling_type: Annotated[str | None, _x(_SCALING, "--rope-scaling", metavar="NAME")] = None
    rope_scale: Annotated[float | None, _x("Factor of the trained context; the same as --rope-freq-scale 1/X.")] = None
    rope_freq_base: Annotated[float | None, _x("The base of RoPE's frequencies.")] = None
    rope_freq_scale: Annotated[float | None, _x("Factor of positions.")] = None
    yarn_orig_ctx: Annotated[int | None, _x("YaRN: tokens of the texts that the model was trained for.")] = None
    yarn_ext_factor: Annotated[float | None, _x("YaRN: how far high frequencies stay; 0: interpolation alone.")] = None
    yarn_attn_factor: Annotated[float | None, _x("YaRN: a factor of attention, with --yarn-ext-factor 0.")] = None
    yarn_beta_slow: Annotated[float | None, _x("YaRN: frequencies that turn less often are interpolated.")] = None
    yarn_beta_fast: Annotated[float | None, _x("YaRN: frequencies that turn more often stay unchanged.")] = None

    @property
    def attention(self) -> H2OConfig | Literal["auto"] | None:
        """What --h2o and the options that refine it say, as `Llama` takes it."""
        check_word("--h2o", self.h2o, ("auto", *PRESETS, "off"))
        chosen = {key: value_of(key, text) for key, text in key_values(self.h2o_set).items()}
        if self.evict or self.cold_store is not None:
            chosen |= {"evict": self.evict, "cold_store": self.cold_store}
        if self.h2o == "off":
            if chosen:
                raise typer.BadParameter("--h2o off excludes --evict, --cold-store and --h2o-set")
            return None
        if self.h2o == "auto":
            if not chosen:
                return "auto"
            chosen = {"chunk_size": default_config(self).chunk_size, **chosen}
        return H2OConfig.from_dict({"preset": "balanced" if self.h2o == "auto" else self.h2o, **chosen})

    @property
    def thinking(self) -> bool | int | None:
        """What --think says, as `create_chat_completion` takes it."""
        if self.think is None or self.think in ("off", "on"):
            return None if self.think is None else self.think == "on"
        if not self.think.isdecimal():
            raise typer.BadParameter(f"{self.think!r} is not off, on or a number of tokens.", param_hint="--think")
        return int(self.think)

    @property
    def changes(self) -> dict[str, Any]:
        """What --lora and the options of RoPE say, as arguments of `Model`."""
        rope = {name: value for name in _ROPE if (value := getattr(self, name)) is not None}
        if self.rope_scale is not None:
            if self.rope_freq_scale is not None:
                raise typer.BadParameter("--rope-scale and --rope-freq-scale say the same: give one of them")
            if not self.rope_scale > 0:
                raise typer.BadParameter(f"--rope-scale must be above 0, got {self.rope_scale:g}")
            rope["rope_freq_scale"] = 1 / self.rope_scale
        return rope | ({"lora": [_adapter(text) for text in self.lora]} if self.lora else {})


_ROPE = tuple(RopeOptions.__annotations__)
ATTENTION = ("h2o", "evict", "cold_store", "h2o_set")
CHANGES = ("lora", "rope_scale", *_ROPE)
"""Names of options that go together."""


def default_config(o: Options) -> Any:
    """The H2OConfig of "auto" where it is not dense: with larger chunks on a GPU."""
    return named_config("--h2o", "auto", uses_gpu(o.gpu_layers or 0))


def check_word(option: str, word: str, words: Iterable[str]) -> None:
    """BadParameter if the value of an option is none of these."""
    if word not in words:
        raise typer.BadParameter(f"{word!r} is not one of {', '.join(words)}.", param_hint=option)


def key_values(pairs: Sequence[str] | None) -> dict[str, str]:
    """What --h2o-set was given, by key. The last value of a key counts."""
    found = {}
    for pair in pairs or ():
        key, equals, text = pair.partition("=")
        if key not in KEYS or not equals:
            wanted = "KEY=VALUE, with a key that `h2o-llama options` lists"
            raise typer.BadParameter(f"{pair!r} is not {wanted}.", param_hint="--h2o-set")
        found[key] = text
    return found


def value_of(key: str, text: str) -> Any:
    """The value of a setting; the text where it is of another kind, which H2OConfig refuses."""
    kind = H2O[key].kind
    if kind == "layers":
        return layers(text)
    if kind == "switch":
        check_word("--h2o-set", text, ("on", "off"))
        return text == "on"
    try:
        return int(text) if kind == "number" else float(text) if kind == "part" else text
    except ValueError:
        return text


def layers(text: str) -> tuple[int, ...]:
    """Numbers and ranges with commas between them."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        end = last if dash else first
        if not (first.isdecimal() and end.isdecimal() and int(first) <= int(end) < 512):
            wanted = "numbers below 512 and ranges such as 0-2,11"
            raise typer.BadParameter(f"dense_layers must be {wanted}, got {text!r}", param_hint="--h2o-set")
        found += range(int(first), int(end) + 1)
    return tuple(found)


def upstream_options(h2o: H2OConfig) -> list[str]:
    """A configuration as options of llama.cpp's programs: all of it, as their defaults are others."""
    return [word for name, text in h2o.as_text().items() if text for word in (f"--h2o-{H2O[name].flag}", text)]


def _adapter(text: str) -> tuple[Path, float]:
    """A file, and the scale after the last colon, unless a file has the whole name."""
    name, colon, scale = text.rpartition(":")
    if colon and not os.path.exists(text):
        try:
            return Path(name), float(scale)
        except ValueError:
            pass
    return Path(text), 1.0


def upstream_arguments(changes: Mapping[str, Any]) -> list[str]:
    """The same for llama.cpp's programs. Raises as `Model`."""
    rope = check_rope("serve", {name: value for name, value in changes.items() if name != "lora"})
    words = []
    for path, scale in check_adapters("serve", changes.get("lora")):
        name = os.fsdecode(path)
        if set(name) & set(':,"\n'):
            raise ValueError(f"[serve] llama-server cannot take a file whose name has a colon, comma or quote: {name}")
        words += ["--lora-scaled", f"{name}:{scale!r}"]
    for option, value in rope.items():
        flag = "rope-scaling" if option == "rope_scaling_type" else option.replace("_", "-")
        words += [f"--{flag}", str(value)]
    return words
