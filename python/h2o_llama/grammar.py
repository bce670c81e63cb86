"""What may be generated: llama.cpp's grammars."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import Self

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.llama_cpp import understands

_OWNER = "LlamaGrammar"

Schema = Any  # str | Mapping[str, Any] | type[pydantic.BaseModel], which need not be installed


@dataclass(frozen=True)
class LlamaGrammar:
    """A grammar in GBNF, llama.cpp's notation, such as 'root ::= "yes" | "no"': its rule `root` is the whole text.

    It is read when it is used.
    """

    text: str

    @classmethod
    @understands
    def from_string(cls, grammar: str) -> Self:
        """The grammar that a text is.

        Examples
        --------
        >>> grammar = LlamaGrammar.from_string('root ::= "yes" | "no"')
        >>> llm("Is it? ", grammar=grammar, temperature=0)["choices"][0]["text"] in ("yes", "no")
        True
        """
        if not isinstance(grammar, str) or not grammar.strip():
            raise check.bad_argument(_OWNER, "grammar", "GBNF as a string, not empty", grammar)
        return cls(grammar)

    @classmethod
    def from_file(cls, file: str | os.PathLike[str]) -> Self:
        """The grammar that a file holds."""
        return cls.from_string(Path(file).read_text(encoding="utf-8"))

    @classmethod
    @understands
    def from_json_schema(cls, json_schema: Schema) -> Self:
        """The grammar of JSON that a schema describes: a dict, its JSON, or a pydantic model.

        Raises ValueError if it is not a JSON schema, or has conditions that a grammar cannot express.

        Examples
        --------
        >>> import json
        >>> schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        >>> grammar = LlamaGrammar.from_json_schema(schema)
        >>> answer = llm("{}", grammar=grammar, temperature=0, max_tokens=64)["choices"][0]["text"]
        >>> sorted(json.loads(answer))
        ['ok']
        """
        return cls(_core.json_schema_to_grammar(schema_text(_OWNER, json_schema)))


def schema_text(owner: str, schema: Schema) -> str:
    """A JSON schema as JSON."""
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"[{owner}] json_schema must be JSON: {error}") from None
    if not isinstance(schema, Mapping):
        raise check.bad_argument(owner, "json_schema", "a JSON schema, that is an object, or a pydantic model", schema)
    return check.json_text(owner, "json_schema", schema)


def compile_grammar(
    owner: str, model: _core.Model, grammar: LlamaGrammar | str | _core.Grammar | None
) -> _core.Grammar | None:
    """The core's grammar. Raises ValueError if it is none."""
    if grammar is None or isinstance(grammar, _core.Grammar):
        return grammar
    text = LlamaGrammar.from_string(grammar).text if isinstance(grammar, str) else getattr(grammar, "text", None)
    if not isinstance(text, str):
        raise check.bad_argument(owner, "grammar", "a LlamaGrammar, GBNF as a string, or None", grammar)
    check.utf8(owner, "grammar", text)
    return _core.Grammar(model, text)
