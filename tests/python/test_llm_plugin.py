"""The plugin of `llm`: its fragments are a document, which is read once."""

import subprocess
import sys
from pathlib import Path

import pytest

from h2o_llama import Llama, document_messages
from spies import record_calls


@pytest.mark.filterwarnings("ignore")
def test_fragments_are_the_document(chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question may have several lines, and a conversation goes on, in another process, too."""
    llm_cli = pytest.importorskip("llm.cli")
    from click.testing import CliRunner

    from h2o_llama import _llm_plugin

    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    monkeypatch.setenv("H2O_LLAMA_LIBRARY", str(tmp_path / "library"))
    monkeypatch.setattr(_llm_plugin, "MODELS", [str(chat_model)])
    asked = record_calls(monkeypatch, Llama, "create_chat_completion")
    file, questions = tmp_path / "file.txt", ("Who signed it?", "First line,\nand a second one?")
    file.write_text("A document.\nIt has two lines." * 40)
    for options in (["-m", f"h2o/{chat_model}", "-f", f"h2o:{file}", questions[0]], ["-c", "And then?"]):
        result = CliRunner().invoke(llm_cli.cli, [*options, "-o", "max_tokens", "4", "--no-stream"])
        assert result.exit_code == 0, result.output
    conversation = _llm_plugin.H2OModel(str(chat_model)).conversation()
    for question, fragments in ((questions[1], [file.read_text()]), ("And then?", [])):
        conversation.prompt(question, fragments=fragments, max_tokens=4).text()
    messages = [call["messages"] for call in asked]
    for question, (first, second) in zip(questions, (messages[:2], messages[2:]), strict=True):
        assert first == document_messages(file.read_text(), question)
        assert second[:2] == first
        assert [message["role"] for message in second[2:]] == ["assistant", "user"]


def test_the_package_is_imported_when_it_is_used() -> None:
    """`llm` loads its plugins at each command."""
    start = (
        "import sys; sys.modules['llm'] = __import__('unittest.mock').mock.MagicMock(); import h2o_llama._llm_plugin"
    )
    program = [sys.executable, "-c", f"{start}; print('h2o_llama._core' in sys.modules, 'numpy' in sys.modules)"]
    run = subprocess.run(program, capture_output=True, text=True, check=True)
    assert run.stdout == "False False\n"
    for module in ("_internal.machine", "_core", "_bench", "llama"):  # whichever is first
        subprocess.run([sys.executable, "-c", f"import h2o_llama.{module}"], check=True)
