"""One rank's parameters and optimizer state on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import farandole.torch as fd
from farandole.world import World

Ranks = Callable[..., list[Any]]


def net(fill: float) -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    for p in made.parameters():
        torch.nn.init.constant_(p, fill)
    return made


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def snapshot(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: snapshot(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [snapshot(v) for v in value]
    return value


def test_parameters_in_every_form(ranks: Ranks) -> None:
    def body(world: World) -> None:
        module = net(float(world.rank))
        module(torch.ones(2, 3) * world.rank)  # running statistics
        fd.broadcast_parameters(module.state_dict(), 1, world=world)
        got = fd.allgather_object(snapshot(dict(module.state_dict())), world=world)
        assert equal(got[0], got[1]) and got[0]["0.weight"][0, 0] == 1
        for params in (
            dict(net(world.rank + 5.0).named_parameters()),
            net(world.rank + 5.0).named_parameters(),
        ):
            items = list(params.items() if isinstance(params, dict) else params)
            fd.broadcast_parameters(dict(items) if isinstance(params, dict) else items, 1, world=world)
            assert all(torch.equal(p, torch.full_like(p, 6.0)) for _, p in items)
        tensors = [torch.full((2,), float(world.rank)), torch.tensor(world.rank)]
        fd.broadcast_parameters(tensors, 1, world=world)
        assert tensors[0].tolist() == [1, 1] and tensors[1].item() == 1

    ranks(2, body)


def test_parameters_that_are_not_tensors(ranks: Ranks) -> None:
    def body(world: World) -> None:
        with pytest.raises(ValueError, match="scale is a float, expected a tensor"):
            fd.broadcast_parameters({"scale": 1.0}, world=world)  # type: ignore[dict-item]

    ranks(2, body)


OPTIMIZERS: dict[str, Callable[[Any, int], torch.optim.Optimizer]] = {
    "sgd": lambda p, r: torch.optim.SGD(p, lr=0.1 + r),
    "momentum": lambda p, r: torch.optim.SGD(p, lr=0.1 + r, momentum=0.9),
    "adam": lambda p, r: torch.optim.Adam(p, lr=0.1 + r, betas=(0.8 + r / 100, 0.9)),
    "amsgrad": lambda p, r: torch.optim.AdamW(p, lr=torch.tensor(0.1 + r), amsgrad=True),
    "adagrad": lambda p, r: torch.optim.Adagrad(p, lr=0.1 + r),
    "lbfgs": lambda p, r: torch.optim.LBFGS(p, lr=0.1 + r, max_iter=3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("trained", [(0,), (0, 1), (1,), ()])
@pytest.mark.parametrize("wrapped", [False, True])
def test_optimizer_state(ranks: Ranks, name: str, trained: tuple[int, ...], wrapped: bool) -> None:
    def body(world: World) -> None:
        module = net(0.5)
        module[0].bias.requires_grad_(False)  # type: ignore[index]
        optimizer = OPTIMIZERS[name](module.parameters(), world.rank)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = module(torch.arange(6.0).view(2, 3)).square().sum() * (world.rank + 1)
            loss.backward()
            return loss

        if world.rank in trained:
            for _ in range(2 + world.rank):
                optimizer.step(closure)
        if wrapped:
            optimizer = fd.DistributedOptimizer(optimizer, world=world)
        before, weights = snapshot(optimizer.state_dict()), snapshot(module.state_dict())
        fd.broadcast_optimizer_state(optimizer, root_rank=0, world=world)
        after = optimizer.state_dict()
        assert equal(weights, dict(module.state_dict())), "parameters must not move"
        if world.rank == 0:
            assert equal(before, snapshot(after)), "the root must not change"
        got = fd.allgather_object(snapshot(after), world=world)
        assert equal(got[0], got[1])
        optimizer.step(closure)  # and it goes on

    ranks(2, body)


def test_optimizers_of_different_models(ranks: Ranks) -> None:
    def body(world: World) -> None:
        parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2 + world.rank)]
        with pytest.raises(ValueError, match=r"by rank: \[\[2\], \[3\]\]"):
            fd.broadcast_optimizer_state(torch.optim.SGD(parameters, lr=1.0), world=world)

    ranks(2, body)
