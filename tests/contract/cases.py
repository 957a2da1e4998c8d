"""What every collective does, in any world, over any transport, for any tensor library.

Each case runs on every rank.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from farandole.bridge.ops import Adasum, Average, Max, Min, Ops, Product, Sum
from farandole.errors import MismatchError
from tests.contract.libraries import Library

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
REDUCIBLE = (*INTEGERS, *FLOATS, *COMPLEX, "bool")


@dataclass
class Rank:
    ops: Ops[Any]
    library: Library
    rank: int
    size: int

    def values(self, dtype: str, n: int, rank: int | None = None) -> np.ndarray:
        """Small whole numbers, different on each rank: sums of them are exact in every dtype."""
        r = self.rank if rank is None else rank
        v = (np.arange(n) * 3 + r * 2) % 5
        if dtype == "bool":
            return (v + np.arange(n)) % 3 == 0
        if dtype in COMPLEX:
            return (v + 1j * ((v + r) % 3)).astype(dtype)
        return v.astype("float32" if dtype == "bfloat16" else dtype)

    def tensor(self, dtype: str, n: int) -> Any:
        return self.library.make(self.values(dtype, n), dtype)

    def all_values(self, dtype: str, n: int) -> list[np.ndarray]:
        return [self.values(dtype, n, r) for r in range(self.size)]

    def same(self, tensor: Any, want: np.ndarray) -> None:
        got = self.library.read(tensor)
        assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
        np.testing.assert_array_equal(got, want.astype(got.dtype))


Case = Callable[[Rank, str, int], None]
CASES: dict[str, Case] = {}


def case(fn: Case) -> Case:
    CASES[fn.__name__] = fn
    return fn


def combine(op: int, values: list[np.ndarray]) -> np.ndarray:
    if values[0].dtype == bool:
        return np.logical_or.reduce(values) if op in (Sum, Max) else np.logical_and.reduce(values)
    ufunc = {Sum: np.add, Min: np.minimum, Max: np.maximum, Product: np.multiply}[op]
    return ufunc.reduce(values, dtype=values[0].dtype)  # type: ignore[no-any-return]


@case
def allreduce_sum(r: Rank, dtype: str, n: int) -> None:
    t = r.tensor(dtype, n)
    r.same(r.ops.allreduce(t, op=Sum), combine(Sum, r.all_values(dtype, n)))
    r.same(t, r.values(dtype, n))  # the input is untouched


@case
def allreduce_in_place(r: Rank, dtype: str, n: int) -> None:
    t = r.tensor(dtype, n)
    assert r.ops.allreduce_(t, op=Sum) is t
    r.same(t, combine(Sum, r.all_values(dtype, n)))


@case
def allreduce_average(r: Rank, dtype: str, n: int) -> None:
    total = combine(Sum, r.all_values(dtype, n))
    if dtype == "bool":
        want = total
    elif dtype in INTEGERS:
        want = np.trunc(total / r.size).astype(dtype)
    elif dtype in COMPLEX:
        want = (total.astype("complex128") * (1 / r.size)).astype(dtype)
    else:
        wide = np.float32 if dtype != "float64" else np.float64
        want = total.astype(wide) * wide(1 / r.size)
    want = r.library.read(r.library.make(want, dtype))  # rounded to the dtype
    got = r.library.read(r.ops.allreduce(r.tensor(dtype, n), op=Average))
    if dtype in INTEGERS or dtype == "bool":
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol={"float16": 1e-3, "bfloat16": 8e-3}.get(dtype, 1e-6))


@case
def allreduce_min_max_product(r: Rank, dtype: str, n: int) -> None:
    for op in (Product,) if dtype in COMPLEX else (Min, Max, Product):
        r.same(r.ops.allreduce(r.tensor(dtype, n), op=op), combine(op, r.all_values(dtype, n)))


@case
def allreduce_factors(r: Rank, dtype: str, n: int) -> None:
    if dtype == "bool":
        return
    got = r.ops.allreduce(r.tensor(dtype, n), op=Sum, prescale_factor=2.0, postscale_factor=3.0)
    r.same(got, combine(Sum, r.all_values(dtype, n)) * np.asarray(6).astype(r.values(dtype, 1).dtype))


def adaptive_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of two vectors, in float64."""
    aa, bb, ab = a @ a, b @ b, a @ b
    return a * (1 - (ab / (2 * aa) if aa else 0)) + b * (1 - (ab / (2 * bb) if bb else 0))


@case
def adasum(r: Rank, dtype: str, n: int) -> None:
    """Pairs, then pairs of pairs; ranks above the largest power of two are added to a partner first."""
    if dtype not in FLOATS:
        return
    values = [v.astype("float64") for v in r.all_values(dtype, n)]
    core = 1 << (r.size.bit_length() - 1)
    for extra in range(core, r.size):
        values[extra - core] = adaptive_sum(values[extra - core], values[extra])
    values = values[:core]
    while len(values) > 1:
        values = [adaptive_sum(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    got = r.library.read(r.ops.allreduce(r.tensor(dtype, n), op=Adasum)).astype("float64")
    rough = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-4}.get(dtype, 1e-10)
    np.testing.assert_allclose(got, values[0], rtol=rough, atol=rough)


@case
def broadcast(r: Rank, dtype: str, n: int) -> None:
    for root in {0, r.size - 1}:
        t = r.tensor(dtype, n)
        r.same(r.ops.broadcast(t, root), r.values(dtype, n, root))
        r.same(t, r.values(dtype, n))
        r.ops.broadcast_(t, root)
        r.same(t, r.values(dtype, n, root))


@case
def allgather_uneven(r: Rank, dtype: str, n: int) -> None:
    """Rank k gives k times n rows of 3, so that rank 0 gives none."""

    def rows(k: int) -> np.ndarray:
        return r.values(dtype, k * n * 3, k).reshape(k * n, 3)

    got = r.ops.allgather(r.library.make(rows(r.rank), dtype))
    r.same(got, np.concatenate([rows(k) for k in range(r.size)]))


@case
def reducescatter(r: Rank, dtype: str, n: int) -> None:
    """n rows of 2: the first n % size ranks get one row more."""
    want = combine(Sum, [v.reshape(n, 2) for v in r.all_values(dtype, 2 * n)])
    base, extra = divmod(n, r.size)
    start = r.rank * base + min(r.rank, extra)
    got = r.ops.reducescatter(r.library.make(r.values(dtype, 2 * n).reshape(n, 2), dtype), op=Sum)
    r.same(got, want[start : start + base + (r.rank < extra)])


@case
def alltoall_uneven(r: Rank, dtype: str, n: int) -> None:
    """Rank a sends (a + 2 b) % 3 * n rows to rank b."""

    def splits(a: int) -> list[int]:
        return [(a + 2 * b) % 3 * n for b in range(r.size)]

    def rows(a: int) -> np.ndarray:
        total = sum(splits(a))
        return r.values(dtype, total * 2, a).reshape(total, 2)

    got, received = r.ops.alltoall(r.library.make(rows(r.rank), dtype), splits=splits(r.rank))
    want = []
    for a in range(r.size):
        start = sum(splits(a)[: r.rank])
        want.append(rows(a)[start : start + splits(a)[r.rank]])
    r.same(got, np.concatenate(want))
    np.testing.assert_array_equal(r.library.read(received), [splits(a)[r.rank] for a in range(r.size)])


@case
def grouped(r: Rank, dtype: str, n: int) -> None:
    counts = [n, 1, 2 * n, 0, n + 3]
    got = r.ops.grouped_allreduce([r.tensor(dtype, k) for k in counts], op=Sum)
    for t, k in zip(got, counts, strict=True):
        r.same(t, combine(Sum, r.all_values(dtype, k)))


@case
def any_order(r: Rank, dtype: str, n: int) -> None:
    """Named requests started in a different order on every rank."""
    names = [f"t{i}" for i in range(12)]
    handles = {}
    for i in range(12):
        name = names[(i * 5 + r.rank * 7) % 12]
        handles[name] = r.ops.allreduce_async(r.tensor(dtype, n + int(name[1:])), op=Sum, name=name)
    for name in names:
        r.same(r.ops.synchronize(handles[name]), combine(Sum, r.all_values(dtype, n + int(name[1:]))))


@case
def bit_identical(r: Rank, dtype: str, n: int) -> None:
    """Sums that do round are the same bits on every rank."""
    if dtype not in FLOATS:
        return
    noise = np.random.default_rng(r.rank).standard_normal(n).astype("float32")
    mine = r.ops.allreduce(r.library.make(noise if dtype == "bfloat16" else noise.astype(dtype), dtype), op=Sum)
    everyone = r.library.read(r.ops.allgather(mine)).reshape(r.size, n)
    for other in everyone:
        assert other.tobytes() == everyone[0].tobytes()


@case
def mismatch(r: Rank, dtype: str, n: int) -> None:
    """The same error on every rank, naming tensor, ranks and values; the world goes on."""
    if r.size == 1:
        return
    odd = r.rank == r.size - 1
    other = "float32" if dtype != "float32" else "int32"
    attempts = {
        "dtype": lambda: r.ops.allreduce(r.tensor(other if odd else dtype, n), name="m.dtype", op=Sum),
        "shape": lambda: r.ops.allreduce(r.tensor(dtype, n + 1 if odd else n), name="m.shape", op=Sum),
        "op": lambda: r.ops.allreduce(r.tensor(dtype, n), name="m.op", op=Product if odd else Sum),
        "root": lambda: r.ops.broadcast(r.tensor(dtype, n), r.rank if odd else 0, name="m.root"),
    }
    for what, attempt in attempts.items():
        try:
            attempt()
        except MismatchError as error:
            text = str(error)
            assert f"m.{what}" in text and what in text, text
            assert "rank 0 has" in text and f"rank {r.size - 1} has" in text, text
            assert error.ranks == (0, r.size - 1)
        else:
            raise AssertionError(f"no error for a different {what}")
        allreduce_sum(r, dtype, n)


@case
def refusal(r: Rank, dtype: str, n: int) -> None:
    """Local misuse on one rank is an error there and a MismatchError with the reason elsewhere."""
    odd = r.rank == r.size - 1
    two: Any = "two" if odd else 2.0
    half: Any = 0.5 if odd else 0
    attempts = {
        "negative": lambda: r.ops.alltoall(r.tensor(dtype, r.size), splits=[-1 if odd else 1] * r.size, name="r.1"),
        "could not convert": lambda: r.ops.allreduce(r.tensor(dtype, n), name="r.2", op=Sum, prescale_factor=two),
        "root rank 99": lambda: r.ops.broadcast(r.tensor(dtype, n), 99 if odd else 0, name="r.3"),
        "0.5": lambda: r.ops.broadcast(r.tensor(dtype, n), half, name="r.4"),
        "expected a tensor": lambda: r.ops.allreduce("x" if odd else r.tensor(dtype, n), name="r.5", op=Sum),
        "no rows": lambda: r.ops.allgather(
            r.library.make(np.array(1), dtype) if odd else r.tensor(dtype, n), name="r.6"
        ),
    }
    for reason, attempt in attempts.items():
        try:
            attempt()
        except MismatchError as error:
            assert not odd and reason in str(error), error
        except (ValueError, TypeError) as error:
            assert odd and reason in str(error), error
        else:
            raise AssertionError(f"no error: {reason}")
        allreduce_sum(r, dtype, n)


@case
def process_sets(r: Rank, dtype: str, n: int) -> None:
    """Two sets at once, one of them without rank 0; roots are global ranks."""
    if r.size < 3:
        return
    world = r.ops.world
    evens = world.add_process_set(range(0, r.size, 2))
    odds = world.add_process_set(range(1, r.size, 2))
    mine = evens if r.rank % 2 == 0 else odds
    got = r.ops.allreduce(r.tensor(dtype, n), op=Sum, process_set=mine)
    r.same(got, combine(Sum, [r.values(dtype, n, k) for k in mine.ranks]))
    root = mine.ranks[-1]
    r.same(r.ops.broadcast(r.tensor(dtype, n), root, process_set=mine), r.values(dtype, n, root))
    r.ops.barrier()


@case
def join(r: Rank, dtype: str, n: int) -> None:
    """Rank k has k steps of data and then joins; the others' sums go on without it."""
    for step in range(r.rank):
        handles = [r.ops.allreduce_async(r.tensor(dtype, n + i), op=Sum, name=f"join.{step}.{i}") for i in range(3)]
        for i, handle in enumerate(handles):
            zeros = [np.zeros_like(r.values(dtype, n + i))] * (step + 1)
            rest = [r.values(dtype, n + i, k) for k in range(step + 1, r.size)]
            r.same(r.ops.synchronize(handle), combine(Sum, zeros + rest))
    assert r.ops.join() == r.size - 1
    r.ops.barrier()


@case
def registered_memory(r: Rank, dtype: str, n: int) -> None:
    view = r.library.over(r.ops.world.empty(max(1, n * 16)), dtype, n)
    r.library.write(view, r.values(dtype, n))
    r.ops.allreduce_(view, op=Sum)
    r.same(view, combine(Sum, r.all_values(dtype, n)))
    r.ops.broadcast_(view, 0)
    r.same(r.ops.allgather(view), np.concatenate([combine(Sum, r.all_values(dtype, n))] * r.size))


@case
def threads_share_a_world(r: Rank, dtype: str, n: int) -> None:
    """Several threads of a rank use named operations at once."""
    errors: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for i in range(4):
                got = r.ops.allreduce(r.tensor(dtype, n), op=Sum, name=f"thread{k}.{i}")
                r.same(got, combine(Sum, r.all_values(dtype, n)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
