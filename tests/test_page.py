"""The server's page, in a headless Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from servers import Server, serving

if not (shutil.which("chromedriver") and (shutil.which("chromium") or shutil.which("google-chrome"))):
    pytest.skip("there is no Chromium with its chromedriver here", allow_module_level=True)
webdriver = pytest.importorskip("selenium.webdriver")

CHUNK = 256
DOCUMENT = "".join(f"k{i:02}={7919 * i % 10_000:04}\n" for i in range(100))
# The demo model would talk on and on.
SHORT_ANSWERS = """
const original = window.fetch;
window.maxTokens = 8;
window.asked = [];
window.fetch = (path, options) => {
    const body = path === "v1/chat/completions" ? {...JSON.parse(options.body), max_tokens: window.maxTokens} : null;
    if (body) window.asked.push(body.messages);
    return original(path, body ? {...options, body: JSON.stringify(body)} : options);
};
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("page") / "log"
    options = ["--chunk", str(CHUNK), "--local", "30", "--heavy", "30", "--parallel", "2", "--n-ctx", "4096"]
    with serving(log, "demo", *options) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SHORT_ANSWERS})
    yield driver
    driver.quit()


@pytest.fixture
def page(browser: Any, server: Server) -> Any:
    server.wait_until_idle()
    browser.get(f"http://127.0.0.1:{server.port}/")
    wait(browser, lambda: "chunks of 256 tokens" in text_of(browser, "settings"))
    return browser


def wait(browser: Any, condition: Callable[[], Any]) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60, 0.05).until(lambda _: condition())


def element(browser: Any, name: str) -> Any:
    return browser.find_element("id", name)


def text_of(browser: Any, name: str) -> str:
    text: str = element(browser, name).text
    return text


def read(page: Any, path: Path, text: str | bytes = DOCUMENT) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    element(page, "file").send_keys(str(path))


def ask(page: Any, question: str) -> None:
    element(page, "question").send_keys(question + "\n")


def wait_for_answers(page: Any, n: int) -> list[str]:
    """What is said of each answer: how much was read."""

    def facts() -> list[str]:
        return [fact.text for fact in page.find_elements("css selector", "#turns .faint")]

    wait(page, lambda: (len(facts()) == n and element(page, "send").is_enabled()) or text_of(page, "error"))
    assert text_of(page, "error") == ""
    return facts()


def test_a_document_is_read_and_asked(page: Any, server: Server, tmp_path: Path) -> None:
    read(page, tmp_path / "keys.txt")
    wait(page, lambda: text_of(page, "size") == "900 tokens")
    ask(page, "k07=")
    (first,) = wait_for_answers(page, 1)
    assert first.startswith("Read 1,0")
    assert "known from before" not in first

    wait(page, lambda: element(page, "tokens").is_displayed())
    layer = element(page, "layer").get_attribute("value")
    (slot,) = [i for i in (0, 1) if server.get(f"/slots/{i}/h2o")["n_tokens"] > 0]
    found = server.get(f"/slots/{slot}/h2o?layer={layer}")
    kept = {position for head in found["memory_set"] for position in head}
    marked = page.find_elements("css selector", "#tokens span")
    assert {int(span.get_attribute("title").split()[1].rstrip(":")) for span in marked} == kept
    assert "per KV head" in text_of(page, "kept")
    assert DOCUMENT[:70] in page.execute_script("return document.getElementById('tokens').textContent")

    ask(page, "k31=")
    second = wait_for_answers(page, 2)[1]
    assert "tokens were known from before, which saved about" in second
    assert int(second.split()[1]) < 200


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
    ask(page, "k31=")
    wait_for_answers(page, 1)


def test_a_new_conversation_knows_nothing_of_the_one_before(page: Any, server: Server, tmp_path: Path) -> None:
    """Whose answer was still coming."""
    read(page, tmp_path / "keys.txt")
    wait(page, lambda: text_of(page, "size") == "900 tokens")
    page.execute_script("window.maxTokens = 1000")
    for n in range(2):
        ask(page, "k07=")
        wait(page, lambda: "Answer" in text_of(page, "turns"))
        page.execute_script("arguments[0].click()", element(page, "again"))  # it moves while the answer comes
        wait(page, lambda: element(page, "send").is_enabled())
        assert text_of(page, "turns") == ""
        assert len(page.execute_script("return turns")) == 0, n
    page.execute_script("window.maxTokens = 8")
    ask(page, "k31=")
    wait_for_answers(page, 1)
    roles = [[message["role"] for message in messages] for messages in page.execute_script("return asked")]
    assert roles == [["system", "user"]] * 3


def test_what_is_wrong_is_said(page: Any, tmp_path: Path) -> None:
    read(page, tmp_path / "binary.txt", b"a\0b")
    wait(page, lambda: "binary.txt is no text" in text_of(page, "error"))
    read(page, tmp_path / "too long.txt", DOCUMENT * 6)
    wait(page, lambda: text_of(page, "size") == "5,400 tokens")
    ask(page, "k07=")
    wait(page, lambda: "context" in text_of(page, "error"))
    assert element(page, "send").is_enabled()


def test_markup_in_a_text_is_text(page: Any, tmp_path: Path) -> None:
    read(page, tmp_path / "markup.txt", "<img src=x onerror=document.title='run'> " + DOCUMENT)
    ask(page, "<b>k07=</b>")
    wait_for_answers(page, 1)
    wait(page, lambda: element(page, "tokens").is_displayed())
    assert page.title == "h2o-llama"
    assert "<b>k07=</b>" in text_of(page, "turns")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_and_dark(page: Any, scheme: str) -> None:
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") <= 360
        red = int(page.execute_script("return getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"))
        assert (red < 80) == (scheme == "dark")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
