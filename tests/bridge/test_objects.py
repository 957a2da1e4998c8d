"""Objects between ranks, and errors when they cannot travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import farandole.numpy as fd
from farandole.bridge.objects import allgather_object, broadcast_object
from farandole.world import World


class Stubborn:
    def __reduce__(self) -> Any:
        raise RuntimeError("I stay here")


def test_broadcast(ranks: Callable[..., list[Any]]) -> None:
    def body(world: World) -> Any:
        rank = world.rank
        mine = {"rank": rank, "f": lambda x: x + rank}
        return broadcast_object(fd.ops(world), mine, root_rank=1)

    for got in ranks(3, body):
        assert got["rank"] == 1 and got["f"](2) == 3


def test_allgather_of_different_sizes(ranks: Callable[..., list[Any]]) -> None:
    got = ranks(3, lambda world: allgather_object(fd.ops(world), "x" * 1000 * world.rank))
    assert got == [["", "x" * 1000, "x" * 2000]] * 3


def test_in_a_process_set_objects_come_in_its_order(ranks: Callable[..., list[Any]]) -> None:
    def body(world: World) -> Any:
        some = world.add_process_set([2, 0])
        return allgather_object(fd.ops(world), world.rank, process_set=some) if some.included() else None

    assert ranks(3, body) == [[0, 2], None, [0, 2]]


@pytest.mark.parametrize("root", [0, 1])
def test_an_object_that_cannot_be_pickled_is_an_error_everywhere(ranks: Callable[..., list[Any]], root: int) -> None:
    def body(world: World) -> str:
        ops = fd.ops(world)
        with pytest.raises(TypeError, match=f"rank {root} cannot pickle its object") as caught:
            broadcast_object(ops, Stubborn() if world.rank == root else 1, root_rank=root)
        with pytest.raises(TypeError, match="cannot pickle its object"):
            allgather_object(ops, Stubborn() if world.rank == root else 1)
        ops.barrier()  # the world goes on
        return str(caught.value)

    texts = ranks(2, body)
    assert "I stay here" in texts[1 - root]
