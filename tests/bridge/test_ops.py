"""Names, refusals and handles: what `Ops` adds to the engine. Results are in tests/contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import farandole.numpy as fd
from farandole.bridge.ops import op_name
from farandole.errors import MismatchError
from farandole.world import World


@pytest.mark.parametrize(
    ("op", "name"), [(fd.Average, "average"), (fd.Sum, "sum"), ("MIN", "min"), (fd.Product, "product")]
)
def test_op_names(op: int | str, name: str) -> None:
    assert op_name(op) == name


@pytest.mark.parametrize("op", [6, -1, True, "mean", 1.0])
def test_unknown_ops(op: Any) -> None:
    with pytest.raises(ValueError, match="unknown reduction"):
        op_name(op)


REFUSED: dict[str, tuple[type[Exception], str, Callable[[Any], object]]] = {
    "dtype": (ValueError, "not supported", lambda o: o.allreduce(np.array(["a"]), name="x")),
    "not a tensor": (TypeError, "expected a tensor, got list", lambda o: o.allreduce([1.0], name="x")),
    "op": (ValueError, "unknown reduction", lambda o: o.allreduce(np.ones(2), name="x", op="mean")),
    "no order": (
        ValueError,
        "complex64 has no min",
        lambda o: o.allreduce(np.ones(2, "c8"), name="x", op="min"),
    ),
    "both": (ValueError, "either op or average", lambda o: o.allreduce(np.ones(2), True, "x", op=fd.Sum)),
    "group": (
        ValueError,
        "complex64 has no max",
        lambda o: o.grouped_allreduce([np.ones(2), np.ones(2, "c8")], name="x", op="max"),
    ),
    "scalar rows": (ValueError, "no rows", lambda o: o.allgather(np.array(1.0), name="x")),
    "root": (ValueError, "root rank 7 is not among", lambda o: o.broadcast(np.ones(2), 7, name="x")),
    "read-only": (
        ValueError,
        "read-only",
        lambda o: o.broadcast_(np.frombuffer(b"12345678", np.int64), 0, name="x"),
    ),
    "splits": (ValueError, "3 entries for 2 ranks", lambda o: o.alltoall(np.ones(4), [1, 2, 1], name="x")),
    "negative": (ValueError, "must not be negative", lambda o: o.alltoall(np.ones(4), [-1, 2], name="x")),
    "sum": (ValueError, "at most dimension 0 \\(4\\)", lambda o: o.alltoall(np.ones(4), [3, 2], name="x")),
    "uneven": (ValueError, "not divisible by the 2 ranks", lambda o: o.alltoall(np.ones(3), name="x")),
}
GOOD: dict[str, Callable[[Any], object]] = {
    "group": lambda o: o.grouped_allreduce([np.ones(2), np.ones(2)], name="x"),
    "scalar rows": lambda o: o.allgather(np.ones(1), name="x"),
    "root": lambda o: o.broadcast(np.ones(2), 0, name="x"),
    "read-only": lambda o: o.broadcast_(np.ones(1), 0, name="x"),
    "splits": lambda o: o.alltoall(np.ones(4), name="x"),
}
GOOD |= dict.fromkeys(("negative", "sum", "uneven"), GOOD["splits"])


@pytest.mark.parametrize("what", REFUSED)
def test_misuse_on_one_rank_is_a_mismatch_on_the_other(ranks: Callable[..., list[Any]], what: str) -> None:
    kind, text, bad = REFUSED[what]

    def body(world: World) -> None:
        ops = fd.ops(world)
        if world.rank == 0:
            with pytest.raises(kind, match=text):
                bad(ops)
        else:
            with pytest.raises(MismatchError, match=text):
                GOOD.get(what, lambda o: o.allreduce(np.ones(2), name="x"))(ops)
        ops.barrier()

    ranks(2, body)


def test_average_is_deprecated_but_works(ranks: Callable[..., list[Any]]) -> None:
    def body(world: World) -> list[float]:
        ops = fd.ops(world)
        x = np.array([float(world.rank)])
        # Warnings are switched for the process, not the thread: only one rank looks at them.
        if world.rank:
            return [ops.allreduce(x, op=o)[0] for o in (fd.Average, fd.Sum)]
        with pytest.warns(DeprecationWarning, match="use op=Average"):
            return [ops.allreduce(x, average=a)[0] for a in (True, False)]

    assert ranks(2, body) == [[0.5, 1.0]] * 2


def test_unnamed_operations_of_a_set_do_not_disturb_others(ranks: Callable[..., list[Any]]) -> None:
    def body(world: World) -> float:
        ops = fd.ops(world)
        some = world.add_process_set([0, 1])
        if some.included():
            assert ops.allreduce(np.array([world.rank]), op=fd.Sum, process_set=some)[0] == 1
        else:
            with pytest.raises(ValueError, match="rank 2 called allreduce on a process set it is not in"):
                ops.allreduce(np.array([1.0]), process_set=some)
        return float(ops.allreduce(np.array([1.0]), op=fd.Sum)[0])

    assert ranks(3, body) == [3.0] * 3


def test_a_set_of_another_world_is_refused(ranks: Callable[..., list[Any]]) -> None:
    foreign = ranks(1, lambda world: world.world_set)[0]

    def body(world: World) -> None:
        with pytest.raises(ValueError, match="not a process set of this world"):
            fd.ops(world).allreduce(np.ones(1), process_set=foreign)

    ranks(1, body)


def test_a_handle_gives_its_result_again(ranks: Callable[..., list[Any]]) -> None:
    def body(world: World) -> None:
        ops = fd.ops(world)
        handle = ops.allreduce_async(np.ones(3), op="sum", name="x")
        first = ops.synchronize(handle)
        assert ops.poll(handle) and ops.synchronize(handle) is first
        np.testing.assert_array_equal(first, np.full(3, 2.0))
        failing = ops.allreduce_async(np.ones(2 + world.rank), name="y")
        for _ in range(2):
            with pytest.raises(MismatchError):
                failing.wait()

    ranks(2, body)


def test_strided_arrays(ranks: Callable[..., list[Any]]) -> None:
    def body(world: World) -> None:
        ops = fd.ops(world)
        a = np.arange(24.0).reshape(4, 6) * (world.rank + 1)
        want = np.arange(24.0).reshape(4, 6) * 3
        view = a[::2, 1::2]
        np.testing.assert_array_equal(ops.allreduce(view, op="sum"), want[::2, 1::2])
        np.testing.assert_array_equal(ops.allreduce(a.T, op="sum"), want.T)
        rest = a.copy()
        assert ops.allreduce_(view, op="sum") is view
        np.testing.assert_array_equal(view, want[::2, 1::2])
        rest[::2, 1::2] = view
        np.testing.assert_array_equal(a, rest)

    ranks(2, body)


def test_registered_arrays(ranks: Callable[..., list[Any]]) -> None:
    def body(world: World) -> None:
        a = fd.zeros((3, 5), np.float64, world)
        a += world.rank + 1
        fd.ops(world).allreduce_(a, op="sum")
        np.testing.assert_array_equal(a, np.full((3, 5), 3.0))
        assert fd.empty(0, world=world).shape == (0,)

    ranks(2, body)
