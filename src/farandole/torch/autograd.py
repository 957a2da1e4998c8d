"""Collectives that autograd can see through.

The synchronous, out-of-place operations are differentiable when their input requires a gradient. Their
backward passes are collectives too: every rank must run backward through the operation, or none. They are
named after the forward operation, so that ranks may run them in different orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from farandole.bridge.ops import Average, Members, Ops, Sum, op_name
from farandole.torch.tensors import ADAPTER

if TYPE_CHECKING:
    from farandole.bridge.adapter import Compressor
    from farandole.world import World

Tensor = torch.Tensor

# average, name, compression, op, prescale_factor, postscale_factor, process_set
_Settings: TypeAlias = (
    "tuple[bool | None, str | None, Compressor[Tensor] | None, int | str | None, float, float, Members]"
)


class TorchOps(Ops[Tensor]):
    """The collective operations on torch tensors, with gradients.

    Gradients follow Horovod's rules. allreduce: the same reduction of the incoming gradients (for Min and Max
    the gradient of Sum, to the ranks that hold the extreme value; none for Product). allgather: the average
    of the incoming gradients, this rank's rows. broadcast: their average at the root, zero elsewhere.
    alltoall: back the same way. reducescatter: all ranks' incoming gradients, times the size of the set for
    Sum.
    """

    def __init__(self, world: Callable[[], World]) -> None:
        super().__init__(ADAPTER, world)

    def allreduce(
        self,
        tensor: Tensor,
        average: bool | None = None,
        name: str | None = None,
        compression: Compressor[Tensor] | None = None,
        op: int | str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Members = None,
    ) -> Tensor:
        settings = (average, name, compression, op, prescale_factor, postscale_factor, process_set)
        if not _tracked(tensor):
            return super().allreduce(tensor, *settings)
        return self.grouped_allreduce([tensor], *settings, _single=True)[0]

    def grouped_allreduce(
        self,
        tensors: Sequence[Tensor],
        average: bool | None = None,
        name: str | None = None,
        compression: Compressor[Tensor] | None = None,
        op: int | str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Members = None,
        *,
        _single: bool = False,
    ) -> list[Tensor]:
        settings = (average, name, compression, op, prescale_factor, postscale_factor, process_set)
        if not any(_tracked(tensor) for tensor in tensors):
            return super().grouped_allreduce(tensors, *settings)
        return list(_Allreduce.apply(self, _single, settings, *tensors))  # type: ignore[no-untyped-call]

    def allgather(self, tensor: Tensor, name: str | None = None, process_set: Members = None) -> Tensor:
        if not _tracked(tensor):
            return super().allgather(tensor, name, process_set)
        return _apply(_Allgather, self, tensor, name, process_set)

    def broadcast(self, tensor: Tensor, root_rank: int, name: str | None = None, process_set: Members = None) -> Tensor:
        if not _tracked(tensor):
            return super().broadcast(tensor, root_rank, name, process_set)
        return _apply(_Broadcast, self, tensor, root_rank, name, process_set)

    def alltoall(
        self,
        tensor: Tensor,
        splits: Tensor | Sequence[int] | None = None,
        name: str | None = None,
        process_set: Members = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        if not _tracked(tensor):
            return super().alltoall(tensor, splits, name, process_set)
        apply: Any = _Alltoall.apply
        received, counts = apply(self, tensor, splits, name, process_set)
        return received if splits is None else (received, counts)

    def reducescatter(
        self,
        tensor: Tensor,
        name: str | None = None,
        compression: Compressor[Tensor] | None = None,
        op: int | str = Average,
        process_set: Members = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Tensor:
        if not _tracked(tensor):
            return super().reducescatter(tensor, name, compression, op, process_set, prescale_factor, postscale_factor)
        return _apply(
            _Reducescatter,
            self,
            tensor,
            name,
            compression,
            op,
            process_set,
            prescale_factor,
            postscale_factor,
        )


def _tracked(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and tensor.requires_grad and torch.is_grad_enabled()


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ops: TorchOps, single: bool, settings: _Settings, *tensors: Tensor) -> Any:
        average, _, compression, op, prescale, postscale, process_set = settings
        tensors = tuple(tensor.detach() for tensor in tensors)
        if single:
            handle = ops._allreduce(tensors[0], *settings, False, True)
            results: list[Tensor] = [handle.wait()]
            ctx.name = handle.name
        else:
            group = ops._grouped_allreduce(tensors, *settings, False, True)
            results = group.wait()
            ctx.name = group.name
        ctx.ops, ctx.single = ops, single
        ctx.op = op_name(ops._choose(average, op))
        ctx.compression, ctx.process_set, ctx.factors = compression, process_set, (prescale, postscale)
        if ctx.op in ("min", "max"):
            ctx.save_for_backward(*tensors, *results)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if ctx.op == "product":
            raise RuntimeError("allreduce with op=Product has no gradient")
        op = ctx.op if ctx.op in ("average", "adasum") else "sum"
        prescale, postscale = ctx.factors
        name = f"{ctx.name}.gradient"
        settings = (ctx.compression, op, prescale, postscale, ctx.process_set)
        ops: TorchOps = ctx.ops
        if ctx.single:
            reduced = [ops.allreduce(gradients[0], None, name, *settings)]
        else:
            reduced = ops.grouped_allreduce(gradients, None, name, *settings)
        if ctx.op in ("min", "max"):
            half = len(gradients)
            factor = prescale * postscale
            for i, (mine, extreme) in enumerate(zip(ctx.saved_tensors[:half], ctx.saved_tensors[half:], strict=True)):
                holds = (mine * factor if factor != 1.0 else mine) == extreme
                # Ranks that hold the same extreme value share its gradient.
                holders = ops.allreduce(
                    holds.to(torch.int32), None, f"{name}.holders{i}", None, Sum, process_set=ctx.process_set
                )
                reduced[i] = torch.where(holds, reduced[i] / holders, 0)
        return None, None, None, *reduced


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ops: TorchOps, tensor: Tensor, name: str | None, process_set: Members) -> Tensor:
        handle = ops._allgather(tensor.detach(), name, process_set, True)
        result, rows = handle.wait()
        ctx.ops, ctx.name, ctx.process_set = ops, handle.name, process_set
        me = _index(ops, process_set)
        ctx.begin, ctx.rows = sum(rows[:me]), rows[me]
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        name = f"{ctx.name}.gradient"
        whole = ctx.ops.allreduce(gradients[0], None, name, None, Average, process_set=ctx.process_set)
        return None, whole.narrow(0, ctx.begin, ctx.rows), None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ops: TorchOps, tensor: Tensor, root_rank: int, name: str | None, process_set: Members
    ) -> Tensor:
        handle = ops._broadcast(tensor.detach(), root_rank, name, process_set, False, True)
        ctx.ops, ctx.name, ctx.process_set, ctx.root = ops, handle.name, process_set, root_rank
        return handle.wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        name = f"{ctx.name}.gradient"
        mean = ctx.ops.allreduce(gradients[0], None, name, None, Average, process_set=ctx.process_set)
        return None, mean if ctx.ops.world.rank == ctx.root else torch.zeros_like(mean), None, None, None


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        ops: TorchOps,
        tensor: Tensor,
        splits: Tensor | Sequence[int] | None,
        name: str | None,
        process_set: Members,
    ) -> tuple[Tensor, Tensor]:
        handle = ops._alltoall(tensor.detach(), splits, name, process_set, True)
        received, counts = handle.wait()
        ctx.ops, ctx.name, ctx.process_set = ops, handle.name, process_set
        ctx.rows, ctx.counts = tensor.shape[0], counts
        ctx.mark_non_differentiable(counts)
        return received, counts

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        back, _ = ctx.ops.alltoall(gradients[0], ctx.counts, f"{ctx.name}.gradient", ctx.process_set)
        stayed = ctx.rows - back.shape[0]  # rows beyond the splits went nowhere
        if stayed:
            back = torch.cat([back, back.new_zeros((stayed, *back.shape[1:]))])
        return None, back, None, None, None


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        ops: TorchOps,
        tensor: Tensor,
        name: str | None,
        compression: Compressor[Tensor] | None,
        op: int | str,
        process_set: Members,
        prescale: float,
        postscale: float,
    ) -> Tensor:
        handle = ops._reducescatter(tensor.detach(), name, compression, op, process_set, prescale, postscale, True)
        ctx.ops, ctx.name, ctx.process_set, ctx.op = ops, handle.name, process_set, op_name(op)
        ctx.factor = prescale * postscale
        return handle.wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if ctx.op not in ("average", "sum"):
            raise RuntimeError(f"reducescatter with op={ctx.op} has no gradient; use Average or Sum")
        ops: TorchOps = ctx.ops
        whole = ops.allgather(gradients[0], f"{ctx.name}.gradient", ctx.process_set)
        factor = ctx.factor * (ops.members(ctx.process_set).size() if ctx.op == "sum" else 1)
        return None, whole if factor == 1 else whole * factor, *(None,) * 6


def _index(ops: TorchOps, process_set: Members) -> int:
    return ops.members(process_set).rank()
