"""Gradients through collectives, against finite differences of the sum of all ranks' losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import farandole.torch as fd
from farandole.world import World

Ranks = Callable[..., list[Any]]
Tensor = torch.Tensor
Op = Callable[[Any, Tensor], Tensor]
EPSILON = 1e-4


def values(rank: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def splits(ops: Any) -> list[int]:
    return [2, 1] if ops.world.rank else [0, 3]


# name -> operation, Horovod's factor on the true gradient (n: ranks)
OPS: dict[str, tuple[Op, Callable[[int], float]]] = {
    "average": (lambda o, x: o.allreduce(x, prescale_factor=2.0, postscale_factor=0.5), lambda n: 1),
    "sum": (lambda o, x: o.allreduce(x, op=fd.Sum, prescale_factor=2.0), lambda n: 1),
    "min": (lambda o, x: o.allreduce(x, op=fd.Min, postscale_factor=3.0), lambda n: 1),
    "max": (lambda o, x: o.allreduce(x, op=fd.Max), lambda n: 1),
    "group": (
        lambda o, x: torch.cat([t.reshape(-1) for t in o.grouped_allreduce([x[:1], x[1:].t()])]),
        lambda n: 1,
    ),
    "allgather": (lambda o, x: o.allgather(x[: 1 + o.world.rank]), lambda n: 1 / n),
    "broadcast": (lambda o, x: o.broadcast(x, 1), lambda n: 1 / n),
    "alltoall": (lambda o, x: o.alltoall(x[:2]), lambda n: 1),
    "alltoall with splits": (lambda o, x: o.alltoall(x, splits(o))[0], lambda n: 1),
    "reducescatter": (lambda o, x: o.reducescatter(x), lambda n: n),
    "reducescatter sum": (
        lambda o, x: o.reducescatter(x, op=fd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        lambda n: n,
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_gradient(ranks: Ranks, name: str) -> None:
    op, factor = OPS[name]
    shape = (4, 2)

    def body(world: World) -> None:
        ops = fd.ops(world)
        x = values(world.rank, shape).requires_grad_()

        def loss(x: Tensor) -> Tensor:
            y = op(ops, x)
            return (y * values(10 + world.rank, tuple(y.shape))).sum()

        loss(x).backward()
        assert x.grad is not None
        numeric = torch.zeros(world.size, *shape, dtype=torch.float64)
        for rank in range(world.size):
            for i in range(numeric[0].numel()):
                two = []
                for sign in (1, -1):
                    moved = x.detach().clone()
                    if rank == world.rank:
                        moved.view(-1)[i] += sign * EPSILON
                    two.append(ops.allreduce(loss(moved).reshape(1), op=fd.Sum))
                numeric[rank].view(-1)[i] = (two[0] - two[1]).item() / (2 * EPSILON)
        torch.testing.assert_close(x.grad, numeric[world.rank] * factor(world.size), rtol=1e-6, atol=1e-7)

    ranks(2, body)


def test_ranks_with_the_same_extreme_share_its_gradient(ranks: Ranks) -> None:
    def body(world: World) -> list[float]:
        x = torch.tensor([1.0, float(world.rank)], requires_grad=True)
        fd.ops(world).allreduce(x, op=fd.Max).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    assert ranks(2, body) == [[1.0, 0.0], [1.0, 2.0]]


def test_product_has_no_gradient(ranks: Ranks) -> None:
    def body(world: World) -> None:
        x = torch.ones(2, requires_grad=True)
        y = fd.ops(world).allreduce(x, op=fd.Product)
        with pytest.raises(RuntimeError, match="op=Product has no gradient"):
            y.sum().backward()

    ranks(2, body)


def test_backward_in_another_order_on_each_rank(ranks: Ranks) -> None:
    def body(world: World) -> list[float]:
        ops = fd.ops(world)
        a, b = (torch.ones(1, requires_grad=True) for _ in range(2))
        outputs = [ops.allreduce(a, op=fd.Sum) * (world.rank + 1), ops.allreduce(b, op=fd.Sum) * 10]
        # Asynchronous backward passes need threads: here one thread walks a graph that joins both.
        total = outputs[0] + outputs[1] if world.rank else outputs[1] + outputs[0]
        total.sum().backward()
        assert a.grad is not None and b.grad is not None
        return [a.grad.item(), b.grad.item()]

    assert ranks(2, body) == [[3.0, 20.0]] * 2


def test_without_a_need_for_gradients_there_is_no_graph(ranks: Ranks) -> None:
    def body(world: World) -> None:
        ops = fd.ops(world)
        x = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            assert not ops.allreduce(x).requires_grad
        assert not ops.allreduce(x.detach()).requires_grad
        assert not ops.allreduce_async(x).wait().requires_grad

    ranks(2, body)


def test_compressed_allreduce_has_a_gradient(ranks: Ranks) -> None:
    def body(world: World) -> None:
        x = torch.full((3,), float(world.rank), requires_grad=True)
        y = fd.ops(world).allreduce(x, compression=fd.Compression.fp16)
        assert y.dtype is torch.float32 and torch.equal(y, torch.full((3,), 0.5))
        y.sum().backward()
        assert x.grad is not None and torch.equal(x.grad, torch.ones(3))

    ranks(2, body)
