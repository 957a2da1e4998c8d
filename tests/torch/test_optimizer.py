"""DistributedOptimizer: the same training as one process on the whole batch, and what may go wrong."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import farandole.torch as fd
from farandole.errors import FarandoleError
from farandole.world import World

Ranks = Callable[..., list[Any]]
Make = Callable[[Iterator[torch.nn.Parameter]], torch.optim.Optimizer]
SIZE = 2
ROWS = 8  # of the whole batch


def model(seed: int = 0) -> torch.nn.Module:
    """Some layers with fixed weights. (torch's global generator is shared by all ranks: not used.)"""
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 16),
        torch.nn.Tanh(),
        torch.nn.Linear(16, 16),
        torch.nn.Tanh(),
        torch.nn.Linear(16, 3),
    )
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * 0.3)
    return net


def batch(step: int, rank: int | None = None, size: int = SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(100 + step)
    x, y = torch.randn(ROWS, 6, generator=g), torch.randn(ROWS, 3, generator=g)
    if rank is None:
        return x, y
    n = ROWS // size
    return x[rank * n : (rank + 1) * n], y[rank * n : (rank + 1) * n]


def loss_of(net: torch.nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.mse_loss(net(data[0]), data[1])


def weights(net: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()]).clone()


def alone(make: Make, steps: int, seed: int = 0) -> torch.Tensor:
    """The weights after training in one process on whole batches."""
    net = model(seed)
    optimizer = make(net.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(net, batch(step)).backward()
        optimizer.step()
    return weights(net)


def sgd(parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def distributed(net: torch.nn.Module, world: World, make: Make = sgd, **options: Any) -> Any:
    return fd.DistributedOptimizer(
        make(net.parameters()), named_parameters=net.named_parameters(), world=world, **options
    )


def agree(results: list[torch.Tensor], want: torch.Tensor, **tolerance: float) -> None:
    for got in results:
        assert torch.equal(got, results[0]), "the ranks differ"
    torch.testing.assert_close(results[0], want, **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("bucket_bytes", [None, 64, 400])
def test_equals_one_process(ranks: Ranks, size: int, make: Make, bucket_bytes: int | None) -> None:
    def body(world: World) -> torch.Tensor:
        net = model(seed=world.rank)
        fd.broadcast_parameters(net.state_dict(), world=world)
        optimizer = distributed(net, world, make, bucket_bytes=bucket_bytes)
        for step in range(20):
            optimizer.zero_grad()
            loss_of(net, batch(step, world.rank, size)).backward()
            optimizer.step()
        return weights(net)

    agree(ranks(size, body), alone(make, 20), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", ["none", "zeros", "module", "module zeros", "mixed", "manual"])
def test_ways_to_zero(ranks: Ranks, variant: str) -> None:
    def zero(net: torch.nn.Module, optimizer: Any, step: int) -> None:
        if variant == "none" or (variant == "mixed" and step % 2):
            optimizer.zero_grad()
        elif variant in ("zeros", "mixed"):
            optimizer.zero_grad(set_to_none=False)
        elif variant == "module":
            net.zero_grad()
        elif variant == "module zeros":
            net.zero_grad(set_to_none=False)
        else:
            for p in net.parameters():
                p.grad = None

    def body(world: World) -> torch.Tensor:
        net = model()
        optimizer = distributed(net, world, bucket_bytes=400)
        for step in range(5):
            zero(net, optimizer, step)
            loss_of(net, batch(step, world.rank)).backward()
            optimizer.step()
        return weights(net)

    agree(ranks(SIZE, body), alone(sgd, 5))


@pytest.mark.parametrize("how", ["optimizer", "optimizer zeros", "module"])
def test_gradients_thrown_away_are_not_applied_later(ranks: Ranks, how: str) -> None:
    def body(world: World) -> torch.Tensor:
        net = model()
        optimizer = distributed(net, world, bucket_bytes=400)
        for step in range(5):
            optimizer.zero_grad()
            (loss_of(net, batch(50 + step, world.rank)) * 100).backward()
            if how == "module":
                net.zero_grad()
            else:
                optimizer.zero_grad(set_to_none=how == "optimizer")
            loss_of(net, batch(step, world.rank)).backward()
            optimizer.step()
        return weights(net)

    agree(ranks(SIZE, body), alone(sgd, 5))


def test_half_an_accumulation_thrown_away(ranks: Ranks) -> None:
    def body(world: World) -> torch.Tensor:
        net = model()
        optimizer = distributed(net, world, backward_passes_per_step=2)
        for step in range(3):
            loss_of(net, batch(77, world.rank)).backward()
            optimizer.zero_grad()
            for _ in range(2):
                (loss_of(net, batch(step, world.rank)) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        return weights(net)

    agree(ranks(SIZE, body), alone(sgd, 3))


@pytest.mark.parametrize("compression", [fd.Compression.none, fd.Compression.fp16])
def test_accumulation_adds_passes_and_averages_ranks(ranks: Ranks, compression: Any) -> None:
    passes = 4

    def body(world: World) -> torch.Tensor:
        net = model()
        optimizer = distributed(net, world, backward_passes_per_step=passes, compression=compression)
        x, y = batch(0, world.rank)
        for i in range(passes):
            loss_of(net, (x[i : i + 1], y[i : i + 1])).backward()
        optimizer.step()
        return weights(net)

    def whole_batch_times_passes(parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1 * passes, momentum=0.9)

    agree(ranks(SIZE, body), alone(whole_batch_times_passes, 1), rtol=1e-3, atol=1e-3)


def test_one_backward_too_many(ranks: Ranks) -> None:
    def body(world: World) -> None:
        net = model()
        optimizer = distributed(net, world)
        loss_of(net, batch(0, world.rank)).backward()
        with pytest.raises(RuntimeError, match="backward_passes_per_step=1"):
            loss_of(net, batch(0, world.rank)).backward()
        optimizer.zero_grad()
        loss_of(net, batch(0, world.rank)).backward()
        optimizer.step()

    ranks(SIZE, body)


class Branches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.common, self.left, self.right, self.never = (torch.nn.Linear(3, 3) for _ in range(4))
        for i, p in enumerate(self.parameters()):
            torch.nn.init.constant_(p, 0.1 * (i + 1))

    def forward(self, x: torch.Tensor, left: bool) -> torch.Tensor:
        x = self.common(x)
        return (self.left(x) if left else self.right(x)).sum()


@pytest.mark.parametrize("bucket_bytes", [None, 16])
@pytest.mark.parametrize("compression", [fd.Compression.none, fd.Compression.bf16])
def test_a_parameter_used_on_some_ranks_only(ranks: Ranks, bucket_bytes: int | None, compression: Any) -> None:
    def body(world: World) -> Any:
        net = Branches()
        optimizer = distributed(net, world, bucket_bytes=bucket_bytes, compression=compression)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 3), left=world.rank == 0).backward()
            optimizer.step()
            assert net.never.weight.grad is None and net.never.bias.grad is None
            assert net.left.bias.grad is not None
            assert torch.equal(net.left.bias.grad, torch.ones(3))  # 2 rows on one of two ranks
        return weights(net)

    got = ranks(SIZE, body)
    assert torch.equal(got[0], got[1])


def test_a_rank_without_any_backward(ranks: Ranks) -> None:
    def body(world: World) -> torch.Tensor:
        net = model()
        optimizer = distributed(net, world, bucket_bytes=400)
        for step in range(3):
            optimizer.zero_grad()
            if world.rank == 0 or step == 1:
                (loss_of(net, batch(step)) * (1 if step == 1 else 2)).backward()
            optimizer.step()
        return weights(net)

    agree(ranks(SIZE, body), alone(sgd, 3))


def test_gradients_assigned_by_hand(ranks: Ranks) -> None:
    def body(world: World) -> torch.Tensor:
        net = model()
        optimizer = distributed(net, world)
        for step in range(3):
            optimizer.zero_grad()
            parameters = list(net.parameters())
            gradients = torch.autograd.grad(loss_of(net, batch(step, world.rank)), parameters)
            for p, g in zip(parameters, gradients, strict=True):
                p.grad = g
            optimizer.step()
        return weights(net)

    agree(ranks(SIZE, body), alone(sgd, 3))


def test_backward_with_a_graph(ranks: Ranks) -> None:
    def body(world: World) -> torch.Tensor:
        net = model()
        optimizer = distributed(net, world)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(net, batch(step, world.rank)).backward(create_graph=True)
            optimizer.step()
            assert all(p.grad is not None and not p.grad.requires_grad for p in net.parameters())
        return weights(net)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*create_graph=True")
        agree(ranks(SIZE, body), alone(sgd, 3))


def test_clipping_after_synchronize(ranks: Ranks) -> None:
    def clipped(net: torch.nn.Module) -> None:
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)

    def body(world: World) -> torch.Tensor:
        net = model()
        optimizer = distributed(net, world)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(net, batch(step, world.rank)).backward()
            optimizer.synchronize()
            clipped(net)
            if step % 2:
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
        return weights(net)

    net = model()
    optimizer = sgd(net.parameters())
    for step in range(4):
        optimizer.zero_grad()
        loss_of(net, batch(step)).backward()
        clipped(net)
        optimizer.step()
    agree(ranks(SIZE, body), weights(net))


@pytest.mark.parametrize("compression", [fd.Compression.none, fd.Compression.fp16])
@pytest.mark.parametrize("replace", [False, True])
def test_touching_gradients_too_early_is_an_error(ranks: Ranks, compression: Any, replace: bool) -> None:
    def body(world: World) -> None:
        net = model()
        optimizer = distributed(net, world, compression=compression)
        for step in range(2):
            loss_of(net, batch(step, world.rank)).backward()
            gradient = net[0].weight.grad  # type: ignore[index]
            if replace:
                net[0].weight.grad = gradient * 2  # type: ignore[index]
            else:
                gradient.mul_(2)
            with pytest.raises(RuntimeError, match=r"call optimizer.synchronize\(\) after backward\(\)"):
                optimizer.step()
            optimizer.zero_grad()
        loss_of(net, batch(0, world.rank)).backward()
        optimizer.step()

    ranks(SIZE, body)


def test_stepping_in_skip_synchronize_needs_synchronize(ranks: Ranks) -> None:
    def body(world: World) -> None:
        net = model()
        optimizer = distributed(net, world)
        loss_of(net, batch(0, world.rank)).backward()
        with optimizer.skip_synchronize(), pytest.raises(RuntimeError, match="call synchronize"):
            optimizer.step()
        optimizer.step()

    ranks(SIZE, body)


def test_gradient_scaler(ranks: Ranks) -> None:
    def body(world: World) -> torch.Tensor:
        net = model()
        optimizer = distributed(net, world)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(loss_of(net, batch(step, world.rank))).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        return weights(net)

    agree(ranks(SIZE, body), alone(sgd, 3))


def test_closures(ranks: Ranks) -> None:
    def body(world: World) -> torch.Tensor:
        net = model()
        optimizer = distributed(net, world)
        for step in range(3):

            def closure(step: int = step) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(net, batch(step, world.rank))
                loss.backward()
                return loss

            returned = optimizer.step(closure)
            assert isinstance(returned, torch.Tensor) and returned.ndim == 0
        return weights(net)

    agree(ranks(SIZE, body), alone(sgd, 3))


@pytest.mark.parametrize("compression", [fd.Compression.none, fd.Compression.fp16, fd.Compression.bf16])
def test_compression(ranks: Ranks, compression: Any) -> None:
    def body(world: World) -> torch.Tensor:
        net = model()
        optimizer = distributed(net, world, compression=compression, bucket_bytes=400)
        for step in range(5):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss_of(net, batch(step, world.rank)).backward()
            optimizer.step()
        return weights(net)

    agree(ranks(SIZE, body), alone(sgd, 5), rtol=1e-2, atol=1e-2)


class Halving(fd.Compressor):
    """Sends float64 as float32, and remembers something."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        return tensor.to(torch.float64) / 2, "half"

    @staticmethod
    def decompress(tensor: torch.Tensor, context: object) -> torch.Tensor:
        assert context == "half"
        return (tensor * 2).to(torch.float32)


def test_a_compressor_of_ones_own(ranks: Ranks) -> None:
    def body(world: World) -> torch.Tensor:
        net = model()
        optimizer = distributed(net, world, compression=Halving)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(net, batch(step, world.rank)).backward()
            optimizer.step()
        return weights(net)

    agree(ranks(SIZE, body), alone(sgd, 3))


def test_two_optimizers(ranks: Ranks) -> None:
    def body(world: World) -> torch.Tensor:
        net = model()
        first = fd.DistributedOptimizer(sgd(net[0].parameters()), world=world)  # type: ignore[index]
        rest = [*net[2].parameters(), *net[4].parameters()]  # type: ignore[index]
        second = fd.DistributedOptimizer(sgd(iter(rest)), world=world)
        for step in range(4):
            first.zero_grad()
            second.zero_grad()
            loss_of(net, batch(step, world.rank)).backward()
            # The ranks may step in different orders.
            for optimizer in (first, second) if world.rank else (second, first):
                optimizer.step()
        return weights(net)

    agree(ranks(SIZE, body), alone(sgd, 4))


def test_shared_weights_and_two_losses(ranks: Ranks) -> None:
    def run(world: World | None) -> torch.Tensor:
        net = torch.nn.Linear(4, 4)
        other = torch.nn.Linear(4, 1)
        for p in (*net.parameters(), *other.parameters()):
            torch.nn.init.constant_(p, 0.1)
        parameters = [*net.parameters(), *other.parameters()]
        optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, lr=0.1)
        if world is not None:
            optimizer = fd.DistributedOptimizer(optimizer, world=world)
        scales = [1.0, 2.0] if world is None else [[1.0, 2.0][world.rank]]
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.cat([torch.ones(2, 4) * s for s in scales])
            net(net(x)).mean().backward()  # twice in one backward
            other(x).mean().backward()  # a second backward, other parameters
            optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in parameters])

    agree(ranks(SIZE, run), run(None))


def test_dtypes_and_memory_formats(ranks: Ranks) -> None:
    def body(world: World) -> None:
        parameters = [
            torch.nn.Parameter(torch.ones(3, dtype=torch.float64)),
            torch.nn.Parameter(torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)),
            torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16)),
            torch.nn.Parameter(torch.ones(2, dtype=torch.complex64)),
            torch.nn.Parameter(torch.ones(())),
            torch.nn.Parameter(torch.ones(0)),
        ]
        optimizer = fd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), world=world)
        for _ in range(2):
            optimizer.zero_grad()
            torch.stack([(p * (world.rank + 1)).sum().real.double() for p in parameters]).sum().backward()
            optimizer.step()
            for p in parameters:
                assert p.grad is not None and p.grad.dtype == p.dtype and p.grad.stride() == p.stride()
                assert torch.equal(p.grad, torch.full_like(p, 1.5))
        assert torch.equal(parameters[1], torch.full_like(parameters[1], -2.0))

    ranks(SIZE, body)


def test_different_models_are_found_before_the_first_step(ranks: Ranks) -> None:
    def body(world: World) -> None:
        p = torch.nn.Parameter(torch.ones(1, 2, 2, 2))
        if world.rank:
            p = torch.nn.Parameter(torch.ones(1, 2, 2, 2).to(memory_format=torch.channels_last))
        optimizer = fd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), world=world)
        p.sum().backward()
        with pytest.raises(ValueError, match=r"rank\(s\) \[1\] differ .* memory format"):
            optimizer.step()
        assert torch.equal(p, torch.ones_like(p))

    ranks(SIZE, body)


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(ranks: Ranks, as_dense: bool) -> None:
    def rows(rank: int, step: int) -> list[int]:
        return [[1, 2, 2], [2, 5, step]][rank]

    def body(world: World) -> torch.Tensor:
        table = torch.nn.Embedding(7, 3, sparse=True)
        head = torch.nn.Linear(3, 1)
        for p in (*table.parameters(), *head.parameters()):
            torch.nn.init.constant_(p, 0.5)
        parameters = [*table.parameters(), *head.parameters()]
        optimizer = fd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), sparse_as_dense=as_dense, world=world)
        for step in range(4):
            optimizer.zero_grad()
            if not (world.rank == 1 and step == 2):  # once a rank has none
                head(table(torch.tensor(rows(world.rank, step)))).sum().backward()
            optimizer.step()
            gradient = table.weight.grad
            assert gradient is not None and gradient.is_sparse is not as_dense
        return torch.cat([p.detach().reshape(-1) for p in parameters])

    table = torch.nn.Embedding(7, 3)
    head = torch.nn.Linear(3, 1)
    parameters = [*table.parameters(), *head.parameters()]
    for p in parameters:
        torch.nn.init.constant_(p, 0.5)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        index = torch.tensor(rows(0, step) + (rows(1, step) if step != 2 else []))
        (head(table(index)).sum() / 2).backward()
        optimizer.step()
    agree(ranks(SIZE, body), torch.cat([p.detach().reshape(-1) for p in parameters]))


def test_sum_and_predivide(ranks: Ranks) -> None:
    def body(world: World) -> list[float]:
        got = []
        for options in ({"op": fd.Sum}, {"gradient_predivide_factor": 4.0}):
            p = torch.nn.Parameter(torch.zeros(1))
            optimizer = fd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), world=world, **options)  # type: ignore[arg-type]
            (p * (world.rank + 1)).sum().backward()
            optimizer.step()
            got.append(p.item())
        return got

    assert ranks(SIZE, body) == [[-3.0, -1.5]] * SIZE


def test_process_sets_train_apart(ranks: Ranks) -> None:
    def body(world: World) -> float:
        pair = world.add_process_set([0, 2])
        p = torch.nn.Parameter(torch.zeros(1))
        optimizer = fd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), process_set=pair, world=world)
        (p * (world.rank + 1)).sum().backward()
        optimizer.step()
        return p.item()

    assert ranks(3, body) == [-2.0, -2.0, -2.0]  # the mean of 1 and 3; 2 alone


def test_added_parameters_are_reduced_too(ranks: Ranks) -> None:
    def body(world: World) -> list[float]:
        a, b = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
        optimizer = fd.DistributedOptimizer(torch.optim.SGD([a], lr=1.0), world=world)
        (a * (world.rank + 1)).sum().backward()
        optimizer.step()
        optimizer.add_param_group({"params": [b]})
        optimizer.zero_grad()
        ((a + b) * (world.rank + 1)).sum().backward()
        optimizer.step()
        return [a.item(), b.item()]

    assert ranks(SIZE, body) == [[-3.0, -1.5]] * SIZE


@pytest.mark.parametrize("before", [False, True])
def test_looks_like_the_wrapped_optimizer(ranks: Ranks, before: bool) -> None:
    def body(world: World) -> Any:
        net = model()
        plain = sgd(net.parameters())
        if before:
            scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
        optimizer = fd.DistributedOptimizer(plain, net.named_parameters(), world=world)
        if not before:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
        assert optimizer.param_groups is plain.param_groups and optimizer.state is plain.state
        assert repr(optimizer) == repr(plain)
        calls: list[str] = []
        optimizer.register_step_post_hook(lambda *_: calls.append("post"))
        for step in range(2):
            optimizer.zero_grad()
            loss_of(net, batch(step, world.rank)).backward()
            assert optimizer.step() is None
            scheduler.step()
        assert calls == ["post", "post"]
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
        saved = copy.deepcopy(optimizer.state_dict())
        optimizer.load_state_dict(saved)
        assert optimizer.param_groups is plain.param_groups
        twin = copy.deepcopy(optimizer)
        assert type(twin) is torch.optim.SGD and not hasattr(twin, "synchronize")
        assert type(pickle.loads(pickle.dumps(optimizer))) is torch.optim.SGD
        torch.save(net, io.BytesIO())
        copy.deepcopy(net)
        assert optimizer.communication_wait_seconds > 0  # type: ignore[attr-defined]
        loss_of(net, batch(2, world.rank)).backward()
        optimizer.step()
        return weights(net)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = ranks(SIZE, body)
    assert torch.equal(got[0], got[1])


def test_a_dropped_optimizer_lets_go_of_its_parameters(ranks: Ranks) -> None:
    def body(world: World) -> Any:
        net = model()
        optimizer = distributed(net, world)
        loss_of(net, batch(0, world.rank)).backward()
        optimizer.step()
        return net, weakref.ref(optimizer._farandole)

    for net, reducer in ranks(SIZE, body):
        gc.collect()
        assert reducer() is None
        loss_of(net, batch(0)).backward()  # local again


def test_the_newest_optimizer_has_the_parameters(ranks: Ranks) -> None:
    def body(world: World) -> torch.Tensor:
        net = model()
        old = distributed(net, world)
        new = distributed(net, world)
        again = fd.DistributedOptimizer(sgd(net.parameters()), world=world)
        for step in range(3):
            again.zero_grad()
            loss_of(net, batch(step, world.rank)).backward()
            again.step()
        for replaced in (old, new):
            with pytest.raises(RuntimeError, match="given to a newer DistributedOptimizer"):
                replaced.step()
        return weights(net)

    agree(ranks(SIZE, body), alone(sgd, 3))


def test_wrapping_the_same_optimizer_again(ranks: Ranks) -> None:
    def body(world: World) -> torch.Tensor:
        net = model()
        plain = sgd(net.parameters())
        fd.DistributedOptimizer(plain, world=world)
        optimizer = fd.DistributedOptimizer(plain, world=world)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(net, batch(step, world.rank)).backward()
            optimizer.step()
        return weights(net)

    agree(ranks(SIZE, body), alone(sgd, 3))


def test_a_lost_rank_is_an_error_in_step(ranks: Ranks) -> None:
    def body(world: World) -> str:
        net = model()
        optimizer = distributed(net, world)
        loss_of(net, batch(0, world.rank)).backward()
        optimizer.step()
        if world.rank:
            world.abort("out of coffee")
            return ""
        with pytest.raises(FarandoleError) as caught:
            optimizer.zero_grad()
            loss_of(net, batch(0, world.rank)).backward()
            optimizer.step()
        return str(caught.value)

    assert "coffee" in ranks(SIZE, body)[0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"op": fd.Min}, "expected Average or Sum"),
        ({"op": fd.Adasum}, "op is adasum, expected Average or Sum"),
        ({"backward_passes_per_step": 0}, "must be positive, not 0"),
        ({"gradient_predivide_factor": 2.0, "op": fd.Sum}, "needs op=Average"),
        ({"gradient_predivide_factor": 0.0}, "must be positive"),
        (
            {"named_parameters": [("a", torch.nn.Parameter(torch.ones(1)))]},
            "lacks 1 of the optimizer's parameters",
        ),
        ({"named_parameters": [torch.ones(1)]}, "must be pairs"),
        ({"named_parameters": [("a", torch.ones(1)), ("a", torch.ones(1))]}, "more than once: a"),
        ({"bucket_bytes": -1}, "bucket sizes must be positive"),
    ],
)
def test_unfit_arguments(ranks: Ranks, options: dict[str, Any], text: str) -> None:
    def body(world: World) -> None:
        p = torch.nn.Parameter(torch.ones(1))
        with pytest.raises(ValueError, match=text):
            fd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), world=world, **options)

    ranks(SIZE, body)


def test_wrapping_twice_is_refused(ranks: Ranks) -> None:
    def body(world: World) -> None:
        optimizer = distributed(model(), world)
        with pytest.raises(ValueError, match="is a DistributedOptimizer already"):
            fd.DistributedOptimizer(optimizer, world=world)

    ranks(1, body)
