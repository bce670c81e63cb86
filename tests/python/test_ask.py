"""`ask`: questions about a document."""

from pathlib import Path
from typing import Any

import pytest

from chats import CHATML, INSTRUCT, NAMES, dictate, open_chat, user
from h2o_llama import H2OConfig, shared_prefix
from h2o_llama.chat._question import Question
from h2o_llama.models._template import ChatTemplate
from h2o_llama.sequence._state import State
from spies import record_calls


@pytest.mark.parametrize("template", [CHATML, None], ids=["chat", "plain"])
def test_asking_says_what_the_long_way_says(tiny_model: Path, template: str | None) -> None:
    document, questions = "k17=4829;\n" * 20, ["k17?", "Which <|im_end|>?"]
    expected = []
    with open_chat(tiny_model, template, h2o=H2OConfig(chunk_size=64)) as llm:
        for question in questions:
            if template is None:
                prompt = llm.tokenize(f"{document}\n\nQuestion: {question}\nAnswer:")
                answer = llm(prompt, max_tokens=12, temperature=0, stop="\nQuestion:", reuse=True)
                expected.append(answer["choices"][0]["text"].strip())
            else:
                system = {"role": "system", "content": f"Answer questions about this text:\n\n{document}"}
                chat = llm.create_chat_completion([system, user(question)], max_tokens=12, temperature=0)
                expected.append(chat["choices"][0]["message"]["content"].strip())
        llm.reset()
        assert llm.ask(document, questions, max_tokens=12) == expected
        assert llm.n_cached >= 192, "the document's chunks"
        assert llm.ask(document, questions[1], max_tokens=12) == expected[1]
        pieces = list(llm.ask(document, "k17?", logits_processor=dictate(" a b\n\nc \n"), stream=True))
        assert pieces == ["a", " b", "\n\nc"]
        swapped = ("Who?", tiny_model)
        for bad in [
            (3, "Who?"),
            ("missing.pdf", "Who?"),
            (document, []),
            (document, ["Who?", 3]),
            (str(tiny_model), "Who?"),
            swapped,
        ]:
            with pytest.raises(
                ValueError,
                match=r"\[Llama.ask\] .*(must be|is a file: pass Path|comes first|there is no file 'missing.pdf')",
            ):
                llm.ask(*bad)  # type: ignore[call-overload]


FORMS = (CHATML, INSTRUCT.replace("(message['role'] == 'user') != (loop.index0 % 2 == 0)", "false"), None)


@pytest.mark.parametrize("template", [*FORMS, "{{ messages | map(attribute='content') | join('\n\n') }}\n"])
def test_more_questions_about_a_document_are_what_they_are_alone(
    tiny_model: Path, template: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document is rendered once, where special tokens tell turns apart; also if it quotes the template."""
    apply, rendered = ChatTemplate.apply, list[str]()

    def spy(form: ChatTemplate, owner: str, messages: Any, **options: Any) -> Any:
        rendered.append(str(messages))
        return apply(form, owner, messages, **options)

    questions = ["Who?", "\n When?", "A", "B", NAMES, "…"]
    with open_chat(tiny_model, template) as llm:
        for document in ("Ada wrote it. " * 9, NAMES, "…", "a\n"):
            alone = [Question.about("ask", llm.model, document, question).prompt for question in questions]
            first = Question.about("ask", llm.model, document, questions[0])
            with monkeypatch.context() as patch:
                patch.setattr(ChatTemplate, "apply", spy)
                assert [list(first.again(question).prompt) for question in questions] == [list(ids) for ids in alone]
            shared = min(shared_prefix(alone[0], ids) for ids in alone)
            assert 0 <= shared - first.n_shared < 20, (document, shared, first.n_shared)
            of_the_document = [messages for messages in rendered if "Ada wrote" in messages]
            assert len(of_the_document) == {CHATML: 1, None: 0}.get(template, len(of_the_document))


def test_the_turn_of_a_question_attends_to_everything(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a length; without turns, as much as the end of any prompt."""
    reads = record_calls(monkeypatch, State, "read")
    for template, n, tail in ((CHATML, 200, 200 + 19), (CHATML, 900, 512), (None, 4, 128)):
        with open_chat(tiny_model, template) as llm:
            llm.ask("k17=4829;\n" * 30, "?" * n, max_tokens=1)
        assert reads[-1]["dense_tail"] == tail
