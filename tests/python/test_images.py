"""Images in chats: with a projector, each becomes rows of embeddings in the text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from chats import IM_END, open_chat, user
from command_line import h2o_set, invoke, succeeded
from gguf_mutation import UINT32, GGUFFile, mutated, pack
from h2o_llama import H2OConfig, H2OError, Llama, Model, UnsupportedModelError
from h2o_llama.errors import DamagedFileError
from h2o_llama.models import _messages
from inputs import ModelByName
from projectors import N_ROWS, PATCH, about, data_url, image_part, picture, png, write_projector

S = 32
CONFIGS: dict[str, H2OConfig | None] = {
    "keep": H2OConfig(chunk_size=S),
    "heavy": H2OConfig(chunk_size=S, lookup_budget=0),
    "two_phase": H2OConfig(chunk_size=S, schedule="two_phase"),
    "evict": H2OConfig(chunk_size=S, evict=True),
    "cold": H2OConfig(chunk_size=S, evict=True, cold_store="memory"),
    "dense": None,
}
A, B = png(picture(1)), png(picture(2))


@pytest.fixture(params=CONFIGS)
def llm(request: pytest.FixtureRequest, chat_model: Path, mmproj: Path) -> Iterator[Llama]:
    with open_chat(chat_model, None, h2o=CONFIGS[request.param], mmproj=mmproj, n_ctx=512, n_seq_max=2) as llm:
        yield llm


def ask(llm: Llama, messages: list[Any], **options: Any) -> Any:
    return llm.create_chat_completion(messages, max_tokens=12, temperature=0, **options)


def said(answer: Any) -> Any:
    return answer["choices"][0]["message"]["content"]


def test_an_image_is_rows_in_the_text(llm: Llama) -> None:
    """The same as its rows between the tokens around them; another image is another text."""
    answer = ask(llm, [about("What is this?", A)], logprobs=True, dense_tail=0)
    prompt = llm.model._projector.encode("", A)  # type: ignore[union-attr]
    assert prompt.rows.shape == (N_ROWS, llm.n_embd)
    n_prompt = answer["usage"]["prompt_tokens"]
    np.testing.assert_array_equal(llm.tokens[(llm.tokens < 0)], prompt.ids)

    before = llm.tokenize("<|im_start|>user\n", parse_special=True)
    after = llm.tokenize("What is this?<|im_end|>\n<|im_start|>assistant\n", parse_special=True, add_special=False)
    assert n_prompt == len(before) + N_ROWS + len(after)
    with llm.sequence() as sequence:
        sequence.eval(before)
        sequence.eval(embeddings=prompt.rows)
        sequence.eval(after)
        token = int(np.argmax(sequence.logits))
    assert token == llm.tokens[n_prompt]

    other = ask(llm, [about("What is this?", B)], logprobs=True, dense_tail=0)
    assert other["choices"][0]["logprobs"] != answer["choices"][0]["logprobs"]


def test_a_chat_goes_on_about_an_image(llm: Llama) -> None:
    """The shared prefix stays, including the image; with another image, only the text before it."""
    messages = [about("What is this?", A)]
    first = ask(llm, messages)
    messages += [first["choices"][0]["message"], user("And now? " * 5)]
    second = ask(llm, messages)
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= (N_ROWS // S * S if llm.h2o is None or not llm.h2o.evict else 0)
    snapshot = llm.snapshot()
    with llm.sequence() as fresh:
        if llm.h2o is None:
            assert said(fresh.create_chat_completion(messages, max_tokens=12, temperature=0)) == said(second)
        fresh.restore(snapshot)
        np.testing.assert_array_equal(fresh.tokens, llm.tokens)
        again = [s.create_chat_completion([*messages, user("?")], max_tokens=6, temperature=0) for s in (llm, fresh)]
        assert said(again[0]) == said(again[1])
    messages[0] = about("What is this?", B)
    third = ask(llm, messages)
    assert third["usage"]["prompt_tokens_details"]["cached_tokens"] < 20


@pytest.mark.parametrize("llm", ["keep"], indirect=True)
def test_where_images_may_be(llm: Llama, tmp_path: Path) -> None:
    path = tmp_path / "an image.png"
    path.write_bytes(A)
    llm.model._image_folder = str(tmp_path)
    for url in (data_url(A), str(path), path.name, path.as_uri(), {"url": str(path), "detail": "low"}):
        part = {"type": "image_url", "image_url": url}
        answer = ask(llm, [{"role": "user", "content": [{"type": "text", "text": "See:"}, part]}])
        np.testing.assert_array_equal(np.sum(llm.tokens < 0), N_ROWS)
        assert answer["usage"]["prompt_tokens"] > N_ROWS


@pytest.mark.parametrize("llm", ["keep"], indirect=True)
def test_a_text_cannot_pretend_to_be_an_image(llm: Llama) -> None:
    """Neither the markers of templates, nor names of special tokens next to an image."""
    answer = ask(llm, [about("<__media__> <|im_end|>", A)])
    assert np.sum(llm.tokens < 0) == N_ROWS
    n_prompt = answer["usage"]["prompt_tokens"]
    assert np.sum(llm.tokens[:n_prompt] == IM_END) == 1


def test_messages_read_no_files_but_those_of_a_folder(chat_model: Path, mmproj: Path, tmp_path: Path) -> None:
    """No special files there, and nothing through links. A message does not tell whether a file outside exists."""
    folder, secret = tmp_path / "images", tmp_path / "secret"
    folder.mkdir()
    secret.write_text("password")
    (folder / "text.png").write_text("password")
    os.mkfifo(folder / "pipe")
    for name, target in (("zero", "/dev/zero"), ("pipe2", folder / "pipe"), ("link", secret), ("up", tmp_path)):
        (folder / name).symlink_to(target)
    with (folder / "large").open("wb") as file:
        file.truncate(_messages._MOST_BYTES + 1)
    outside = [str(secret), secret.as_uri(), "../secret", "link", "up/secret", "zero", "/dev/zero", "none/../../none"]
    outside += ["../images2/a.png", "\0", "/etc/passwd", "."]
    with open_chat(chat_model, None, h2o=None, mmproj=mmproj) as llm:
        for url in (*outside, "pipe", "text.png"):
            with pytest.raises(ValueError, match="files are not read: pass a data URL"):
                ask(llm, [{"role": "user", "content": [image_part(url)]}])
    with open_chat(chat_model, None, h2o=None, mmproj=mmproj, allowed_image_folder=folder) as llm:
        for match, urls in (
            ("is not in allowed_image_folder", outside),
            ("is a special file", ["pipe", "pipe2"]),
            (f"more than {_messages._MOST_BYTES:,} bytes", ["large"]),
            ("expected the content of an image file", ["text.png"]),
            ("may have", ["data:image/png;base64," + "A" * 2 * _messages._MOST_BYTES]),
        ):
            for url in urls:
                with pytest.raises(ValueError, match=match) as found:
                    ask(llm, [{"role": "user", "content": [image_part(url)]}])
                assert "password" not in str(found.value)
                assert repr(b"password"[:8]) not in str(found.value)
    for bad in (3, tmp_path / "none", secret):
        with pytest.raises(ValueError, match="allowed_image_folder must be the path of a folder"):
            Model(chat_model, allowed_image_folder=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("llm", ["keep"], indirect=True)
def test_bad_images(llm: Llama, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "folder").mkdir()
    llm.model._image_folder = str(tmp_path)
    for url, error, match in (
        ("https://example.org/x.png", ValueError, "is not fetched: download it"),
        ("data:image/png;base64,???", ValueError, "expected a data URL"),
        ("text.png", ValueError, r"messages\[0\]\['content'\]\[0\]: expected the content of an image file \(PNG"),
        ("none.png", FileNotFoundError, "none.png"),
        ("folder", OSError, "directory"),
        (data_url(A[:40]), H2OError, "cannot be read"),
        (data_url(A[:16] + b"\xff\xff\xff\xff" + A[20:]), H2OError, "cannot be read"),
        (data_url(b"GIF89a"), H2OError, "cannot be read"),
    ):
        with pytest.raises(error, match=match):
            ask(llm, [{"role": "user", "content": [image_part(url)]}])
    with pytest.raises(ValueError, match="do not fit into n_ctx"):
        ask(llm, [about("?", *[A] * 15)])
    with pytest.raises(ValueError, match="images and sound are not supported here"):
        llm.apply_chat_template([about("?", A)])
    assert llm.n_tokens == 0
    for template, match in (
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "left out images, 1 of 1"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "repeats images: 2 for 1"),
    ):
        with open_chat(llm, template, h2o=None) as other, pytest.raises(ValueError, match=match):  # type: ignore[arg-type]
            ask(other, [about("?", A)])


def test_bad_projectors(chat_model: Path, mmproj: Path, model_by_name: ModelByName, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"

    def open_damaged(change: Callable[[GGUFFile], object]) -> Model:
        mutated(mmproj, damaged, change)
        return Model(chat_model, mmproj=damaged)

    def without_bias(file: GGUFFile) -> None:
        del file.tensors[b"mm.2.bias"]
        file.n_tensors -= 1

    def patches_of(size: int) -> Callable[[GGUFFile], object]:
        return lambda file: file.set("clip.vision.patch_size", UINT32, pack("I", size))

    cut = tmp_path / "cut.gguf"
    cut.write_bytes(mmproj.read_bytes()[:-50])
    for open_, error, match in (
        (lambda: Model(chat_model, mmproj=cut), DamagedFileError, "truncated"),
        (lambda: open_damaged(patches_of(0)), H2OError, r"patch_size \(0\) must be positive"),
        (lambda: open_damaged(patches_of(PATCH // 2)), DamagedFileError, "has 36 rows, expected 144"),
        (lambda: open_damaged(without_bias), DamagedFileError, r"no mm\.2\.bias"),
        (lambda: Model(chat_model, mmproj=chat_model), DamagedFileError, "is 'qwen3', expected 'clip'"),
        (lambda: Model(chat_model, mmproj=tmp_path / "none.gguf"), FileNotFoundError, "there is no file"),
        (lambda: Model(model_by_name("llama-gqa2-f32"), mmproj=mmproj), H2OError, "mismatch between text model"),
    ):
        with pytest.raises(error, match=match):
            open_()


def test_images_that_are_read_otherwise_are_refused(chat_model: Path, tmp_path: Path) -> None:
    """With the reason, before anything is computed."""
    both_ways = write_projector(tmp_path / "gemma3.gguf", models.ONE_LAYER.n_embd, "gemma3")
    with pytest.raises(UnsupportedModelError, match="attend to each other both ways"):
        Model(chat_model, mmproj=both_ways)
    spec = replace(models.QWEN2_GQA, name="mrope", arch="qwen2vl")
    writer = models.open_writer(spec, tmp_path / "mrope.gguf")
    writer.add_rope_dimension_sections([4, 6, 6, 0])
    models.add_weights(spec, writer)
    models.finish(writer)
    projector = write_projector(tmp_path / "mmproj.gguf", spec.n_embd)
    with pytest.raises(UnsupportedModelError, match="positions of several dimensions"):
        Model(tmp_path / "mrope.gguf", mmproj=projector)


@pytest.mark.parametrize("kind", ["keep", "evict"])
def test_a_library_knows_images(chat_model: Path, mmproj: Path, tmp_path: Path, kind: str) -> None:
    """In another program a chat about this image continues; one about another image begins afresh."""

    def open_with(library: Path | None) -> Llama:
        return open_chat(chat_model, None, library=library, h2o=CONFIGS[kind], mmproj=mmproj, n_ctx=1024)

    def turns(image: bytes, first: Any) -> list[Any]:
        return [about("What is this? " * 20, image), first["choices"][0]["message"], user("And now? " * 9)]

    def logprobs(answer: Any) -> list[float]:
        return [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]]

    begin = [about("What is this? " * 20, A)]
    with open_with(None) as llm:
        first = ask(llm, begin)
        expected = ask(llm, turns(A, first), logprobs=True)
    with open_with(tmp_path) as llm:
        assert said(ask(llm, begin)) == said(first)
    with open_with(tmp_path) as llm:
        again = ask(llm, turns(A, first), logprobs=True)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 300
        np.testing.assert_allclose(logprobs(again), logprobs(expected), atol=1e-5)
    with open_with(tmp_path) as llm:
        other = ask(llm, turns(B, first))
        assert other["usage"]["prompt_tokens_details"]["cached_tokens"] < 20


# --- command line


def test_an_image_on_the_command_line(chat_model: Path, mmproj: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(A)
    given: list[Any] = [chat_model, "--threads", "1", *h2o_set(chunk_size=S), "--mmproj", mmproj]
    given += ["--temp", "0", "-n", "6"]
    chat = succeeded(invoke("chat", *given, "--image", path, stdin="What is this?\n/inspect\n"))
    loaded = succeeded(invoke("chat", *given, stdin=f"/image none.png\n/image {path}\nWhat is this?\n"))
    assert "none.png: No such file" in loaded.stderr
    with open_chat(chat_model, None, h2o=H2OConfig(chunk_size=S), mmproj=mmproj) as llm:
        answer = llm.create_chat_completion([about("What is this?", A)], max_tokens=6, temperature=0)
    n = answer["usage"]["prompt_tokens"]
    assert f"[read {n} tokens in" in chat.stderr
    assert chat.stdout.startswith(loaded.stdout)
    assert loaded.stdout == said(answer) + "\n"
