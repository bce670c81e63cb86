"""A model and its first sequence."""

import asyncio
import collections.abc
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from numpy.typing import NDArray
from typing_extensions import Unpack

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.llama_cpp import ADVICE, Number, understands
from h2o_llama._internal.lock import Lock
from h2o_llama._internal.machine import available_cpus
from h2o_llama._internal.terminal import warn
from h2o_llama._sequence import Sequence
from h2o_llama.chat.asking import Texts
from h2o_llama.config import H2OConfig, named_config, uses_gpu
from h2o_llama.errors import H2OError, UnsupportedModelError
from h2o_llama.library._library import Library, open_library
from h2o_llama.lossless import LosslessConfig
from h2o_llama.model import Model
from h2o_llama.models._files import Loading, Lora, Override
from h2o_llama.models._find import find_on_hub
from h2o_llama.models._hub import HubFile
from h2o_llama.models._projector import check_image_folder
from h2o_llama.models.rope import RopeOptions, check_rope
from h2o_llama.sampling import check_seed
from h2o_llama.sequence import generating
from h2o_llama.sequence._engine import ContextParams, Engine, resolved_matmul_kernels

P = ParamSpec("P")
T = TypeVar("T")

_OWNER = "Llama"
_LOG = logging.getLogger("h2o_llama")
# Tokens. On an H200 H2O reads longer contexts faster than dense attention (docs/gpu.md).
DENSE_ON_A_GPU = 16_384


def _of_model(name: str) -> Any:
    """The property of `Llama.model` with this name."""

    def get(llm: "Llama") -> Any:
        value = getattr(llm.model, name)
        return Number(value) if isinstance(value, int) else value

    return property(get, doc=getattr(Model, name).__doc__)


def _by_model(method: Callable[Concatenate[Model, P], T]) -> Callable[Concatenate["Llama", P], T]:
    """The method of `Llama.model`."""

    @wraps(method)
    def call(llm: "Llama", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(llm.model, *args, **kwargs)

    return call


class Llama(Sequence):
    """A GGUF model and a sequence of tokens, or several, with H2O sparse attention over it.

    It is its own first `Sequence`, and `model` is its `Model`; `sequence()` makes more sequences. One call at a time: a
    second thread, or a callback that calls back, gets a `BusyError` at once; `busy` and `lock()` make threads wait.
    `close()`, or leaving a `with` block, frees the memory.

    `model_path`, `desc`, `metadata`, `n_vocab`, `n_embd`, `n_params`, `model_bytes`, `n_gpu_layers`, `token_bos`,
    `token_eos` and `chat_template` are those of its `Model`.

    Processes are started by `multiprocessing.get_context("spawn")`, and open their own: in a child of `os.fork()` calls
    raise H2OError if anything has been computed before, as the threads for it are not there.

    Parameters
    ----------
    model_path : str, os.PathLike, Model or Llama
        A GGUF file; "ORG/REPO:TYPE", "ORG/REPO" or an address of the Hugging Face Hub; a name that `h2o-llama pull`
        lists, or "demo"; missing files are downloaded. Or an open `Model` or `Llama`, to share its weights: either
        may be closed before the other.
    n_ctx : int, default 0
        How many tokens the sequence can hold; 0 is what the model was trained for, or as many of these as fit into
        memory, and no limit with `H2OConfig.evict`.
    n_batch : int, optional
        The most tokens of one call into llama.cpp; a longer prompt takes several. At least n_ubatch; by default 4,096.
    n_ubatch : int, optional
        The most tokens computed at once; with H2O at most a chunk. From `H2OConfig.tile` on it changes no result. By
        default 1,024, with H2O a whole chunk.
    n_threads : int, optional
        Threads to compute with; by default one for each CPU this process may use.
    n_gpu_layers : int, optional
        Layers to keep on the GPU, -1 for all, if the package was built for one; by default none. Shared weights stay
        where they are: the default is the other's, and nothing else is possible.
    type_k, type_v : str, default "auto"
        Types of the K and V cache: "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0" or "iq4_nl". "auto" is
        "q8_0" with H2O on the CPU: half the memory, KL about 0.0005 higher. It is "f16" on a GPU, with h2o=None,
        flash_attn="off", sliding windows or MLA, and where 64 does not divide the size of heads.
    flash_attn : {"auto", "on", "off"}
        Flash attention where H2O is off and for generated tokens; H2O's own attention is then one operator where the
        device has it, and with "off" composed of several, which is slower. A quantised V needs it.
    h2o : H2OConfig, "auto", "fast", "balanced", "faithful" or None, default "auto"
        How much of the text before its chunk a token attends to: "faithful" loses least, "fast" reads fastest; an
        H2OConfig says all of it. None is llama.cpp's dense attention. "auto" is "balanced", on a GPU with chunks of
        2,048; and dense attention, with a warning, for a model that H2O cannot work with, and on a GPU for contexts of
        up to 16,384 tokens, where that is faster.
    keep_history : bool, default False
        Keep the memory sets of all chunks for `kv.history`, and scores for `kv.scores` also with heavy_budget=0.
    profile : bool, default False
        Measure the parts of a prefill for `kv.stats`; waiting for each of them takes a little time.
    seed : int, optional
        Default seed of `generate`, 0 to 2**32 - 2; by default every call draws differently.
    verbose : bool, default False
        Print llama.cpp's log to stderr at once. Otherwise only what a download is, and how far. The logger
        "h2o_llama.llama_cpp" of Python's logging gets the log in either case, when a call returns.
    n_seq_max : int, default 1
        How many sequences there can be, that of the `Llama` itself among them. Each has a KV cache for n_ctx tokens.
    chat_template : str, optional
        A Jinja template, or "chatml", instead of the model's own.
    rpc_servers : str or list of str, optional
        HOST:PORT of servers (`h2o-llama rpc-server`) that hold and compute layers: n_gpu_layers of them, by default
        all, each server as many as its memory allows. Only in a build with RPC. Several with commas, or as a list.
    cold_store_compression : LosslessConfig, optional
        How the cold store of `H2OConfig.cold_store` is compressed; by default it is not.
    matmul_kernels : {"auto", "upstream", "own"}
        Whose kernels multiply by weights on the CPU; results differ in their last bits. "own" is h2o-llama's where it
        has some for the CPU and the weights' type, "upstream" llama.cpp's. "auto" is "own" with H2O and "upstream"
        without, so that h2o=None is llama.cpp, bit for bit.
    busy : {"raise", "wait"}
        What a call does while another thread uses the `Llama`: raise BusyError, or wait for its turn, in order of
        arrival. With "wait" a stream, too, is one call on its sequence: a call that would change the sequence before
        the stream's end, or its `close()`, computes the rest of it first. The stream's reader still gets all of it.
        `lock()` keeps the `Llama` for several calls.
    timeout : float, optional
        How many seconds a call waits, with `busy="wait"` or in `lock()`, before it raises BusyError; by default for as
        long as it takes.
    n_threads_batch : int, optional
        Threads for prompts, and whatever has several tokens; by default n_threads, which is then for both.
    mmproj : str or os.PathLike, optional
        The GGUF file that reads images for this model, for `create_chat_completion`. Only for models that read an image
        as they read text: each part of it after those before, at a position of its own.
    allowed_image_folder : str or os.PathLike, optional
        Where images that messages name by a path or a file URL may be; relative paths begin there. No file is read
        without it: messages may be somebody else's. By default that of the `Model`.
    use_mmap, use_mlock, kv_overrides, main_gpu, tensor_split, lora
        How the file is loaded: as in `Model`, and left out with shared weights.
    library : Library, str, os.PathLike, bool or None, default None
        Where texts that were read are kept: a prompt with the same beginning is read from there on, in other programs
        and after a restart, too. True is the user's own, `Library()`; a path is a folder. Nothing is kept without one.
    cache_reuse : int, default 0
        Pieces of at least this length that a prompt shares with a known text are not read again, wherever they are:
        only what changed is. Nearly the same as reading all of it, but what later text had concluded from a fact that
        changed stays (docs/read-once.md); such a text is not added to the library. 0 is off; 256 is a good number. Not
        with `evict` and heavy_budget, nor for models with sliding windows or recurrent layers.
    **rope
        How positions beyond the trained ones are read: `RopeOptions`. By default as the `Model` reads them.

    Raises
    ------
    FileNotFoundError
        If the file does not exist, here or on the hub.
    PermissionError, ConnectionError
        If the hub does not give the file to you, or does not answer.
    ValueError
        If an argument is bad.
    DamagedFileError
        If the file is not a valid GGUF model file.
    OutOfMemoryError
        If there is too little memory.
    UnsupportedModelError
        If H2O cannot work with the model and h2o is not "auto".
    H2OError
        If llama.cpp refuses the model. The three above are of this class, too.

    Warns
    -----
    H2OWarning
        If a memory set is not smaller than a chunk: that costs more than it saves. If "auto" is dense attention. If
        n_ctx is 0 and what the model was trained for does not fit.

    Examples
    --------
    >>> from h2o_llama import H2OConfig, Llama, demo_model_path
    >>> with Llama(demo_model_path(), n_ctx=2048, h2o=H2OConfig(chunk_size=64)) as llm:
    ...     llm.eval(llm.tokenize("A text is read in chunks. " * 10))
    ...     print(llm.n_tokens, llm.kv.chunk_index)
    260 5
    """

    @understands
    def __init__(
        self,
        model_path: "str | os.PathLike[str] | Model | Llama",
        *,
        n_ctx: int = 0,
        n_batch: int | None = None,
        n_ubatch: int | None = None,
        n_threads: int | None = None,
        n_gpu_layers: int | None = None,
        type_k: str = "auto",
        type_v: str = "auto",
        flash_attn: str = "auto",
        h2o: H2OConfig | Literal["auto", "fast", "balanced", "faithful"] | None = "auto",
        keep_history: bool = False,
        profile: bool = False,
        seed: int | None = None,
        verbose: bool = False,
        n_seq_max: int = 1,
        chat_template: str | None = None,
        rpc_servers: str | list[str] | tuple[str, ...] | None = None,
        cold_store_compression: LosslessConfig | None = None,
        matmul_kernels: str = "auto",
        busy: Literal["raise", "wait"] = "raise",
        timeout: float | None = None,
        n_threads_batch: int | None = None,
        mmproj: str | os.PathLike[str] | None = None,
        allowed_image_folder: str | os.PathLike[str] | None = None,
        use_mmap: bool = True,
        use_mlock: bool = False,
        kv_overrides: Mapping[str, Override] | None = None,
        main_gpu: int | None = None,
        tensor_split: collections.abc.Sequence[float] | None = None,
        lora: Lora = None,
        library: Library | bool | str | os.PathLike[str] | None = None,
        cache_reuse: int = 0,
        **rope: Unpack[RopeOptions],
    ) -> None:
        options = check_rope(_OWNER, rope)
        shared = model_path.model if isinstance(model_path, Llama) else model_path
        if n_gpu_layers is None:
            n_gpu_layers = shared.n_gpu_layers if isinstance(shared, Model) else -1 if rpc_servers else 0
        is_auto_on_gpu = h2o == "auto" and uses_gpu(n_gpu_layers)
        config = named_config(_OWNER, h2o, is_auto_on_gpu)
        if n_ubatch is None:
            n_ubatch = config.chunk_size if isinstance(config, H2OConfig) else 1024
            if n_batch is not None:
                n_ubatch = min(n_ubatch, check.integer(_OWNER, "n_batch", n_batch, 1))
        if n_batch is None:
            n_batch = max(4096, check.integer(_OWNER, "n_ubatch", n_ubatch, 1))
        params = ContextParams(
            *(n_ctx, n_batch, n_ubatch, n_threads, n_threads_batch, n_gpu_layers, type_k, type_v, flash_attn, config),
            *(keep_history, profile, verbose, n_seq_max, cold_store_compression, matmul_kernels, cache_reuse),
        )
        seed = check_seed(_OWNER, seed)
        texts = open_library(_OWNER, library)
        if texts is not None and isinstance(config, H2OConfig) and callable(config.scorer):
            raise check.bad_argument(
                _OWNER, "library", "left out with a scorer in Python, which no file names", library
            )
        waits = check.choice(_OWNER, "busy", busy, ("raise", "wait")) == "wait"
        claim = Lock(_OWNER, waits, None if timeout is None else check.real(_OWNER, "timeout", timeout, 0))
        loading = Loading(use_mmap, use_mlock, kv_overrides, main_gpu, tensor_split, lora)
        if isinstance(shared, Model):
            loading.check_left_out()
            if rpc_servers is not None:
                raise check.bad_argument(_OWNER, "rpc_servers", "left out with shared weights", rpc_servers)
            if n_gpu_layers != shared.n_gpu_layers:
                expected = f"that of the shared weights ({shared.n_gpu_layers}), or left out"
                raise check.bad_argument(_OWNER, "n_gpu_layers", expected, n_gpu_layers)

        def open_model(h2o: H2OConfig | None) -> Model:
            opened = shared
            if not isinstance(opened, Model):
                opened = Model(
                    opened,
                    n_gpu_layers=n_gpu_layers,
                    rpc_servers=rpc_servers,
                    matmul_kernels=resolved_matmul_kernels(h2o, matmul_kernels),
                    verbose=verbose,
                    **vars(loading),
                )
            model = opened._share(chat_template, options)
            model._n_threads = n_threads_batch or n_threads
            if allowed_image_folder is not None:
                model._image_folder = check_image_folder(_OWNER, allowed_image_folder)
            if mmproj is not None:
                model._open_projector(mmproj, n_threads or available_cpus(), verbose)
            return model

        model = open_model(params.h2o)
        if model._handle.has_encoder:
            raise H2OError(f"[{_OWNER}] {model.model_path} is an encoder-decoder model, which is not supported")
        is_short = (int(params.n_ctx) or model.n_ctx_train) <= DENSE_ON_A_GPU
        if is_auto_on_gpu and is_short and not (keep_history or profile):
            params = replace(params, h2o=None)
            warn(
                f"a GPU reads contexts of up to {DENSE_ON_A_GPU:,} tokens faster with dense attention, which is used. "
                'Pass h2o="balanced" for H2O, h2o=None to silence this warning'
            )
        try:
            engine = _open_engine(model, params, seed, claim, texts)
        except UnsupportedModelError as error:
            if h2o != "auto":
                raise
            params = replace(params, h2o=None, keep_history=False, profile=False)
            if not isinstance(shared, Model) and matmul_kernels == "auto":
                model.close()
                model = open_model(None)  # upstream's kernels read weights in a layout of their own
            engine = _open_engine(model, params, seed, claim, texts)
            warn(f"{error}: attention is dense. Pass h2o=None to Llama to silence this warning")
        super().__init__(engine, _OWNER)

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        **kwargs: Any,
    ) -> "Llama":
        """`Llama(f"{repo_id}:{filename}", **kwargs)`, with a revision and a token.

        `repo_id` is such as "Qwen/Qwen3-0.6B-GGUF". `filename` is a file there, a pattern that only one matches, in any
        case, or a type of weights; by default as in `Llama`. `revision` is a branch, tag or commit, by default the main
        branch. `token` is as in huggingface_hub, for models that are not public: by default that of this machine.

        Raises ValueError, which lists the files, if several match; FileNotFoundError, PermissionError or
        ConnectionError as `Llama`.
        """
        return cls(find_on_hub(HubFile(repo_id, filename, revision), token), **kwargs)

    def close(self) -> None:
        """Free the sequences and the model. Closing twice is fine, using it then raises ValueError."""
        if _core.is_forked():  # the end of the process frees the memory
            return
        with self._state.claim.held() as deadline:
            self._state.drop_stream(deadline)
            self._state.engine.close()
            self._state.set_logits(None)

    # --- sequences

    def sequence(self) -> Sequence:
        """A new sequence, empty, with the same weights and configuration.

        Raises BusyError if all n_seq_max sequences are in use.

        Examples
        --------
        >>> with Llama(model, n_ctx=256, n_seq_max=2) as llm, llm.sequence() as other:
        ...     llm.eval([1, 2, 3])
        ...     print(llm.n_tokens, other.n_tokens)
        3 0
        """
        with self._state.used():
            return Sequence(self._state.engine)

    generate_many = generating.generate_many

    # --- llama-cpp-python's names

    save_state = Sequence.snapshot
    load_state = Sequence.restore
    input_ids = eval_tokens = Sequence.tokens

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Names of llama-cpp-python that have no place here."""
            advice = f": {ADVICE[name]}" if name in ADVICE else ""
            raise AttributeError(f"'Llama' object has no attribute {name!r}{advice}")

    @property
    def library(self) -> Library | None:
        """Where texts that were read are kept."""
        library: Library | None = self._state.engine.library
        return library

    @property
    def n_ctx(self) -> Number:
        return Number(super().n_ctx)

    # --- the model's own: see `Model`

    model_path: str = _of_model("model_path")
    desc: str = _of_model("desc")
    metadata: dict[str, str] = _of_model("metadata")
    n_vocab: Number = _of_model("n_vocab")
    n_embd: Number = _of_model("n_embd")
    n_params: int = _of_model("n_params")
    model_bytes: int = _of_model("model_bytes")
    n_gpu_layers: int = _of_model("n_gpu_layers")
    token_bos: Number = _of_model("token_bos")
    token_eos: Number = _of_model("token_eos")
    chat_template: str | None = _of_model("chat_template")

    tokenize = _by_model(Model.tokenize)
    detokenize = _by_model(Model.detokenize)
    apply_chat_template = _by_model(Model.apply_chat_template)

    embed = _by_model(Model.embed)
    create_embedding = _by_model(Model.create_embedding)

    async def aembed(self, input: str | Texts, **options: Any) -> NDArray[Any]:
        """`embed`, awaited: the event loop is not blocked."""
        return await asyncio.to_thread(self.embed, input, **options)


def _open_engine(model: Model, params: ContextParams, seed: int | None, claim: Lock, library: Library | None) -> Engine:
    """Without what the model cannot have, unless it was asked for."""
    params = params.with_types(model._handle)
    while True:
        n_ctx = int(params.n_ctx) or params.default_n_ctx(model._handle, model.n_ctx_train)
        if isinstance(params.h2o, H2OConfig):
            params = replace(params, h2o=params.h2o.for_context(n_ctx))
        try:
            return Engine(model, params, n_ctx, seed, claim, library)
        except UnsupportedModelError as error:
            h2o = _without_what_was_refused(params.h2o, error.option)
            if h2o is None:
                raise
            if error.option == "lookup_budget":
                warn(f"{error}, as is done now. Pass H2OConfig(lookup_budget=0) to silence this warning")
            else:
                _LOG.info("%s: the context is opened without it", error)
            params = replace(params, h2o=h2o)


def _without_what_was_refused(h2o: H2OConfig | None, option: str | None) -> H2OConfig | None:
    """With what takes its place; None if it was asked for, or nothing does."""
    if h2o is None or option is None or h2o.was_given(option):
        return None
    return replace(h2o, lookup_budget=0) if option == "lookup_budget" else h2o.with_research(positions="text")
