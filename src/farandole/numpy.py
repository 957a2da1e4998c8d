"""Collectives on numpy arrays; also the reference for other adapters.

    import farandole.numpy as fd
    fd.init()
    mean = fd.allreduce(array)

Arrays made by `empty` or `zeros` lie in registered memory: in-place collectives on them need no copies
between the ranks of one host. The functions act in the default world; `ops(world)` gives the same ones for
another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeGuard

import numpy as np
from numpy.typing import DTypeLike, NDArray

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
    Ops,
    Product,
    Sum,
    global_process_set,
)
from farandole.world import ProcessSet, World, init, is_initialized, shutdown

Array = NDArray[Any]

_NAMES: Final = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
_BY_DTYPE: Final = {np.dtype(name): name for name in _NAMES}


class NumpyAdapter:
    """numpy arrays; bfloat16 where ml_dtypes has registered it."""

    def owns(self, value: object) -> TypeGuard[Array]:
        return isinstance(value, np.ndarray)

    def dtype(self, tensor: Array) -> str:
        kind = tensor.dtype
        name = _BY_DTYPE.get(kind)
        if name is None and kind.name == "bfloat16":  # of ml_dtypes
            name = "bfloat16"
        if name is None:
            raise ValueError(f"arrays of dtype {kind!r} are not supported; convert with astype()")
        return name

    def shape(self, tensor: Array) -> tuple[int, ...]:
        return tensor.shape

    def host(self, tensor: Array) -> Array:
        # Not np.ascontiguousarray: it makes scalars one-dimensional.
        return tensor if tensor.flags.c_contiguous else tensor.copy(order="C")

    def address(self, host: Array) -> int:
        address: int = host.__array_interface__["data"][0]
        return address

    def empty(self, like: Array, shape: tuple[int, ...]) -> Array:
        return np.empty(shape, dtype=like.dtype)

    def from_bytes(self, raw: NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> Array:
        return raw.reshape(-1).view(np.dtype(dtype)).reshape(shape)

    def to_bytes(self, host: Array) -> NDArray[np.uint8]:
        return host.reshape(-1).view(np.uint8)

    def deliver(self, host: Array, like: Array) -> Array:
        return host

    def why_not_writable(self, tensor: Array) -> str:
        return "" if tensor.flags.writeable else "the array is read-only"

    def written(self, tensor: Array, host: Array) -> None:
        if host is not tensor:
            tensor[...] = host


ADAPTER: Final = NumpyAdapter()


def ops(world: World) -> Ops[Array]:
    """The collective operations in a given world, as methods."""
    return Ops(ADAPTER, lambda: world)


def empty(shape: int | Sequence[int], dtype: DTypeLike = np.float32, world: World | None = None) -> Array:
    """A new array in registered memory (of the default world). Its contents are arbitrary."""
    dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = np.dtype(dtype)
    count = int(np.prod(dimensions, dtype=np.int64))
    raw = (world or _world.world()).empty(max(1, count * kind.itemsize))
    return raw[: count * kind.itemsize].view(kind).reshape(dimensions)


def zeros(shape: int | Sequence[int], dtype: DTypeLike = np.float32, world: World | None = None) -> Array:
    """`empty`, filled with zeros."""
    array = empty(shape, dtype, world)
    array[...] = 0
    return array


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: Members = None) -> Any:
    """The object of rank `root_rank` on all ranks; see `farandole.bridge.objects.broadcast_object`."""
    return _objects.broadcast_object(_default, obj, root_rank, name, process_set)


def allgather_object(obj: Any, name: str | None = None, process_set: Members = None) -> list[Any]:
    """The objects of all ranks, in rank order; see `farandole.bridge.objects.allgather_object`."""
    return _objects.allgather_object(_default, obj, name, process_set)


_default: Final = Ops(ADAPTER, _world.world)
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
    "Handle",
    "Max",
    "Min",
    "Ops",
    "ProcessSet",
    "Product",
    "Sum",
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
    "cross_rank",
    "cross_size",
    "empty",
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
    "zeros",
]
