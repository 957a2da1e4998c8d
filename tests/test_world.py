"""World and the default world, beyond what the contract says about collectives."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import farandole
from farandole import errors
from farandole.world import World, loopback_worlds

Ranks = Callable[..., list[Any]]


def test_registered_memory_is_zeroed_reused_and_outlives_the_world() -> None:
    (world,) = loopback_worlds(1)
    a = world.empty(1 << 20)
    where = a.ctypes.data
    assert where % 4096 == 0 and not a.any()
    a[:] = 7
    del a
    gc.collect()
    b = world.empty(1 << 20)
    assert b.ctypes.data == where and not b.any()
    world.shutdown()
    b[:] = 1
    assert b.sum() == 1 << 20


def test_too_much_registered_memory_is_a_memory_error() -> None:
    (world,) = loopback_worlds(1)
    with pytest.raises(MemoryError, match="FARANDOLE_ARENA_BYTES"):
        world.empty(1 << 50)
    world.shutdown()


@pytest.mark.parametrize("ranks_given", [[], [0, 0], [5], [-1]])
def test_bad_process_sets_are_refused_at_once(ranks_given: list[int]) -> None:
    (world,) = loopback_worlds(1)
    with pytest.raises(ValueError, match="different ranks between 0 and 0"):
        world.add_process_set(ranks_given)
    world.shutdown()


def test_ranks_that_disagree_about_a_process_set(ranks: Ranks) -> None:
    def body(world: World) -> str:
        with pytest.raises(errors.MismatchError) as caught:
            world.add_process_set([0, world.rank] if world.rank else [0])
        return str(caught.value)

    first, second = ranks(2, body)
    assert first == second and "rank 0 has (0,), rank 1 has (0, 1)" in first


def test_a_name_in_flight_is_refused_and_the_first_goes_on(ranks: Ranks) -> None:
    def body(world: World) -> None:
        a, b = np.ones(4), np.ones(4)

        def submit(x: np.ndarray) -> Any:
            return world.submit(
                "allreduce", name="twice", process_set=world.world_set, dtype="float64", shape=(4,),
                input=x.ctypes.data, output=x.ctypes.data, keep=x,
            )  # fmt: skip

        if world.rank == 0:
            first, second = submit(a), submit(b)
            with pytest.raises(ValueError, match="still in flight"):
                second.wait(30)
        else:
            first = submit(a)
        first.wait(30)
        assert a[0] == 2

    ranks(2, body)


def test_a_wait_can_end_before_the_operation(ranks: Ranks) -> None:
    def body(world: World) -> None:
        x = np.ones(3)
        if world.rank == 0:
            handle = world.submit(
                "allreduce", name="slow", process_set=world.world_set, dtype="float64", shape=(3,),
                input=x.ctypes.data, output=x.ctypes.data, keep=x,
            )  # fmt: skip
            with pytest.raises(TimeoutError):
                handle.wait(0.05)
            assert not handle.done()
            world.add_process_set([0])
            handle.wait(30)
        else:
            world.add_process_set([0])
            world.submit(
                "allreduce", name="slow", process_set=world.world_set, dtype="float64", shape=(3,),
                input=x.ctypes.data, output=x.ctypes.data, keep=x, sync=True,
            ).wait(30)  # fmt: skip
        assert x[0] == 2

    ranks(2, body)


def test_nothing_without_init() -> None:
    assert not farandole.is_initialized()
    import farandole.numpy as fd

    with pytest.raises(errors.NotInitializedError, match="init"):
        fd.rank()
    farandole.shutdown()  # nothing to do


def test_what_happened_can_be_asked(ranks: Ranks) -> None:
    def body(world: World) -> None:
        x = np.ones(100_000)
        for _ in range(3):
            world.submit(
                "allreduce", name="x", process_set=world.world_set, dtype="float64", shape=x.shape,
                input=x.ctypes.data, output=x.ctypes.data, keep=x, sync=True,
            ).wait()  # fmt: skip
        counters = world.counters()
        assert counters["operations"] == 3 and counters["bytes"] == 3 * x.nbytes and counters["failed"] == 0
        phases = [phase for _, phase, kind, name, _, _ in world.last_events() if (kind, name) == ("allreduce", "x")]
        assert phases == ["submit", "run", "done"] * 3
        assert set(world.transports().values()) == {"shm"}

    ranks(2, body, "shm")
