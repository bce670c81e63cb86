"""The server's page, in a headless Chromium."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chats import THINKERS, upstream_template
from command_line import h2o_set
from documents import READ, UNREADABLE
from gguf_mutation import STRING, mutated, pack_string
from h2o_llama import demo_model_path, document_messages
from h2o_llama.documents import ABOUT_A_DOCUMENT
from servers import Server, ServerOf, serving

if not (shutil.which("chromedriver") and (shutil.which("chromium") or shutil.which("google-chrome"))):
    pytest.skip("Chromium or its chromedriver is missing", allow_module_level=True)
webdriver = pytest.importorskip("selenium.webdriver")

pytestmark = pytest.mark.slow

CHUNK = 256
DOCUMENT = "".join(f"k{i:02}={7919 * i % 10_000:04}\n" for i in range(100))
OPTIONS = [*h2o_set(chunk_size=CHUNK, local_window=30, heavy_budget=30), "--parallel", "2", "--n-ctx", "4096"]
# The demo model would not stop, and its answers would differ.
SERVER = """
const original = window.fetch;
window.maxTokens = 8;
window.asked = [];
window.fetch = (path, options) => {
    const chosen = {max_tokens: window.maxTokens, temperature: 0, grammar: window.grammar};
    const body = path === "v1/chat/completions" ? {...JSON.parse(options.body), ...chosen} : null;
    if (body) window.asked.push(body.messages);
    return original(path, body ? {...options, body: JSON.stringify(body)} : options);
};
"""


@pytest.fixture
def server(server_of: ServerOf) -> Server:
    return server_of("demo", *OPTIONS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SERVER})
    yield driver
    driver.quit()


@pytest.fixture
def page(browser: Any, server: Server) -> Any:
    return open_page(browser, server)


def open_page(browser: Any, server: Server) -> Any:
    """In a browser without data."""
    url = f"http://127.0.0.1:{server.port}/"
    browser.get("about:blank")
    browser.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
    browser.get(url)
    wait_for_server(browser)
    return browser


def wait_for_server(browser: Any) -> None:
    wait(browser, lambda: text_of(browser, "settings").startswith("reads "))


def wait(browser: Any, condition: Callable[[], Any]) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60, 0.05).until(lambda _: condition())


def element(browser: Any, name: str) -> Any:
    return browser.find_element("id", name)


def text_of(browser: Any, name: str) -> str:
    text: str = element(browser, name).text
    return text


def texts_of(page: Any, selector: str) -> list[str]:
    script = """
        const text = (found) => found.checkVisibility() ? found.innerText : "";
        return [...document.querySelectorAll(arguments[0])].map(text);
    """
    texts: list[str] = page.execute_script(script, selector)  # at once: lists are made anew while they are read
    return texts


def click(page: Any, selector: str) -> None:
    page.execute_script("document.querySelector(arguments[0]).click()", selector)


def said(page: Any) -> str:
    """The last answer."""
    return texts_of(page, "#turns .turn:last-child > .text")[0]


def read(page: Any, path: Path, text: str | bytes = DOCUMENT) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    element(page, "file").send_keys(str(path))


def read_keys(page: Any, folder: Path) -> None:
    read(page, folder / "keys.txt")
    wait(page, lambda: text_of(page, "size") == "900 tokens")


def asked(page: Any) -> Any:
    """The messages of every request of this page."""
    return page.execute_script("return asked")


def ask(page: Any, question: str) -> None:
    element(page, "question").send_keys(question + "\n")


def get_answers(page: Any, question: str, n: int) -> list[str]:
    """Ask, and return the facts below each of `n` answers, such as the number of tokens read."""

    def facts() -> list[str]:
        return texts_of(page, "#turns .faint")

    ask(page, question)
    wait(page, lambda: (len(facts()) == n and element(page, "send").is_enabled()) or text_of(page, "error"))
    assert text_of(page, "error") == ""
    return facts()


def test_a_document_is_read_and_asked(page: Any, server: Server, tmp_path: Path) -> None:
    read_keys(page, tmp_path)
    (first,) = get_answers(page, "k07=", 1)
    assert first.startswith("Read 1,0")
    assert "cached" not in first
    assert element(page, "news").get_attribute("textContent") == f"Answer: {said(page)}"  # for screen readers

    second = get_answers(page, "k31=", 2)[1]
    assert "tokens were cached, which saved about" in second
    assert int(second.split()[1]) < 200

    click(page, ".answer .look")  # what the first question has read
    wait(page, lambda: element(page, "read").is_displayed())
    assert DOCUMENT + "<" in element(page, "read-text").get_property("textContent")
    marks = texts_of(page, "#read-text mark")
    assert 30 < len(marks) < 60  # 5 % of the tokens
    assert re.match(r"\d+\.\d % k07=", texts_of(page, "#passages button")[0])
    click(page, "#read-text mark")
    assert re.match(rf"“{re.escape(marks[0].strip())}”, \d+\.\d %, is read by layer", text_of(page, "read-heads"))


def test_thoughts_are_folded(browser: Any, server_of: ServerOf, tmp_path: Path) -> None:
    """An answer that is cut off says so, and is kept where there is nothing but thoughts."""
    model = mutated(
        demo_model_path(),
        tmp_path / "model.gguf",
        lambda file: file.set("tokenizer.chat_template", STRING, pack_string(upstream_template("Qwen3").encode())),
    )
    page = open_page(browser, server_of(model, *OPTIONS))
    texts: dict[str, tuple[int, str, str]] = {
        THINKERS["Qwen3"].format("Hm, hm.", "Four."): (99, "Four.", "per second."),
        THINKERS["Qwen3"].format("Hm, hm.", "Four. " * 9): (14, "Four.", "cut off after 32 tokens, the limit."),
        "<think>\nHm, hm.": (99, "", "There are only thoughts, no answer."),
    }
    for n, (text, (max_tokens, answer, end)) in enumerate(texts.items(), 1):
        dictate(page, text, max_tokens)
        assert get_answers(page, "2 + 2?", n)[-1].endswith(end)
        assert said(page) == answer
        thoughts = "return document.querySelector('.turn:last-child .thoughts > div').textContent.trim()"
        assert page.execute_script(thoughts) == "Hm, hm."
        assert texts_of(page, ".turn:last-child .thoughts")[0].strip() == "Thoughts"


def test_an_answer_can_be_stopped(page: Any, server: Server, tmp_path: Path) -> None:
    read(page, tmp_path / "long.txt", DOCUMENT * 4)
    ask(page, "k07=")
    wait(page, lambda: element(page, "stop").is_enabled())
    from selenium.webdriver.common.keys import Keys

    element(page, "question").send_keys(Keys.ESCAPE)
    wait(page, lambda: element(page, "send").is_enabled())
    assert not element(page, "stop").is_enabled()
    assert text_of(page, "error") == ""
    server.wait_until_idle()
    get_answers(page, "k31=", 1)


def test_a_conversation_survives_a_reload(page: Any, server: Server, tmp_path: Path) -> None:
    """And the server finds its text."""
    read(page, tmp_path / "keys.txt", DOCUMENT[90:] + DOCUMENT[:90])  # not read before
    wait(page, lambda: text_of(page, "size") == "900 tokens")
    get_answers(page, "k07=", 1)
    (first,) = asked(page)
    before = text_of(page, "turns"), text_of(page, "documents")
    page.refresh()
    wait_for_server(page)
    wait(page, lambda: (text_of(page, "turns"), text_of(page, "documents")) == before)
    assert "tokens were cached, which saved about" in get_answers(page, "k31=", 2)[1]
    (second,) = asked(page)
    answer = {"role": "assistant", "content": before[0].split("Answer\n")[1].split("\nRead ")[0]}
    assert [*first, answer, {"role": "user", "content": "k31="}] == second


def test_conversations_are_listed_opened_and_deleted(page: Any, tmp_path: Path) -> None:
    titles = "#texts li li .name"
    read_keys(page, tmp_path)
    wait(page, lambda: texts_of(page, titles) == ["No question yet"])
    get_answers(page, "k07=", 1)
    first = text_of(page, "turns")
    click(page, "#again")
    wait(page, lambda: text_of(page, "documents") == "")
    get_answers(page, "Another one?", 1)
    assert texts_of(page, titles) == ["Another one?", "k07="]

    assert texts_of(page, "#texts > li > .name") == ["Without a document", "keys.txt"]
    click(page, "#texts > li:nth-child(2) li .name")
    wait(page, lambda: text_of(page, "turns") == first)
    assert text_of(page, "documents").startswith("keys.txt")
    for title in ("k07=", "Another one?"):
        click(page, f"#texts [aria-label='Delete {title}']")
        page.switch_to.alert.accept()
        wait(page, lambda title=title: title not in texts_of(page, titles))
    assert text_of(page, "turns") == ""
    wait(page, lambda: texts_of(page, "#texts li") == [])


def test_several_documents(page: Any, tmp_path: Path) -> None:
    read_keys(page, tmp_path)
    get_answers(page, "k07=", 1)
    assert texts_of(page, "#documents button") == [""]
    assert not element(page, "drop").is_displayed()
    element(page, "adding").click()
    assert element(page, "fixed").is_displayed()

    read(page, tmp_path / "keys.txt")  # begins another conversation
    wait(page, lambda: text_of(page, "turns") == "" and text_of(page, "size") == "900 tokens")
    assert element(page, "begun").is_displayed()
    element(page, "text").send_keys("Some pasted text.")
    click(page, "#add")
    read(page, tmp_path / "b.md", "# Title\n")
    wait(page, lambda: text_of(page, "size") == "925 tokens in 3 documents")
    click(page, "[aria-label='Remove Some pasted text.']")
    wait(page, lambda: text_of(page, "size") == "908 tokens in 2 documents")
    element(page, "text").send_keys("The last one.")  # taken with the question
    assert "tokens were cached" in get_answers(page, "k31=", 1)[0]  # all of the first document
    (one, _), (several, question) = asked(page)
    assert one["content"] == ABOUT_A_DOCUMENT + DOCUMENT  # as `h2o-llama chat` has it in its library
    assert several["content"] == (
        f"{one['content']}\n\nThat was keys.txt. This is b.md:\n\n# Title\n"
        "\n\nThat was b.md. This is The last one.:\n\nThe last one."
    )
    assert question == {"role": "user", "content": "k31="}


def drop(page: Any, **files: bytes) -> None:
    page.execute_script(
        """
        const dataTransfer = new DataTransfer();
        for (const [name, data] of Object.entries(arguments[0]))
            dataTransfer.items.add(new File([new Uint8Array(data)], name.replace("_", ".")));
        document.body.dispatchEvent(new DragEvent("drop", {dataTransfer, bubbles: true}));
        """,
        {name: list(data) for name, data in files.items()},
    )


def test_files_are_read_as_by_commands(page: Any, tmp_path: Path) -> None:
    name, (data, reason) = next(iter(UNREADABLE.items()))
    read(page, tmp_path / name, data)
    wait(page, lambda: f"{name} {reason}" in text_of(page, "error"))
    drop(page, **{name.replace(".", "_"): content for name, (content, _) in READ.items()})
    wait(page, lambda: text_of(page, "size").endswith(f"in {len(READ)} documents"))
    get_answers(page, "What?", 1)
    content = asked(page)[0][0]["content"].removeprefix(ABOUT_A_DOCUMENT)
    found = re.split(r"\n\nThat was .*\. This is .*:\n\n", content)
    assert sorted(found) == sorted(text for _, text in READ.values())


def test_the_library(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path / "log", "demo", *OPTIONS, library=tmp_path / "library") as server:
        page = open_page(browser, server)
        read_keys(page, tmp_path)
        get_answers(page, "k07=", 1)
        server.complete("Of another browser. " * 20, 1)
        command = document_messages(DOCUMENT[::-1], "k31=")
        server.post("/v1/chat/completions", {"messages": command, "max_tokens": 1})
        wait(page, lambda: len(server.get("/h2o/library")["texts"]) == 3)
        page.refresh()
        wait_for_server(page)
        rows = "#texts > li"
        wait(page, lambda: len(texts_of(page, rows)) == 3)
        assert text_of(page, "state") == "; this document has been read"
        assert re.fullmatch(r"The server keeps [\d.]+ .B of at most [\d.]+ .B\.", text_of(page, "used"))
        keys, read_by_command, other = texts_of(page, rows)
        assert re.fullmatch(r"keys\.txt\s+Delete\s+900 tokens · [\d.]+ .B · used \w+ \d+\s+k07=\s+Delete", keys)
        assert re.fullmatch(r"Of another browser.*\s+Delete\s+400 tokens · [\d.]+ .B · used \w+ \d+\s*", other)

        click(page, f"{rows}:nth-child(2) > button.name")  # only a command has read it
        wait(page, lambda: text_of(page, "documents").startswith(read_by_command.split()[0]))
        wait(page, lambda: text_of(page, "state") == "; this document has been read")
        assert "tokens were cached" in get_answers(page, "k07=", 1)[0]
        assert asked(page)[0][0] == command[0]

        click(page, "#again")
        read(page, tmp_path / "keys.txt", DOCUMENT[:300])  # not all that was read
        wait(page, lambda: text_of(page, "documents").startswith("keys.txt"))
        wait(page, lambda: text_of(page, "state") == "")

        def delete(selector: str) -> None:
            click(page, f"#texts [aria-label{selector}]")
            assert "from the server, with" in page.switch_to.alert.text
            page.switch_to.alert.accept()

        kept = server.get("/h2o/library")["texts"]
        delete("^='Delete Of another browser'")
        wait(page, lambda: not any("another browser" in text for text in texts_of(page, rows)))
        click(page, "#library [role=status] button")  # undo
        wait(page, lambda: any("another browser" in text for text in texts_of(page, rows)))
        assert server.get("/h2o/library")["texts"] == kept
        delete("='Delete keys.txt from the server'")
        wait(page, lambda: "keys.txt is deleted." in text_of(page, "library"))
        page.refresh()  # who leaves the page does not undo it
        wait(page, lambda: len(server.get("/h2o/library")["texts"]) < len(kept))
        left = server.get("/h2o/library")["texts"]
        assert any(text["name"].startswith("Of another") for text in left)


def test_only_questions_need_the_api_key(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path / "log", "demo", *OPTIONS, "--api-key", "k") as server:
        paths = {"/": 200, "/app/main.js": 200, "/props": 401, "/application": 401}
        paths["/app/../props"] = 404
        assert {path: server.request("GET", path)[0] for path in paths} == paths
        browser.get(f"http://127.0.0.1:{server.port}/")
        for key, shown in ("wrong", "key-value"), ("k", "key-refused"):
            wait(browser, lambda shown=shown: element(browser, shown).is_displayed())
            element(browser, "key-value").send_keys(key + "\n")
        wait_for_server(browser)
        browser.get("about:blank")


def test_nothing_runs_or_is_fetched_but_the_page(page: Any, tmp_path: Path) -> None:
    read(page, tmp_path / "a.pdf", READ["a.pdf"][0])
    wait(page, lambda: "tokens" in text_of(page, "size"))
    fetched = page.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert any("h2o/document" in name for name in fetched)
    assert all(name.startswith((page.current_url, "data:")) for name in fetched)
    violate = """
        const done = arguments[0], found = [];
        document.addEventListener("securitypolicyviolation", ({effectiveDirective}) => {
            if (found.push(effectiveDirective) === 3) done(found);
        });
        document.body.append(Object.assign(document.createElement("script"), {textContent: "document.title = 'run'"}));
        document.body.append(Object.assign(document.createElement("img"), {src: "https://example.org/"}));
        fetch("https://example.org/").catch(() => {});
    """
    assert sorted(page.execute_async_script(violate)) == ["connect-src", "img-src", "script-src-elem"]


def dictate(page: Any, text: str, max_tokens: int = 999) -> None:
    page.execute_script(f"window.grammar = 'root ::= ' + {json.dumps(json.dumps(text))}; maxTokens = {max_tokens}")


ATTACKS = """
<script>document.title = 'run'</script> <img src=x onerror="document.title='run'"> <svg/onload=document.title='run'>
<iframe srcdoc="<script>parent.document.title='run'</script>"></iframe> <style>body{display:none}</style>
<form action=//example.org><input name=a><button>b</button></form> <a href="javascript:document.title='run'">c</a>

Text <b onclick=document.title='run'>bold</b> <a href="javascript:document.title='run'">c</a>
[d](javascript:document.title='run') [e](JaVa&#115;cript:document.title='run') [f](data:text/html,<b>) [g](vbscript:x)
![h](https://example.org/i.png) <https://example.org/j> [k](https://example.org "\" onmouseover=document.title='run' ")
<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=x onerror=document.title='run'&gt;">

```"><img src=x onerror=document.title='run'>
<b>l</b>
```
"""


def test_nothing_executable_gets_through(page: Any, tmp_path: Path) -> None:
    """What a document or an answer has of HTML is text."""
    read(page, tmp_path / "markup.txt", ATTACKS + DOCUMENT)
    dictate(page, ATTACKS)
    get_answers(page, "<b>k07=</b>", 1)
    assert page.title == "h2o-llama"
    assert "<b>k07=</b>" in text_of(page, "turns")
    assert "<script>document.title" in said(page)
    made = """return [...document.querySelectorAll(".answer .text :not(button)")].flatMap((found) =>
        [found.tagName, ...found.getAttributeNames(), ...found.href ? [found.href] : []]);"""
    links = {"https://example.org/j", "https://example.org/"}
    assert set(page.execute_script(made)) == {"DIV", "P", "BR", "A", "PRE", "CODE", "href", "target", "rel"} | links


def test_an_answer_is_markdown(page: Any) -> None:
    """While it grows, the blocks before its end stay the same elements. In a narrow window the panels are folded."""
    page.execute_script("""
        new MutationObserver(() => { window.firstBlock ??= document.querySelector(".answer div:has(h4):has(+ div)"); })
            .observe(document.getElementById("turns"), {childList: true, subtree: true});
    """)
    dictate(page, "# Title\n\nSee `a` and **b**:\n\n- one\n- two\n\n```python\nprint(1)\n```\n\n|a|b|\n|-|-|\n|1|2|\n")
    get_answers(page, "What?", 1)
    tags = "return [...document.querySelectorAll('.answer .text *')].map((made) => made.tagName).join(' ')"
    blocks = "DIV H4 DIV P CODE STRONG DIV UL LI LI DIV PRE BUTTON CODE DIV TABLE THEAD TR TH TH TBODY TR TD TD"
    assert page.execute_script(tags) == blocks
    panels = "return [...document.querySelectorAll('details:has(h2)')].map((panel) => panel.open)"
    for width, is_open in ((400, [False, False]), (1280, [True, True])):
        page.set_window_size(width, 900)
        wait(page, lambda is_open=is_open: page.execute_script(panels) == is_open)
    assert page.execute_script("return firstBlock.isConnected")
    page.execute_script("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    for selector, text in ((".text .copy", "print(1)\n"), (".answer > .copy", "# Title")):
        click(page, selector)
        assert page.execute_script("return copied").startswith(text)
