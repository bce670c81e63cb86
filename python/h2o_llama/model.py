"""A model without a context: weights, vocabulary and chat template."""

import copy
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, cast

from typing_extensions import Self, Unpack

from h2o_llama import _core, embedding
from h2o_llama._internal import check, log
from h2o_llama._internal.llama_cpp import understands
from h2o_llama._internal.machine import available_cpus
from h2o_llama._prompt import Prompt, Tokens, check_takes_embeddings
from h2o_llama.models import _files
from h2o_llama.models._messages import ChatImages, Message, Tool, check_messages, check_tools
from h2o_llama.models._projector import Projector, check_image_folder
from h2o_llama.models._template import ChatTemplate
from h2o_llama.models.rope import RopeOptions, check_rope, scaled_length


class HasModel(Protocol):
    """A `Llama`, or one of its sequences."""

    @property
    def model(self) -> "Model": ...


class Model:
    """The weights of a GGUF file, its vocabulary and its chat template. It has no context, so it opens at once.

    `Llama(model)` shares the weights: either may be closed before the other. Everything raises ValueError after
    `close()`, or leaving a `with` block.

    Parameters
    ----------
    model_path, n_gpu_layers, chat_template, rpc_servers, verbose, mmproj, allowed_image_folder
        As in `Llama`. By default no layers are on a GPU, and with `rpc_servers` all are on these.
    matmul_kernels : {"own", "upstream"}
        Whose kernels will multiply by weights: with "upstream" some types get a layout that only llama.cpp's read.
    use_mmap : bool, default True
        Map the file into memory, where the devices allow it; otherwise read it, which takes memory of its own.
    use_mlock : bool, default False
        Keep the weights in RAM: never swapped out. The system may allow less; llama.cpp's log says so.
    kv_overrides : mapping from str to bool, int, float or str, optional
        Metadata in the place of the file's, such as {"qwen3.context_length": 65536}. It must be what llama.cpp reads
        of this model, and no array. Snapshots of the model only fit where the overrides are the same.
    main_gpu : int, optional
        The only GPU that holds layers, by its number. By default all GPUs hold layers.
    tensor_split : sequence of float, optional
        What part of the layers each GPU holds, such as [3, 1]; with `rpc_servers` theirs come first. By default as
        much as its memory allows.
    lora : str, os.PathLike, or sequence of these and of pairs (file, scale), optional
        GGUF files of LoRA adapters, each with a scale, by default 1. Their products are added to the weights',
        in every context. Snapshots of the model only fit where the same adapters have the same scales.
    **rope
        How positions beyond the trained ones are read: `RopeOptions`. A `Llama` may have others.

    Raises as `Llama`; DamagedFileError too if an adapter's file does not fit the model.

    Examples
    --------
    >>> from h2o_llama import Model, demo_model_path
    >>> with Model(demo_model_path()) as model:
    ...     print(model.n_vocab, model.n_ctx_train)
    260 8192
    >>> Model("model.gguf", lora=[("style.gguf", 0.5), "facts.gguf"])  # doctest: +SKIP
    >>> Model("model.gguf", rope_scaling_type="yarn", rope_freq_scale=1 / 4, yarn_orig_ctx=32768)  # doctest: +SKIP
    """

    _owner = "Model"
    _n_threads: int | None = None  # of embeddings

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_gpu_layers: int | None = None,
        chat_template: str | None = None,
        rpc_servers: str | Sequence[str] | None = None,
        matmul_kernels: str = "own",
        verbose: bool = False,
        use_mmap: bool = True,
        use_mlock: bool = False,
        kv_overrides: Mapping[str, _files.Override] | None = None,
        main_gpu: int | None = None,
        tensor_split: Sequence[float] | None = None,
        lora: _files.Lora = None,
        mmproj: str | os.PathLike[str] | None = None,
        allowed_image_folder: str | os.PathLike[str] | None = None,
        **rope: Unpack[RopeOptions],
    ) -> None:
        owner = self._owner
        self._rope = check_rope(owner, rope)
        if n_gpu_layers is None:
            n_gpu_layers = -1 if rpc_servers else 0
        self._n_gpu_layers = check.integer(owner, "n_gpu_layers", n_gpu_layers, -1)
        servers = _files.check_rpc_servers(rpc_servers, self._n_gpu_layers)
        self._uses_gpu = self._n_gpu_layers != 0 and not servers
        self._matmul_kernels = check.choice(owner, "matmul_kernels", matmul_kernels, ("own", "upstream"))
        check.flag(owner, "verbose", verbose)
        self._source = _check_template(owner, chat_template)
        self._image_folder = check_image_folder(owner, allowed_image_folder)
        loading = _files.Loading(use_mmap, use_mlock, kv_overrides, main_gpu, tensor_split, lora).checked(servers)
        self._overrides: dict[str, _files.Override] = loading["kv_overrides"]
        self._adapters: list[_files.Adapter] = loading["lora"]
        if not isinstance(model_path, str | os.PathLike):
            expected = "the path of a GGUF file, or an open Model or Llama"
            raise check.bad_argument("Llama", "model_path", expected, model_path)
        self._path = os.fspath(_files.check_model_file("Llama", model_path))
        path, is_printed, repacks = os.fsencode(self._path), verbose or log.is_printed, matmul_kernels == "upstream"
        if self._overrides:
            _core.Model.check_overrides(path, self._overrides)
        self._core: _core.Model | None
        with _files.reading_a_model():
            self._core = _core.Model(path, self._n_gpu_layers, is_printed, list(servers), repacks, **loading)
        self._projector: Projector | None = None
        if mmproj is not None:
            self._open_projector(mmproj, available_cpus(), verbose)

    def _open_projector(self, mmproj: str | os.PathLike[str], n_threads: int, verbose: bool) -> None:
        """Read images with this file; `Llama` shares it with nobody."""
        check_takes_embeddings(self._owner, self._handle)
        self._projector = Projector(self._handle, mmproj, n_threads, self._uses_gpu, verbose or log.is_printed)

    def _share(self, chat_template: str | None = None, rope: RopeOptions | None = None) -> "Model":
        """A `Llama`'s own handle on the same weights."""
        self._handle  # noqa: B018 (raises if closed)
        model = copy.copy(self)
        model._owner = "Llama"
        if rope:
            model._rope = rope
            model.__dict__.pop("fingerprint", None)
        if chat_template is not None:
            model._source = _check_template("Llama", chat_template)
            model.__dict__.pop("_template", None)
        return model

    @classmethod
    def _of(cls, model: "str | os.PathLike[str] | Model | HasModel", **options: Any) -> "Model":
        """A handle on an open model, or else a file opened with these options."""
        opened = model if isinstance(model, Model) else getattr(model, "model", None)
        return opened._share() if isinstance(opened, Model) else cls(cast(str, model), **options)

    def close(self) -> None:
        """Free the weights, if nothing else shares them. Closing twice is fine."""
        self._core = None
        self._projector = None
        self.__dict__.pop("_template", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def _handle(self) -> _core.Model:
        if self._core is None:
            raise ValueError(f"[{self._owner}] this model is closed")
        return self._core

    # --- properties

    @property
    def model_path(self) -> str:
        """Where the model's file is."""
        return self._path

    @property
    def _name(self) -> str:
        """The file's name without its ending, which answers have as `model`."""
        return os.path.basename(self._path).removesuffix(".gguf")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of a part of the file's bytes and of everything that changes results.

        It identifies the model of a snapshot. It covers kv_overrides, the adapters' files and scales, and RopeOptions.
        """
        changes = self._overrides, _files.adapters_identity(self._adapters), dict(self._rope)
        return _files.changed_fingerprint(_files.model_fingerprint(self._path), *changes)

    @property
    def desc(self) -> str:
        """Architecture, size and type in words."""
        return self._handle.desc.replace("?B", f"{self.n_params / 1e9:.2g}B")  # of sizes llama.cpp has no name for

    @property
    def metadata(self) -> dict[str, str]:
        """The GGUF file's metadata, with kv_overrides, but for arrays; values as text."""
        return self._handle.metadata

    @property
    def n_gpu_layers(self) -> int:
        """Layers asked for on the GPU; -1 is all."""
        return self._n_gpu_layers

    @property
    def n_ctx_train(self) -> int:
        """Tokens of the texts that the model was trained for, or that RoPE scaling makes of them."""
        n_trained = self._handle.n_ctx_train
        return scaled_length(n_trained, self.metadata, self._rope) if self._rope else n_trained

    @property
    def n_vocab(self) -> int:
        """Tokens in the vocabulary."""
        return self._handle.n_vocab

    @property
    def n_embd(self) -> int:
        """Numbers in a row of embeddings, as the model's first layer takes it."""
        return self._handle.n_embd_input

    @property
    def n_params(self) -> int:
        """Weights of the model."""
        return self._handle.n_params

    @property
    def model_bytes(self) -> int:
        """Bytes of the weights."""
        return self._handle.size

    # --- tokens

    @property
    def token_bos(self) -> int:
        """Id of the token that begins a text; -1 if there is none."""
        return self._handle.token_bos

    @property
    def token_eos(self) -> int:
        """Id of the token that ends a text; -1 if there is none."""
        return self._handle.token_eos

    @understands
    def tokenize(self, text: str | bytes, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        Raises ValueError if an argument has the wrong type, H2OError if the model has no tokenizer, or it cannot
        tokenize this text.

        Parameters
        ----------
        text : str or bytes
            UTF-8 if bytes.
        add_special : bool, default True
            Add the tokens that the model expects around a text, such as the one that begins it.
        parse_special : bool, default False
            Turn the names of special tokens in the text into these tokens. Do not enable this for untrusted text.

        Examples
        --------
        >>> model.tokenize("abc")
        [97, 98, 99]
        """
        owner = f"{self._owner}.tokenize"
        if not isinstance(text, str | bytes):
            raise check.bad_argument(owner, "text", "str or bytes", text)
        return self._handle.tokenize(
            check.utf8(owner, "text", text) if isinstance(text, str) else text,
            check.flag(owner, "add_special", add_special),
            check.flag(owner, "parse_special", parse_special),
        )

    @understands
    def detokenize(self, tokens: Tokens, *, special: bool = False) -> bytes:
        """Text of token ids, as bytes: a single token may hold a part of a character.

        Raises ValueError if a token is not a token id.

        Parameters
        ----------
        tokens : sequence of int, or integer ndarray [n]
            Token ids.
        special : bool, default False
            Write special tokens by their names instead of leaving them out.

        Examples
        --------
        >>> model.detokenize([97, 98, 99])
        b'abc'
        """
        owner = f"{self._owner}.detokenize"
        model = self._handle
        ids = check.token_ids(owner, tokens, model.n_vocab).tolist()
        text = model.detokenize(ids, check.flag(owner, "special", special))
        # SentencePiece puts a space before a text.
        begins_text = len(ids) > 1 and ids[0] == model.token_bos and not special
        adds_space = model.is_spm and model.metadata.get("tokenizer.ggml.add_space_prefix", "true") == "true"
        return text[1:] if begins_text and adds_space and text.startswith(b" ") else text

    # --- texts as vectors

    embed = embedding.embed
    create_embedding = embedding.create_embedding

    # --- chats

    @property
    def chat_template(self) -> str | None:
        """The Jinja template of chats, or "chatml"; None if the model has none."""
        return self._source or self.metadata.get("tokenizer.chat_template")

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self._handle, self._source)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Messages as the text that the model was trained to answer.

        It is a prompt for `llm(text)`, or `tokenize(text, parse_special=True)`, which add what begins a text. Names of
        special tokens in messages count as these tokens, too: `create_chat_completion` tells them apart.

        Raises ValueError if the model has no template, or messages or tools are not as below, or the template refuses
        them.

        Parameters
        ----------
        messages : list of dict
            {"role", "content"}; roles are system, developer, user, assistant and tool, content is text or a list of
            {"type": "text", "text"}. An assistant's message may have "tool_calls", a tool's has "tool_call_id".
        tools : list of dict, optional
            {"type": "function", "function": {"name", "description", "parameters"}}, parameters as a JSON schema.
        add_generation_prompt : bool, default True
            End with what begins an answer.
        chat_template_kwargs : dict, optional
            What else the template knows: {"enable_thinking": False} for some models.

        Examples
        --------
        >>> with Model(demo_model_path(), chat_template="chatml") as model:
        ...     print(model.apply_chat_template([{"role": "user", "content": "Who?"}]))
        <|im_start|>user
        Who?<|im_end|>
        <|im_start|>assistant
        """
        owner = f"{self._owner}.apply_chat_template"
        check_messages(owner, messages)  # without images
        return self._chat_prompt(owner, messages, tools, add_generation_prompt, False, chat_template_kwargs)[0].text

    def chat_tokens(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        add_generation_prompt: bool = True,
        parse_special: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Messages as the token ids that `create_chat_completion` reads: for `eval`, `generate` or `reuse`.

        The ids of rows of images are below 0. Raises ValueError or OSError as `create_chat_completion`.

        Parameters
        ----------
        messages, tools, add_generation_prompt, chat_template_kwargs
            As in `apply_chat_template`; messages may have images, as in `create_chat_completion`.
        parse_special : bool, default False
            Turn the names of special tokens in messages into these tokens. Do not enable this for untrusted text.

        Examples
        --------
        >>> with Model(demo_model_path(), chat_template="chatml") as model:
        ...     a, b = (model.chat_tokens([{"role": "user", "content": text}]) for text in ("Who?", "When?"))
        ...     print(len(a), len(b), shared_prefix(a, b))
        54 55 19
        """
        owner = f"{self._owner}.chat_tokens"
        is_parsed = check.flag(owner, "parse_special", parse_special)
        return self._chat_prompt(owner, messages, tools, add_generation_prompt, is_parsed, chat_template_kwargs)[1]

    def _chat_prompt(
        self,
        owner: str,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        add_generation_prompt: bool,
        parse_special: bool,
        kwargs: Mapping[str, Any] | None,
    ) -> tuple[_core.ChatPrompt, Prompt]:
        """What the answer needs, and the token ids."""
        images = ChatImages(owner, self._projector, check_messages(owner, messages, images=True), self._image_folder)
        prompt = self._template.apply(
            owner,
            images.messages,
            check_tools(owner, tools),
            add_generation_prompt=check.flag(owner, "add_generation_prompt", add_generation_prompt),
            kwargs=kwargs,
        )
        return prompt, images.insert_all(prompt.tokens(images.marker, parse_special))


def _check_template(owner: str, source: str | None) -> str | None:
    if source is not None and not (isinstance(source, str) and (source == "chatml" or "{" in source)):
        raise check.bad_argument(owner, "chat_template", "a Jinja template, 'chatml' or None", source)
    if source is not None:
        check.utf8(owner, "chat_template", source)
    return source


def fingerprint_of(path: str | os.PathLike[str], *, lora: _files.Lora = None, **rope: Unpack[RopeOptions]) -> str:
    """`Model.fingerprint` of a file that is not opened. Raises as `Model`."""
    adapters = _files.adapters_identity(_files.check_adapters("Model", lora))
    return _files.changed_fingerprint(_files.model_fingerprint(path), adapters, dict(check_rope("Model", rope)))
