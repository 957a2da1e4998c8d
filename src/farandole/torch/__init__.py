"""Distributed training with PyTorch.

    import farandole.torch as fd
    fd.init()
    optimizer = fd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    fd.broadcast_parameters(model.state_dict(), root_rank=0)
    fd.broadcast_optimizer_state(optimizer, root_rank=0)

The functions act in the default world; `ops(world)` gives the same collectives for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch as _torch

import farandole.world as _world
from farandole.bridge import objects as _objects
from farandole.bridge.basics import (
    add_process_set,
    cross_rank,
    cross_size,
    is_homogeneous,
    local_rank,
    local_size,
    rank,
    size,
)
from farandole.bridge.ops import (
    Adasum,
    Average,
    Handle,
    Max,
    Members,
    Min,
    Product,
    Sum,
    global_process_set,
)
from farandole.errors import (
    CollectiveError,
    FarandoleError,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    ShutdownError,
    StallError,
)
from farandole.torch import state as _state
from farandole.torch.autograd import TorchOps
from farandole.torch.compression import Compression, Compressor, NoneCompressor
from farandole.torch.optimizer import O, distributed_optimizer
from farandole.world import ProcessSet, World, init, is_initialized, shutdown

_default: Final = TorchOps(_world.world)


def ops(world: World) -> TorchOps:
    """The collective operations in a given world, as methods."""
    return TorchOps(lambda: world)


def _ops(world: World | None) -> TorchOps:
    return _default if world is None else ops(world)


def DistributedOptimizer(
    optimizer: O,
    named_parameters: Iterable[tuple[str, _torch.Tensor]] | None = None,
    compression: type[Compressor] = NoneCompressor,
    backward_passes_per_step: int = 1,
    op: int | str = Average,
    gradient_predivide_factor: float = 1.0,
    process_set: Members = None,
    bucket_bytes: int | None = None,
    sparse_as_dense: bool = False,
    world: World | None = None,
) -> O:
    """An optimizer like `optimizer` whose gradients are reduced over the ranks while backward runs.

    The result is of a subclass of the given optimizer's class, shares all its attributes (param_groups,
    state, hooks, schedulers) and replaces it. It adds `synchronize()`, `skip_synchronize()` and
    `communication_wait_seconds`. All ranks construct it, and later step, with the same parameters; a
    parameter may lack a gradient on some ranks (zeros there) or on all (it stays None).

    After backward, `p.grad` holds a view of reduced memory that the next step uses again: clone gradients to
    keep them. Between backward and `step()` gradients must not be touched; to clip or unscale them call
    `synchronize()` first. Backward with `create_graph=True` loses the graph of the gradients of leaf
    parameters.

    named_parameters: names for messages; by default made from the position in the groups.
    compression: `Compression.none`, `.fp16`, `.bf16` or a `Compressor` class: the form gradients travel in.
    backward_passes_per_step: how many backward passes are added up locally before they are reduced; `step()`
    is
        called once after them.
    op: Average or Sum over the ranks.
    gradient_predivide_factor: for Average: divide by it before the sum, and by size / factor after.
    process_set: reduce over these ranks only; on others the optimizer stays local.
    bucket_bytes: how many bytes of gradients travel together (default: FARANDOLE_BUCKET_BYTES).
    sparse_as_dense: make sparse gradients dense first, instead of exchanging indices and values.

    Backward may run in any thread; the methods are called from the thread that trains. Raises ValueError for
    unfit arguments. `step()`, `synchronize()`, `zero_grad()` and backward raise `CollectiveError`s, and
    RuntimeError when gradients were touched too early or backward ran too often.
    """
    return distributed_optimizer(
        _ops(world),
        optimizer,
        named_parameters,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        process_set,
        bucket_bytes,
        sparse_as_dense,
    )


def broadcast_parameters(
    params: Mapping[str, _torch.Tensor] | Iterable[_torch.Tensor | tuple[str, _torch.Tensor]],
    root_rank: int = 0,
    process_set: Members = None,
    world: World | None = None,
) -> None:
    """Overwrite tensors in place with those of rank `root_rank`.

    params: `model.state_dict()`, `model.named_parameters()` or a list of tensors; the same names, shapes and
    dtypes
        on all ranks. ValueError for anything that is not a tensor.
    """
    _state.broadcast_parameters(_ops(world), params, root_rank, process_set)


def broadcast_optimizer_state(
    optimizer: _torch.optim.Optimizer,
    root_rank: int = 0,
    model: _torch.nn.Module | None = None,
    process_set: Members = None,
    world: World | None = None,
) -> None:
    """Make the state and the options (learning rate ...) of an optimizer those of rank `root_rank`.

    Works for every optimizer whose state is made of tensors and picklable values, also where some ranks have
    no state yet; nothing is stepped and nothing changes on the root. The optimizers must hold the same
    parameters in the same groups; else ValueError on all ranks. `model` is not needed; Horovod's scripts may
    give it.
    """
    _state.broadcast_optimizer_state(_ops(world), optimizer, root_rank, process_set)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: Members = None,
    world: World | None = None,
) -> Any:
    """The object of rank `root_rank` on all ranks; see `farandole.bridge.objects.broadcast_object`."""
    return _objects.broadcast_object(_ops(world), obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, name: str | None = None, process_set: Members = None, world: World | None = None
) -> list[Any]:
    """The objects of all ranks, in rank order; see `farandole.bridge.objects.allgather_object`."""
    return _objects.allgather_object(_ops(world), obj, name, process_set)


allreduce = _default.allreduce
allreduce_ = _default.allreduce_
allreduce_async = _default.allreduce_async
allreduce_async_ = _default.allreduce_async_
grouped_allreduce = _default.grouped_allreduce
grouped_allreduce_ = _default.grouped_allreduce_
grouped_allreduce_async = _default.grouped_allreduce_async
grouped_allreduce_async_ = _default.grouped_allreduce_async_
allgather = _default.allgather
allgather_async = _default.allgather_async
broadcast = _default.broadcast
broadcast_ = _default.broadcast_
broadcast_async = _default.broadcast_async
broadcast_async_ = _default.broadcast_async_
alltoall = _default.alltoall
alltoall_async = _default.alltoall_async
reducescatter = _default.reducescatter
reducescatter_async = _default.reducescatter_async
barrier = _default.barrier
join = _default.join
poll = _default.poll
synchronize = _default.synchronize

__all__ = [
    "Adasum",
    "Average",
    "CollectiveError",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "FarandoleError",
    "Handle",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "ShutdownError",
    "StallError",
    "Sum",
    "TorchOps",
    "World",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "ops",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "shutdown",
    "size",
    "synchronize",
]
