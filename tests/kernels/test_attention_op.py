"""The attention operator, against float64 in NumPy, with every kernel that this machine has, and CUDA's in software."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attention_cases import COLUMN_SUMS, NO_SUMS, QUERY_SUMS, Case, Problem
from compare import assert_all_equal, case
from cuda_in_software import IS_SOFTWARE, running
from kernels import CUDA
from pairwise import all_pairs

Array = NDArray[Any]

# Each way in which a kernel computes attention, the CPU's names for them. All that follows holds for each.
WAYS = {
    "in place": Case(3, 300, 3, sums=NO_SUMS),
    "in place, sums of queries": Case(4, 500, 3, sums=QUERY_SUMS, has_limits=True),
    "in place, lists": Case(4, 200, sums=NO_SUMS, n_further=150, tile=2, offset=1),
    "packed": Case(45, 30, has_limits=True),
    "packed, sums of queries": Case(24, 90, 3, sums=QUERY_SUMS),
    "packed, lists": Case(50, 30, n_further=40, tile=20, offset=7),
    "packed, 8 bits": Case(50, 310, type="q8_0", n_further=300, tile=20, offset=7, has_limits=True),
    "packed in blocks": Case(13, 4095, d_k=32, d_v=64, sums=NO_SUMS),
}

# Sizes at which something else begins.
SIZES = {
    "a block of keys": Case(1, 127, 1, 16, 48, n_head_kv=1, sums=NO_SUMS),
    "one key more": Case(1, 128, 1, sums=NO_SUMS, type="f16", has_sinks=True),
    "many keys": Case(1, 2999, 7, sums=NO_SUMS, type="f16", has_sinks=True, scale=3.0),
    "many keys, sums": Case(5, 1495, 2, type="f16", has_sinks=True, scale=3.0),
    "many keys of large heads": Case(1, 299, 16, 576, 512, type="f16", has_sinks=True),
    "many keys in 8 bits": Case(1, 2999, 7, type="q8_0", sums=NO_SUMS, scale=3.0, n_further=150, tile=2, offset=1),
    "sums over large heads in 8 bits": Case(2, 261, 9, 160, 96, 3, type="q8_0", sums=QUERY_SUMS, softcap=30.0),
    "many keys, sums of queries": Case(1, 1499, 3, sums=QUERY_SUMS, n_further=30, has_limits=True),
    "a large group, lists": Case(3, 57, 71, sums=QUERY_SUMS, n_further=30, has_limits=True),
    "logits of 100": Case(100, 30, d_k=32, scale=25.0),
    "logits of -100": Case(100, 30, d_k=32, scale=-25.0),
    "fewer keys than queries": Case(40, -31, sees="all"),
    "a prompt": Case(200, 64, 2, 128, 128, rows="in order", has_limits=True, n_further=96, tile=64),
    "long lists": Case(50, 30, n_further=700, tile=20, offset=7, type="f16"),
    "one list": Case(300, 0, n_head_kv=1, n_further=40, tile=2**31 - 1, offset=0, type="f16"),
}
# Too large for CUDA in software.
LARGE = {
    "a list for each query": Case(200, 0, 3, n_further=40, tile=1, type="f16"),
    "one query": Case(1, 12_286, 3, n_head_kv=3, sums=NO_SUMS),
    "8 KV heads": Case(2, 700, 2, 128, 128, n_head_kv=8, sums=NO_SUMS),
    "one row in blocks": Case(1, 4500, 1, 40, 24, sums=NO_SUMS),
    "blocks of odd sizes": Case(40, 4100, 3, 33, 100, sums=NO_SUMS, has_sinks=True, softcap=1.5, sees="all"),
    "rows in two parts": Case(66, 4096, 16, 16, 16, n_head_kv=1, sums=NO_SUMS),
    "packed, sums of queries": Case(1, 4200, 16, sums=QUERY_SUMS, n_further=30, has_limits=True),
    "packed, lists": Case(20, 4200, n_head_kv=1, d_k=32, d_v=32, n_further=40, has_sinks=True, softcap=1.5),
    "as many items as there may be": Case(1024, 0, 4, d_k=16, d_v=16, n_head_kv=1),
    "a long memory": Case(300, 2100, 2, 128, 128, n_head_kv=1, scale=3.0),
    "tiles of fewer rows": Case(20, 200_000, 2, 16, 16, n_head_kv=1),
}

# Every two of these values meet, where they can be combined. Of a pair (least, most) any number is taken.
AXES: dict[str, list[Any]] = {
    "d": [
        *((1, 256), (2, 2), (15, 242), (31, 31), (33, 224), (40, 217), (64, 64), (32, 160), (96, 96), (127, 130)),
        *((128, 128), (100, 157), (192, 128), (255, 2), (256, 256), (300, 570), (576, 512), (576, 257)),
    ],
    "group": [1, 2, 3, 7, 16],
    "n_head_kv": [1, 2, 3],
    "n_q": [(1, 1), (2, 5), (6, 16), (17, 33), (34, 70)],
    "memory": [(0, 0), (1, 31), (32, 32), (33, 300)],
    "type": ["f32", "f16", "bf16", "quantized"],
    "sums": [NO_SUMS, COLUMN_SUMS, QUERY_SUMS],
    "sees": ["causal", "all", "sorted"],
    "rows": ["shuffled", "ascending", "repeated", "in order"],
    "has_limits": [False, True],
    "has_sinks": [False, True],
    "softcap": [0.0, 0.3, 2.0, 30.0],
    "scale": [1.7, -0.5],
    "n_further": [(0, 0), (1, 1), (2, 40), (41, 300)],
    "tile": [(1, 1), (2, 15), (16, 16), (17, 80), (1000, 1000)],
    "offset": [(0, 0), (1, 79)],
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Case:
    if request.param == "packed in blocks" and request.node.callspec.params.get("kernel") == CUDA:
        pytest.skip("CUDA has no such blocks, and is slow in software")
    return WAYS[request.param]


def sizes_of(kernel: str) -> dict[str, Case]:
    return SIZES if kernel == CUDA else SIZES | {f"{name}, large": large for name, large in LARGE.items()}


class TestEqualsNumpy:
    def test_ways(self, kernel: str, way: Case) -> None:
        Problem(way).check(kernel)

    def test_sizes(self, kernel: str) -> None:
        for name, sizes in sizes_of(kernel).items():
            with case(name=name):
                Problem(sizes).check(kernel)

    @pytest.mark.parametrize("part", range(4))
    def test_every_two_together(self, kernel: str, part: int) -> None:
        """The CPU's kernels have them twice, with other numbers."""
        choices = all_pairs(**AXES) * (1 if kernel == CUDA else 2)
        for seed, values in list(enumerate(choices))[part::4]:
            choice, rng = {**values}, np.random.default_rng(seed)
            d_k, d_v = choice.pop("d")
            drawn = ("n_q", "memory", "n_further", "tile", "offset")
            choice |= {name: int(rng.integers(*choice[name], endpoint=True)) for name in drawn}
            if choice["type"] == "quantized":
                types = ["q8_0"] if kernel == CUDA else ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"]
                choice["type"] = "f16" if d_k % 32 or d_v % 32 else str(rng.choice(types))
            most = (10_000 if kernel == CUDA else 40_000) // (choice["group"] * (d_k + d_v))
            choice["n_q"] = min(choice["n_q"], 1 + most)
            one = Case(**choice, d_k=d_k, d_v=d_v, seed=seed)
            with case(case=one):
                Problem(one).check(kernel)


class TestSameBits:
    def test_on_any_number_of_threads(self, kernel: str, way: Case) -> None:
        """CUDA's: in any order."""
        problem = Problem(way)
        want = problem.attend(kernel, n_threads=1)
        if kernel == CUDA:
            with running("shuffled"):
                assert_all_equal(problem.attend(kernel), want)
        for n_threads in (2, 3, 8) if kernel != CUDA else ():
            assert_all_equal(problem.attend(kernel, n_threads=n_threads), want)

    @pytest.mark.parametrize("name", ["packed", "packed, lists", "in place, sums of queries"])
    def test_without_sums(self, isa: str, name: str) -> None:
        problem = Problem(WAYS[name])
        want = problem.attend(isa)
        assert_all_equal(problem.attend(isa, NO_SUMS)._replace(sums=want.sums), want)

    @pytest.mark.parametrize("name", ["packed", "packed, lists"])
    def test_for_queries_alone(self, kernel: str, name: str) -> None:
        """A list's queries, one query, queries of two lists."""
        problem = Problem(replace(WAYS[name], n_q=150, tile=40, offset=13))
        want = problem.attend(kernel)
        for start, end in ((0, 27), (27, 67), (77, 78), (149, 150), (50, 80), (20, 130)):
            with case(start=start, end=end):
                got = problem.of_queries(start, end).attend(kernel)
                part = want._replace(o=want.o[start:end], m=want.m[..., start:end], l=want.l[..., start:end])
                if kernel == CUDA and not IS_SOFTWARE:  # one warp's kernel may be compiled with other roundings
                    np.testing.assert_allclose(got.o, part.o, rtol=1e-5, atol=1e-6)
                else:
                    assert_all_equal(got._replace(sums=part.sums), part)


class TestNotFinite:
    def test_arrives_where_numpy_has_it(self, kernel: str, way: Case) -> None:
        """In a key or value it may reach more queries; in a query, only its own."""
        for bad, where in product([np.nan, np.inf, -np.inf], ["q", "k", "v", "further"]):
            with case(bad=bad, where=where):
                problem = Problem(way)
                rows, visible = problem.keys()
                by_some = np.flatnonzero(visible[1].any(axis=0) & ~visible[1].all(axis=0))
                if where == "q":
                    problem.q[2, way.n_q // 2, 7] = bad
                elif where == "further":
                    if way.n_further == 0:
                        continue
                    problem.k[:, rows[1, by_some[-1]], 7] = bad
                    problem.v[:, rows[1, by_some[-1]], 7] = bad
                else:
                    getattr(problem, where)[1, rows[1, by_some[0]], 7] = bad
                want = problem.reference(kernel).o
                got = problem.attend(kernel).o
                odd = ~np.isfinite(want).all(axis=-1)
                assert odd.any() or where == "k"
                assert not np.isfinite(got[odd]).all(axis=-1).any()
                if where == "q":
                    np.testing.assert_allclose(got[~odd], want[~odd], atol=0.01)

    def test_logits_of_minus_infinity(self, kernel: str, way: Case) -> None:
        """All keys of one query, and some keys for all queries."""
        if kernel == "amx" or way.type == "q8_0":
            pytest.skip("AMX's two parts of an infinite number are NaN, and Q8_0 has none")
        problem = Problem(way)
        q, k = problem.q, problem.k
        q[..., :2], k[..., :2] = 1, 1
        q[1, 2, 1] = -np.inf
        k[:, 3::5, 0] = -np.inf
        got = problem.check(kernel)
        assert got.m[1, 2] == -np.inf
        assert got.l[1, 2] == 0
        assert not got.o[2, 1].any()

    def test_what_no_query_sees_is_not_read(self, kernel: str, way: Case) -> None:
        """Rows that are not named, and padding, as of a decode step; the first queries may see nothing at all."""
        for n_seen in (0, 1, 5, 129):
            with case(n_seen=n_seen):
                problem = Problem(replace(way, has_sinks=False))
                problem.first = np.where(np.arange(way.n_k) < n_seen, 1, way.n_q)
                got = problem.check(kernel)
                if way.n_further == 0:
                    assert not got.o[0].any()
                    assert (got.m[..., 0] == -np.inf).all()
                rows, visible = problem.keys()
                spoiled = problem.copied()
                for h in range(way.n_head_kv):
                    unseen = np.setdiff1d(np.arange(problem.k.shape[1]), rows[h, visible[h].any(axis=0)])
                    # AMX multiplies whole groups of 32 keys, integers have a scale for 128: NaN spoils them
                    large = 1e6 if way.type == "q8_0" else 1e30 if kernel == "amx" else np.nan
                    spoiled.k[h, unseen] = spoiled.v[h, unseen] = large
                problem.assert_close(spoiled.attend(kernel), got, kernel)


class TestExtremes:
    def test_logits_of_any_size(self, kernel: str, way: Case) -> None:
        """The kernel's own largest logits decide which weights remain. Products are exact, and ties are."""
        sizes = (
            product(("f16", "bf16"), (-100, -20, 20, 100), ("q",))
            if kernel == CUDA
            else product(("f32",), (-100, -20, 7, 13, 50, 100, 123), ("q", "k", "scale"))
        )
        for type, power, through in sizes:
            with case(type=type, power=power, through=through):
                problem, factor = Problem(replace(way, type=type)), np.float32(2.0**power)
                q, k, rng = problem.q, problem.k, problem.rng
                q[...], k[...] = 0, 0
                q[..., 0] = rng.choice([-1.0, -0.5, 0.5, 1.0], q.shape[:-1]) * (factor if through == "q" else 1)
                k[..., 0] = rng.integers(-8, 9, k.shape[:-1]) / 8 * (factor if through == "k" else 1)
                problem.scale = float(factor) if through == "scale" else 1.0
                problem.v[...] = rng.integers(-64, 65, problem.v.shape) / 64
                got, want = problem.attend(kernel), problem.reference(kernel)
                np.testing.assert_array_equal(got.m, want.m)
                np.testing.assert_allclose(got.l, want.l, rtol=1e-6)
                problem.assert_close(got, want, kernel, size=0)

    def test_sinks(self, kernel: str, way: Case) -> None:
        """All the weight, or none of it; all that a query sees, or no sink (-inf). NaN reaches its own head only."""
        for sinks in ([-np.inf], [1e30, -1e30, 90, -90], [0.5, -3, 7, -np.inf], [0, np.nan, 1, 2], [0, np.inf, 1, 2]):
            with case(sinks=sinks):
                problem = Problem(replace(way, has_limits=False))
                problem.sinks = np.resize(np.float32(sinks), problem.q.shape[0])
                if np.isfinite(np.maximum(sinks, 0)).all():
                    problem.first = problem.first.clip(1)  # query 0 sees lists alone
                got, want = problem.attend(kernel), problem.reference(kernel)
                odd = ~np.isfinite(problem.sinks) & (problem.sinks != -np.inf)
                assert not np.isfinite(got.l[odd]).any()
                got, want = (x._replace(o=x.o[:, ~odd], m=x.m[~odd], l=x.l[~odd]) for x in (got, want))
                problem.assert_close(got, want, kernel)

    def test_caps(self, kernel: str, way: Case) -> None:
        """So small that all logits are as good as equal, so large that it changes nothing; logits beyond it."""
        for softcap, size in [(1e-30, 1.0), (1e-3, 1.0), (1e9, 1.0), (5.0, 1e3), (5.0, 1e15)]:
            if kernel == CUDA and softcap == 1e9:  # tanh of so little is rounded
                continue
            with case(softcap=softcap, size=size):
                problem = Problem(way).changed(softcap=softcap)
                problem.q *= np.float32(size)
                got = problem.check(kernel)
                assert np.abs(got.m[np.isfinite(got.m)]).max() <= np.float32(softcap)
