"""Python objects from rank to rank: pickled by cloudpickle, carried by the same collectives as tensors.

Only ranks of one job, which have proved to each other that they know its secret, exchange pickles.
"""

from __future__ import annotations

import traceback
from typing import Any, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from farandole.bridge.ops import Members, Ops

T = TypeVar("T")

# The first byte of a message says what follows: a pickle, or the text of the error that kept one from being
# made.
_OBJECT, _ERROR = b"o", b"e"


def broadcast_object(
    ops: Ops[T], obj: Any, root_rank: int = 0, name: str | None = None, process_set: Members = None
) -> Any:
    """The object of rank `root_rank` on all ranks; the others' `obj` is ignored.

    The root gets `obj` itself back, the others a copy. Needs cloudpickle on all ranks. When the object cannot
    be pickled, all ranks raise TypeError with the root's reason.
    """
    base = name or "object"
    am_root = ops.world.rank == root_rank
    message, failure = _pack(obj) if am_root else (b"", None)
    length = ops.broadcast(
        _tensor(ops, np.array([len(message)], dtype=np.int64)), root_rank, f"{base}.size", process_set
    )
    size = int(_array(ops, length, np.int64)[0])
    raw = np.frombuffer(message, dtype=np.uint8) if am_root else np.empty(size, dtype=np.uint8)
    content = ops.broadcast(_tensor(ops, raw), root_rank, f"{base}.bytes", process_set)
    if am_root:
        if failure is not None:
            raise TypeError(f"broadcast_object: rank {root_rank} cannot pickle its object") from failure
        return obj
    return _unpack(_array(ops, content, np.uint8), root_rank, "broadcast_object")


def allgather_object(ops: Ops[T], obj: Any, name: str | None = None, process_set: Members = None) -> list[Any]:
    """The objects of all ranks of the set, in rank order, on all of them.

    When one of them cannot be pickled, all ranks raise TypeError that names the rank.
    """
    message, failure = _pack(obj)
    raw = np.frombuffer(message, dtype=np.uint8)
    base = name or "object"
    lengths = ops.allgather(_tensor(ops, np.array([raw.size], dtype=np.int64)), f"{base}.sizes", process_set)
    content = _array(ops, ops.allgather(_tensor(ops, raw), f"{base}.bytes", process_set), np.uint8)
    if failure is not None:
        raise TypeError("allgather_object: this rank cannot pickle its object") from failure
    ends = np.cumsum(_array(ops, lengths, np.int64))
    members = ops.members(process_set).ranks
    return [
        _unpack(part, rank, "allgather_object")
        for rank, part in zip(members, np.split(content, ends[:-1]), strict=True)
    ]


def _pack(obj: Any) -> tuple[bytes, Exception | None]:
    try:
        return _OBJECT + cloudpickle.dumps(obj), None
    except Exception as error:  # whatever an object's own reduce raises
        return _ERROR + "".join(traceback.format_exception_only(error)).encode(), error


def _unpack(message: np.ndarray[Any, np.dtype[np.uint8]], rank: int, what: str) -> Any:
    data = message.tobytes()
    if data[:1] == _ERROR:
        raise TypeError(f"{what}: rank {rank} cannot pickle its object: {data[1:].decode()}")
    return cloudpickle.loads(data[1:])


def _tensor(ops: Ops[T], array: np.ndarray[Any, Any]) -> T:
    # A copy: frombuffer arrays are read-only, and libraries warn about those.
    owned = array if array.flags.writeable else array.copy()
    return ops.adapter.from_bytes(owned.view(np.uint8), str(array.dtype), array.shape)


def _array(ops: Ops[T], tensor: T, dtype: type[np.generic]) -> np.ndarray[Any, Any]:
    return ops.adapter.to_bytes(ops.adapter.host(tensor)).view(dtype)
