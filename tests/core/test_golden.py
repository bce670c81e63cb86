"""Files of version 0.2.0: every later version reads them as they were meant, or refuses them by their version.

They are of the demo model. `python tests/core/test_golden.py FOLDER` writes them anew, where a version reads no
older ones.
"""

import sys
import zipfile
from pathlib import Path

import numpy as np

from h2o_llama import H2OConfig, H2OError, Library, Llama, demo_model_path
from h2o_llama.library._texts import key_of

FOLDER = Path(__file__).parent / "golden"
TEXT = ("k17=4829;\n# a comment\nk23=1357;\n# another\n" * 7)[:264]
SIZES = {"chunk_size": 16, "local_window": 2, "heavy_budget": 4, "sink_tokens": 1, "lookup_budget": 0}
CONFIG = H2OConfig(**SIZES, evict=True, research={"positions": "text"})
KEY = "1ccc35a549bc4f2c"
"""Of the library's text: it has the version of llama.cpp, whose states may differ, and all settings."""


def open_demo(library: Library | None = None) -> Llama:
    return Llama(demo_model_path(), n_ctx=512, n_threads=1, h2o=CONFIG, type_k="q4_0", type_v="q4_0", library=library)


def memory_sets(llm: Llama) -> np.ndarray:
    return np.array([llm.kv.memory_indices(layer) for layer in llm.kv.layers])


def assert_goes_on_as_before(llm: Llama) -> None:
    """In its open chunk. Logits differ in their last bits between CPUs."""
    assert llm.tokens.tolist() == llm.tokenize(TEXT)
    np.testing.assert_array_equal(memory_sets(llm), np.load(FOLDER / "sets.npy"))
    llm.eval(llm.tokenize("k17?"))
    expected = np.load(FOLDER / "logits.npy")
    np.testing.assert_allclose(llm.logits, expected, atol=0.02 * np.abs(expected).max())


def test_a_snapshot() -> None:
    """Its state is what `llama_state_seq_get_data` gives, and what a server's slot file has after its tokens."""
    with open_demo() as llm:
        try:
            llm.load(FOLDER / "snapshot")
        except (H2OError, ValueError) as error:
            assert "version" in str(error)  # noqa: PT017
            return
        assert_goes_on_as_before(llm)


def test_a_text_in_a_library(tmp_path: Path) -> None:
    """It is listed; and read, where the version of llama.cpp is the same."""
    with zipfile.ZipFile(FOLDER / "library.zip") as file:
        file.extractall(tmp_path)
    library = Library(tmp_path)
    try:
        (text,) = library.texts()
    except (H2OError, ValueError) as error:
        assert "format" in str(error)  # noqa: PT017
        return
    assert (text.n_tokens, text.name) == (264, "k17=4829; # a comment k23=1357; # anothe…")
    with open_demo(library) as llm:
        llm.eval(llm.tokenize(TEXT))
        is_known = key_of(llm._state.engine.origin) == KEY
        assert (llm.n_cached > 250) == is_known
        if is_known:
            assert_goes_on_as_before(llm)


def write(folder: Path) -> None:
    library = Library(folder / "library")
    with open_demo(library) as llm:
        llm.eval(llm.tokenize(TEXT))
        llm.save(folder / "snapshot")
        print("KEY =", key_of(llm._state.engine.origin))
        np.save(folder / "sets.npy", memory_sets(llm))
    library.flush()
    with open_demo() as llm:
        llm.load(folder / "snapshot")
        llm.eval(llm.tokenize("k17?"))
        np.save(folder / "logits.npy", llm.logits)
    with zipfile.ZipFile(folder / "library.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for path in (path for path in library.folder.rglob("*") if path.is_file()):
            file.write(path, path.relative_to(library.folder))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
