"""`h2o-llama serve --mmproj`: where images may be. Answers about them: test_scenarios.py."""

import socket
from pathlib import Path
from typing import Any

import pytest

from projectors import image_part, picture, png
from servers import serving

pytestmark = pytest.mark.slow


def image(url: str) -> dict[str, Any]:
    """A message with an image that is elsewhere."""
    return {"role": "user", "content": [image_part(url)]}


def test_images_from_elsewhere(chat_model: Path, mmproj: Path, tmp_path: Path) -> None:
    """The server fetches nothing from the network, and reads only files of the folder that was named."""
    folder = tmp_path / "media"
    folder.mkdir()
    (folder / "a.png").write_bytes(png(picture(1)))
    (tmp_path / "b.png").write_bytes(png(picture(1)))
    options = [chat_model, "--threads", "1", "--n-ctx", "512", "--mmproj", mmproj, "--h2o", "off"]
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        serving(tmp_path / "log", *options, "--", "--media-path", folder) as server,
    ):
        listener.setblocking(False)
        port = listener.getsockname()[1]
        refused = {
            f"http://127.0.0.1:{port}/x.png": "fetches nothing",
            f"https://127.0.0.1:{port}/x.png": "fetches nothing",
            f"HTTP://127.0.0.1:{port}/x.png": "",
            f"ftp://127.0.0.1:{port}/x.png": "",
            "file://none.png": "does not exist",
            "file://../b.png": "not allowed",
        }
        for url, reason in refused.items():
            status, answer = server.request("POST", "/v1/chat/completions", {"messages": [image(url)]})
            assert (status, reason in answer["error"]["message"]) == (400, True), (url, answer)
        with pytest.raises(BlockingIOError):
            listener.accept()  # nobody was there
        assert server.chat([image("file://a.png")], 1)["usage"]["completion_tokens"] == 1
