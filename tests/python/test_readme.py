"""The Python of README.md and of the manual's first pages runs unchanged on the demo model."""

import re
from itertools import islice
from pathlib import Path

import pytest

import h2o_llama
from chats import CHATML

ROOT = Path(__file__).parents[2]
PAGES = ["index", "tutorial", "ask", "memory", "tools-and-json", "read-once"]
BLOCKS = [
    (name, code)
    for name in ("README.md", *(f"docs/{page}.md" for page in PAGES))
    for code in re.findall(
        r"^```python\n(.*?)^```", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
]


@pytest.mark.parametrize(("name", "code"), BLOCKS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(BLOCKS)])
@pytest.mark.filterwarnings("ignore:.*trained for texts of.*")
def test_block(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output shown after a block has the same first line. Scores differ in their last digits."""
    monkeypatch.chdir(tmp_path)
    Path("document.txt").write_text("k17=4829\n" * 60)
    Path("model.gguf").symlink_to(h2o_llama.demo_model_path())
    # Answers of the demo model have no end, and it has no chat template. No block depends on its answers.
    generate = h2o_llama.Llama.generate
    monkeypatch.setattr(h2o_llama.Llama, "generate", lambda *args, **kwargs: islice(generate(*args, **kwargs), 8))
    template = "{% if tools %}{{ tools | tojson }}\n{% endif %}" + CHATML
    text, code = code, code.replace('"qwen2.5-coder-0.5b"', f'"model.gguf", chat_template={template!r}')
    exec(compile(code, name, "exec"), {})
    printed = capsys.readouterr().out
    assert printed
    shown = re.search(re.escape(text) + r"```\n\n```\n(.*?)\n", (ROOT / name).read_text(encoding="utf-8"))
    assert shown is None or printed.splitlines()[0] == shown[1]
