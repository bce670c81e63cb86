"""H2O's CUDA backend, in software or on a GPU, besides the operators that run with every kernel's tests. Whole models:
test_devices.py."""

import sys
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from cuda_in_software import BACKEND, IS_SOFTWARE, registered
from h2o_llama import H2OConfig, Llama, _core, demo_model_path

pytestmark = [
    pytest.mark.skipif(IS_SOFTWARE and sys.platform != "linux", reason="the emulator is for Linux"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module", autouse=True)
def backend() -> Iterator[None]:
    with registered():
        yield


def test_max_rows(rng: np.random.Generator) -> None:
    for n in (1, 33, 1500):
        x = rng.standard_normal((2, 5, n)).astype(np.float32)
        x[0, 1, n // 2], x[1, 2] = np.nan, -np.inf
        np.testing.assert_array_equal(_core.ops_max_rows(x, "f32", BACKEND, 1), x.max(axis=-1, keepdims=True))


def test_auto_is_the_faster_attention() -> None:
    for n_ctx, h2o in ((16384, None), (16385, H2OConfig(chunk_size=2048))):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with Llama(demo_model_path(), n_ctx=n_ctx, n_gpu_layers=99) as llm:
                assert llm.h2o == h2o
        assert len(warned) == (h2o is None)
