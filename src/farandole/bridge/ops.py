"""Every collective operation, for any tensor library: checked, named, handed to the World, delivered.

Frameworks bind this class to their adapter; nothing here knows which one.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Never, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary, ref

import numpy as np

if TYPE_CHECKING:
    from farandole.bridge.adapter import Adapter, Compressor
    from farandole.world import Handle as Pending
    from farandole.world import ProcessSet, World

T = TypeVar("T")
R = TypeVar("R")

Average: Final = 0
Sum: Final = 1
Adasum: Final = 2
Min: Final = 3
Max: Final = 4
Product: Final = 5

_OPS: Final = ("average", "sum", "adasum", "min", "max", "product")  # in the order of the numbers above
_OP_NAMES: Final[dict[int | str, str]] = {**dict(enumerate(_OPS)), **{name: name for name in _OPS}}
_NOT_REDUCIBLE: Final = frozenset({"float8_e4m3", "float8_e5m2"})
_NOT_ORDERED: Final = frozenset({"complex64", "complex128"})


class GlobalProcessSet:
    """Stands for the process set of all ranks of whichever world an operation runs in; usable before
    `init()`.
    """

    id: Final = 0

    def __repr__(self) -> str:
        return "global_process_set"


global_process_set: Final = GlobalProcessSet()

# What callers may give as process_set.
Members: TypeAlias = "ProcessSet | GlobalProcessSet | None"


class Handle(Generic[R]):
    """An operation on its way. `synchronize(handle)` or `handle.wait()` gives its result, as often as asked.

    Handles may be passed between threads. Dropping one does not cancel the operation.
    """

    __slots__ = ("_error", "_finish", "_lock", "_pending", "_result", "name")

    def __init__(self, name: str, pending: Sequence[Pending], finish: Callable[[], R]) -> None:
        self.name = name
        self._pending: Sequence[Pending] = pending
        self._finish: Callable[[], R] | None = finish
        self._result: R | None = None
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def done(self) -> bool:
        """True when `wait` would not block."""
        return all(pending.done() for pending in self._pending)

    def wait(self, timeout: float | None = None) -> R:
        """Block until the result is there and return it.

        timeout: seconds; TimeoutError after that, and the operation goes on.
        Raises the `farandole.errors.CollectiveError` that ended the operation, or ValueError for local
        misuse.
        """
        with self._lock:
            if self._finish is not None:
                for pending in self._pending:
                    try:
                        pending.wait(timeout)
                    except TimeoutError:
                        raise
                    except Exception as error:  # raised when all have ended: until then they write to memory
                        self._error = self._error or error
                if self._error is None:
                    self._result = self._finish()
                self._finish = None
                self._pending = ()
            if self._error is not None:
                raise self._error
            return self._result  # type: ignore[return-value]  # set: no error


class _Numbers:
    """Numbers for operations without a name, one sequence for each process set of a world.

    One sequence for all sets would drift apart between ranks that are in a set and those that are not.
    """

    def __init__(self) -> None:
        self._sequences: dict[int, Iterator[int]] = {}

    def next(self, process_set: int) -> int:
        sequence = self._sequences.get(process_set)
        if sequence is None:  # setdefault: of two threads that come here at once, one wins
            sequence = self._sequences.setdefault(process_set, itertools.count(1))
        return next(sequence)


_numbers: WeakKeyDictionary[World, _Numbers] = WeakKeyDictionary()
_numbers_lock = threading.Lock()


def _numbers_of(world: World) -> _Numbers:
    with _numbers_lock:
        numbers = _numbers.get(world)
        if numbers is None:
            numbers = _numbers[world] = _Numbers()
    return numbers


def number(world: World, process_set: int) -> int:
    """The next number for something unnamed; equal on all ranks that ask in the same order."""
    return _numbers_of(world).next(process_set)


def op_name(op: int | str) -> str:
    """The engine's word for a reduction given as `Sum` or "sum". ValueError for anything else."""
    name = _OP_NAMES.get(op.lower() if isinstance(op, str) else op)
    if name is None or isinstance(op, bool | float):  # True == 1
        raise ValueError(f"unknown reduction {op!r}: expected Average, Sum, Adasum, Min, Max or Product")
    return name


class _Call:
    """What all requests of one call have in common."""

    __slots__ = ("base", "kind", "name", "process_set", "world")

    def __init__(self, world: World, process_set: ProcessSet, kind: str, base: str) -> None:
        self.world = world
        self.process_set = process_set
        self.kind = kind
        self.base = base  # the name without the kind in front
        self.name = f"{kind}.{base}"


class Ops(Generic[T]):
    """The collective operations on tensors of type `T`.

    Common to all of them:

    name: equal on all ranks. Operations with names may be started in any order on any rank; those without one
    get
        "<operation>.noname.<n>" and must be started in the same order on all ranks of the process set.
    process_set: the ranks that take part; None or `global_process_set` for all. Only its members may call.
    Tensors may lie anywhere in memory (strided views too); an asynchronous operation owns its input until it
    is done: do not write to it. All ranks get bit-identical results.

    `*_async` forms return at once with a `Handle`; forms ending in `_` write into the tensor given. Any
    thread may call. Raised everywhere: `NotInitializedError` before `init()`; `MismatchError` on all ranks
    when they disagree (dtype, shape, op, root, factors) or one of them refused, and the world stays usable;
    other `CollectiveError`s when a rank or a link is lost; ValueError or TypeError for misuse on this rank,
    of which the other ranks learn as a `MismatchError`.
    """

    def __init__(self, adapter: Adapter[T], world: Callable[[], World]) -> None:
        """world: asked at every call, so that one object can follow the default world through re-
        initialisation.
        """
        self.adapter = adapter
        self._world = world
        # Of the world seen last; weak, since a world that was shut down must be able to go.
        self._seen: tuple[Callable[[], World | None], _Numbers] | None = None

    @property
    def world(self) -> World:
        """The world the next operation runs in."""
        return self._world()

    # ---- allreduce ---------------------------------------------------------------------------------------

    def allreduce(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        compression: Compressor[T] | None = None,
        op: int | str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Members = None,
    ) -> T:
        """Reduce a tensor of equal shape and dtype over all ranks; returns a new tensor.

        op: Average (the default), Sum, Adasum (of float tensors), Min, Max or Product. `average=True/False` is the
            old spelling of Average/Sum. float16 and bfloat16 are summed in float32 and rounded once inside a host;
            integers are averaged with truncation toward zero; for bool Sum and Max are OR, Product and Min are AND.
        prescale_factor, postscale_factor: multiplied in before and after the reduction, equal on all ranks.
        compression: the form in which the tensor travels.
        """
        return self._allreduce(
            tensor,
            average,
            name,
            compression,
            op,
            prescale_factor,
            postscale_factor,
            process_set,
            False,
            True,
        ).wait()

    def allreduce_async(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Members = None,
    ) -> Handle[T]:
        """`allreduce` that returns a handle at once."""
        return self._allreduce(
            tensor, average, name, None, op, prescale_factor, postscale_factor, process_set, False, False
        )

    def allreduce_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Members = None,
    ) -> T:
        """`allreduce` into the tensor itself, which is returned."""
        return self._allreduce(
            tensor, average, name, None, op, prescale_factor, postscale_factor, process_set, True, True
        ).wait()

    def allreduce_async_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Members = None,
    ) -> Handle[T]:
        """`allreduce_` that returns a handle at once; the tensor is undefined until it is done."""
        return self._allreduce(
            tensor, average, name, None, op, prescale_factor, postscale_factor, process_set, True, False
        )

    def grouped_allreduce(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        compression: Compressor[T] | None = None,
        op: int | str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Members = None,
    ) -> list[T]:
        """`allreduce` of several tensors, of any dtypes and shapes, handed over together."""
        return self._grouped_allreduce(
            tensors,
            average,
            name,
            compression,
            op,
            prescale_factor,
            postscale_factor,
            process_set,
            False,
            True,
        ).wait()

    def grouped_allreduce_async(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Members = None,
    ) -> Handle[list[T]]:
        """`grouped_allreduce` that returns one handle at once."""
        return self._grouped_allreduce(
            tensors, average, name, None, op, prescale_factor, postscale_factor, process_set, False, False
        )

    def grouped_allreduce_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Members = None,
    ) -> list[T]:
        """`grouped_allreduce` into the tensors themselves, which are returned."""
        return self._grouped_allreduce(
            tensors, average, name, None, op, prescale_factor, postscale_factor, process_set, True, True
        ).wait()

    def grouped_allreduce_async_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | str | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Members = None,
    ) -> Handle[list[T]]:
        """`grouped_allreduce_` that returns one handle at once."""
        return self._grouped_allreduce(
            tensors, average, name, None, op, prescale_factor, postscale_factor, process_set, True, False
        )

    # ---- allgather ---------------------------------------------------------------------------------------

    def allgather(self, tensor: T, name: str | None = None, process_set: Members = None) -> T:
        """Put the rows of all ranks below each other, in rank order; returns a new tensor.

        The first dimension may differ between ranks and may be 0; the other dimensions and the dtype are
        equal.
        """
        return self._allgather(tensor, name, process_set, True).wait()[0]

    def allgather_async(self, tensor: T, name: str | None = None, process_set: Members = None) -> Handle[T]:
        """`allgather` that returns a handle at once."""
        return _then(self._allgather(tensor, name, process_set, False), lambda pair: pair[0])

    # ---- broadcast ---------------------------------------------------------------------------------------

    def broadcast(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: Members = None,
    ) -> T:
        """The tensor of rank `root_rank` (a rank of the world, in the set), as a new tensor on all ranks.

        All ranks give a tensor of the same shape and dtype; only the root's values count.
        """
        return self._broadcast(tensor, root_rank, name, process_set, False, True).wait()

    def broadcast_async(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: Members = None,
    ) -> Handle[T]:
        """`broadcast` that returns a handle at once."""
        return self._broadcast(tensor, root_rank, name, process_set, False, False)

    def broadcast_(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: Members = None,
    ) -> T:
        """`broadcast` into the tensor itself, which is returned."""
        return self._broadcast(tensor, root_rank, name, process_set, True, True).wait()

    def broadcast_async_(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: Members = None,
    ) -> Handle[T]:
        """`broadcast_` that returns a handle at once; the tensor is undefined until it is done."""
        return self._broadcast(tensor, root_rank, name, process_set, True, False)

    # ---- alltoall ----------------------------------------------------------------------------------------

    def alltoall(
        self,
        tensor: T,
        splits: T | Sequence[int] | None = None,
        name: str | None = None,
        process_set: Members = None,
    ) -> T | tuple[T, T]:
        """Send rows of the tensor to each rank, receive rows from each, in rank order.

        splits: how many rows go to each member of the set (length: size of the set; sum: at most dimension 0;
        rows
            beyond the sum stay behind). Without splits dimension 0 is divided equally and the result is the
            tensor alone; with splits it is the pair (tensor, received splits), the latter int32 of length set
            size.
        """
        received, counts = self._alltoall(tensor, splits, name, process_set, True).wait()
        return received if splits is None else (received, counts)

    def alltoall_async(
        self,
        tensor: T,
        splits: T | Sequence[int] | None = None,
        name: str | None = None,
        process_set: Members = None,
    ) -> Handle[tuple[T, T]]:
        """`alltoall` that returns a handle at once; the result is always (tensor, received splits)."""
        return self._alltoall(tensor, splits, name, process_set, False)

    # ---- reducescatter -----------------------------------------------------------------------------------

    def reducescatter(
        self,
        tensor: T,
        name: str | None = None,
        compression: Compressor[T] | None = None,
        op: int | str = Average,
        process_set: Members = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> T:
        """`allreduce`, of which each rank keeps its own rows only.

        Dimension 0 is divided over the set; its first (dimension 0 modulo size) ranks get one row more.
        """
        return self._reducescatter(
            tensor, name, compression, op, process_set, prescale_factor, postscale_factor, True
        ).wait()

    def reducescatter_async(
        self,
        tensor: T,
        name: str | None = None,
        op: int | str = Average,
        process_set: Members = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Handle[T]:
        """`reducescatter` that returns a handle at once."""
        return self._reducescatter(tensor, name, None, op, process_set, prescale_factor, postscale_factor, False)

    # ---- without a tensor --------------------------------------------------------------------------------

    def barrier(self, process_set: Members = None) -> None:
        """Return when all ranks of the set have called it."""
        call = self._call("barrier", None, process_set)
        call.world.submit(
            "barrier", name=call.name, process_set=call.process_set, dtype="uint8", shape=(), sync=True
        ).wait()

    def join(self, process_set: Members = None) -> int:
        """Say that this rank has no more data, and wait until all ranks of the set have said so.

        Until then the others may go on with allreduces, to which this rank contributes zeros (an average still divides
        by the size of the set); any other operation of theirs fails with MismatchError. Returns the rank that joined
        last.
        """
        return self._call("join", "", process_set).world.join(self.members(process_set))

    @staticmethod
    def poll(handle: Handle[Any]) -> bool:
        """True when `synchronize(handle)` would not block."""
        return handle.done()

    @staticmethod
    def synchronize(handle: Handle[R]) -> R:
        """Wait for an asynchronous operation and return its result; raises what ended it."""
        return handle.wait()

    # ---- inside ------------------------------------------------------------------------------------------

    def members(self, process_set: Members) -> ProcessSet:
        """The process set meant by an argument. ValueError when it belongs to another world."""
        world = self._world()
        if process_set is None or isinstance(process_set, GlobalProcessSet):
            return world.world_set
        if world.process_sets.get(process_set.id) is not process_set:
            raise ValueError(f"{process_set!r} is not a process set of this world: see add_process_set()")
        return process_set

    def _call(self, kind: str, name: str | None, process_set: Members) -> _Call:
        members = self.members(process_set)
        world = self._world()
        if not members.included():
            raise ValueError(f"rank {world.rank} called {kind} on a process set it is not in (ranks {members.ranks})")
        if name is None:
            seen = self._seen
            if seen is None or seen[0]() is not world:
                seen = self._seen = (ref(world), _numbers_of(world))
            prefix = "noname" if members.id == 0 else f"set{members.id}.noname"
            name = f"{prefix}.{seen[1].next(members.id)}"
        return _Call(world, members, kind, name)

    def _refuse(self, call: _Call, error: Exception, names: Sequence[str] = ()) -> Never:
        """Tell the peers, who may be waiting for this request (or these), then raise."""
        text = f"{call.name}: {error}"
        for name in names or (call.name,):
            call.world.submit(call.kind, name=name, process_set=call.process_set, dtype="uint8", shape=(), refusal=text)
        if type(error) in (ValueError, TypeError):
            raise type(error)(text) from None
        raise error

    def _check(self, tensor: T, op: int | str | None = None) -> tuple[str, str]:
        """(dtype, op name) of a request, or ValueError/TypeError."""
        if not self.adapter.owns(tensor):
            raise TypeError(f"expected a tensor, got {type(tensor).__name__}")
        dtype = self.adapter.dtype(tensor)
        if op is None:
            return dtype, "sum"
        name = op_name(op)
        if dtype in _NOT_REDUCIBLE or (dtype in _NOT_ORDERED and name in ("min", "max")):
            raise ValueError(f"{dtype} has no {name}; convert the tensor first")
        if name == "adasum" and "float" not in dtype:
            raise ValueError(f"Adasum needs a float dtype, not {dtype}")
        return dtype, name

    def _check_writable(self, tensor: T) -> None:
        reason = self.adapter.why_not_writable(tensor)
        if reason:
            raise ValueError(f"cannot write the result into the tensor: {reason}")

    def _rows(self, tensor: T) -> int:
        shape = self.adapter.shape(tensor)
        if not shape:
            raise ValueError("a tensor without dimensions has no rows; reshape it to (1,)")
        return shape[0]

    @staticmethod
    def _choose(average: bool | None, op: int | str | None) -> int | str:
        if average is None:
            return Average if op is None else op
        if op is not None:
            raise ValueError("give either op or average, not both")
        warnings.warn("average= is deprecated: use op=Average or op=Sum", DeprecationWarning, stacklevel=4)
        return Average if average else Sum

    def _reduction(
        self,
        tensor: T,
        compression: Compressor[T] | None,
        op: int | str,
        in_place: bool,
    ) -> tuple[dict[str, Any], Callable[[], T]]:
        """Request fields of one allreduce, and what to do when it is done."""
        adapter = self.adapter
        dtype, name = self._check(tensor, op)
        if in_place:
            self._check_writable(tensor)
            source = result = adapter.host(tensor)
        elif compression is None:
            source = adapter.host(tensor)
            # A copy made for the engine can take the result as well.
            result = source if source is not tensor else adapter.empty(source, adapter.shape(source))
        else:
            small, context = compression.compress(tensor)
            dtype, name = self._check(small, op)
            source = adapter.host(small)
            result = adapter.empty(source, adapter.shape(source))
        address = adapter.address(source)
        fields = {
            "dtype": dtype,
            "op": name,
            "shape": adapter.shape(source),
            "input": address,
            "output": address if result is source else adapter.address(result),
            "keep": (source, result),
        }

        def finish() -> T:
            if in_place:
                adapter.written(tensor, result)
                return tensor
            if compression is None:
                return adapter.deliver(result, tensor)
            return compression.decompress(adapter.deliver(result, tensor), context)

        return fields, finish

    def _allreduce(
        self,
        tensor: T,
        average: bool | None,
        name: str | None,
        compression: Compressor[T] | None,
        op: int | str | None,
        prescale: float,
        postscale: float,
        process_set: Members,
        in_place: bool,
        sync: bool,
    ) -> Handle[T]:
        call = self._call("allreduce", name, process_set)
        try:
            fields, finish = self._reduction(tensor, compression, self._choose(average, op), in_place)
            pending = call.world.submit(
                "allreduce",
                name=call.name,
                process_set=call.process_set,
                prescale=prescale,
                postscale=postscale,
                sync=sync,
                **fields,
            )
        except Exception as error:
            self._refuse(call, error)
        return Handle(call.base, (pending,), finish)

    def _grouped_allreduce(
        self,
        tensors: Sequence[T],
        average: bool | None,
        name: str | None,
        compression: Compressor[T] | None,
        op: int | str | None,
        prescale: float,
        postscale: float,
        process_set: Members,
        in_place: bool,
        sync: bool,
    ) -> Handle[list[T]]:
        call = self._call("grouped_allreduce", name, process_set)
        names = [f"{call.name}_{i}of{len(tensors)}" for i in range(1, len(tensors) + 1)]
        call = _Call(call.world, call.process_set, "allreduce", call.base)
        requests: list[dict[str, Any]] = []
        finishes: list[Callable[[], T]] = []
        try:
            op = self._choose(average, op)
            for member, tensor in zip(names, tensors, strict=True):
                fields, finish = self._reduction(tensor, compression, op, in_place)
                fields.update(
                    kind="allreduce",
                    name=member,
                    process_set=call.process_set,
                    prescale=prescale,
                    postscale=postscale,
                )
                requests.append(fields)
                finishes.append(finish)
            pending = call.world.submit_group(requests) if requests else ()
        except Exception as error:
            self._refuse(call, error, names)
        return Handle(call.base, pending, lambda: [finish() for finish in finishes])

    def _allgather(
        self, tensor: T, name: str | None, process_set: Members, sync: bool
    ) -> Handle[tuple[T, tuple[int, ...]]]:
        """Result: the tensor, and how many rows each member gave."""
        adapter = self.adapter
        call = self._call("allgather", name, process_set)
        try:
            dtype, _ = self._check(tensor)
            self._rows(tensor)
            source = adapter.host(tensor)
            pending = call.world.submit(
                "allgather",
                name=call.name,
                process_set=call.process_set,
                dtype=dtype,
                shape=adapter.shape(source),
                input=adapter.address(source),
                keep=source,
                sync=sync,
            )
        except Exception as error:
            self._refuse(call, error)

        def finish() -> tuple[T, tuple[int, ...]]:
            result = adapter.from_bytes(pending.output(), dtype, pending.shape())
            return adapter.deliver(result, tensor), pending.received_splits()

        return Handle(call.base, (pending,), finish)

    def _broadcast(
        self,
        tensor: T,
        root_rank: int,
        name: str | None,
        process_set: Members,
        in_place: bool,
        sync: bool,
    ) -> Handle[T]:
        adapter = self.adapter
        call = self._call("broadcast", name, process_set)
        try:
            dtype, _ = self._check(tensor)
            if root_rank not in call.process_set.ranks:
                raise ValueError(f"root rank {root_rank} is not among the ranks {call.process_set.ranks}")
            if in_place:
                self._check_writable(tensor)
            source = adapter.host(tensor)
            copied = source is not tensor
            result = source if in_place or copied else adapter.empty(source, adapter.shape(source))
            pending = call.world.submit(
                "broadcast",
                name=call.name,
                process_set=call.process_set,
                dtype=dtype,
                shape=adapter.shape(source),
                root=root_rank,
                input=adapter.address(source),
                output=adapter.address(result),
                keep=(source, result),
                sync=sync,
            )
        except Exception as error:
            self._refuse(call, error)

        def finish() -> T:
            if in_place:
                adapter.written(tensor, result)
                return tensor
            return adapter.deliver(result, tensor)

        return Handle(call.base, (pending,), finish)

    def _alltoall(
        self,
        tensor: T,
        splits: T | Sequence[int] | None,
        name: str | None,
        process_set: Members,
        sync: bool,
    ) -> Handle[tuple[T, T]]:
        adapter = self.adapter
        call = self._call("alltoall", name, process_set)
        try:
            dtype, _ = self._check(tensor)
            rows_to = self._splits(splits, self._rows(tensor), call.process_set.size())
            source = adapter.host(tensor)
            pending = call.world.submit(
                "alltoall",
                name=call.name,
                process_set=call.process_set,
                dtype=dtype,
                shape=adapter.shape(source),
                splits=rows_to,
                input=adapter.address(source),
                keep=source,
                sync=sync,
            )
        except Exception as error:
            self._refuse(call, error)

        def finish() -> tuple[T, T]:
            result = adapter.from_bytes(pending.output(), dtype, pending.shape())
            counts = np.array(pending.received_splits(), dtype=np.int32)
            received = adapter.from_bytes(counts.view(np.uint8), "int32", counts.shape)
            return adapter.deliver(result, tensor), adapter.deliver(
                received, splits if adapter.owns(splits) else received
            )

        return Handle(call.base, (pending,), finish)

    def _splits(self, splits: T | Sequence[int] | None, rows: int, size: int) -> tuple[int, ...]:
        """How many rows go to each of `size` members. ValueError when that is not possible."""
        if splits is None:
            if rows % size:
                raise ValueError(f"dimension 0 ({rows}) is not divisible by the {size} ranks; give splits")
            return (rows // size,) * size
        if self.adapter.owns(splits):
            dtype = self.adapter.dtype(splits)
            if "int" not in dtype or len(self.adapter.shape(splits)) != 1:
                raise ValueError(f"splits must be a vector of integers, not {dtype} {self.adapter.shape(splits)}")
            values = tuple(int(v) for v in self.adapter.to_bytes(self.adapter.host(splits)).view(dtype))
        else:
            values = tuple(int(v) for v in cast("Sequence[int]", splits))
        if len(values) != size:
            raise ValueError(f"splits has {len(values)} entries for {size} ranks")
        if min(values) < 0 or sum(values) > rows:
            raise ValueError(f"splits {values} must not be negative and must sum to at most dimension 0 ({rows})")
        return values

    def _reducescatter(
        self,
        tensor: T,
        name: str | None,
        compression: Compressor[T] | None,
        op: int | str,
        process_set: Members,
        prescale: float,
        postscale: float,
        sync: bool,
    ) -> Handle[T]:
        adapter = self.adapter
        call = self._call("reducescatter", name, process_set)
        try:
            self._check(tensor, op)
            small, context = (tensor, None) if compression is None else compression.compress(tensor)
            dtype, op_text = self._check(small, op)
            rows = self._rows(small)
            if op_text == "adasum":
                raise ValueError("reducescatter has no Adasum: use allreduce, or Average or Sum")
            source = adapter.host(small)
            shape = adapter.shape(source)
            size = call.process_set.size()
            mine = rows // size + (call.process_set.rank() < rows % size)
            result = adapter.empty(source, (mine, *shape[1:]))
            pending = call.world.submit(
                "reducescatter",
                name=call.name,
                process_set=call.process_set,
                dtype=dtype,
                op=op_text,
                shape=shape,
                prescale=prescale,
                postscale=postscale,
                input=adapter.address(source),
                output=adapter.address(result),
                keep=(source, result),
                sync=sync,
            )
        except Exception as error:
            self._refuse(call, error)

        def finish() -> T:
            delivered = adapter.deliver(result, tensor)
            return delivered if compression is None else compression.decompress(delivered, context)

        return Handle(call.base, (pending,), finish)


def _then(handle: Handle[T], change: Callable[[T], R]) -> Handle[R]:
    """A handle with another result."""
    finish = handle._finish
    assert finish is not None, "only for handles nobody has waited for"
    return Handle(handle.name, handle._pending, lambda: change(finish()))
