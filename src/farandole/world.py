"""World and ProcessSet over the native core, and the one default world.

A `World` is an object: a process usually has one, made by `init()`, but ranks can as well be threads of one
process, each with a
World of its own (`loopback_worlds`, used by tests).
"""

from __future__ import annotations

import atexit
import json
import logging
import operator
import os
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from farandole import _core, config, errors
from farandole.rendezvous import detect, links, store

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from farandole.rendezvous.detect import Place

_DTYPES: Final = _core.dtypes()
_KINDS: Final = _core.kinds()
_OPS: Final = _core.ops()
_SHUTDOWN_SECONDS: Final = 5.0
_FOREVER: Final = 1e8


# kind, name, process set, dtype, op, shape, root, prescale, postscale, splits, input, output, refusal
_Request: TypeAlias = tuple[int, str, int, int, int, tuple[int, ...], int, float, float, tuple[int, ...], int, int, str]


class ProcessSet:
    """Some ranks of a world, for operations among them. Made by `World.add_process_set`; id 0 is the whole world."""

    def __init__(self, id: int, ranks: Sequence[int], world_rank: int) -> None:
        self.id = id
        self.ranks = tuple(ranks)  # global ranks, ascending
        self._world_rank = world_rank

    def size(self) -> int:
        """How many ranks are in the set."""
        return len(self.ranks)

    def included(self) -> bool:
        """Whether this rank is in the set."""
        return self._world_rank in self.ranks

    def rank(self) -> int:
        """This rank's position in the set. ValueError when it is not in it."""
        if not self.included():
            raise ValueError(f"rank {self._world_rank} is not in process set {self.id} (ranks {self.ranks})")
        return self.ranks.index(self._world_rank)

    def __repr__(self) -> str:
        return f"ProcessSet(id={self.id}, ranks={list(self.ranks)})"


class Handle:
    """A request in flight. Any thread may wait; the buffers named in the request stay alive until it is done."""

    __slots__ = ("_keep", "_native")

    def __init__(self, native: _core.Handle, keep: object) -> None:
        self._native = native
        self._keep = keep

    def done(self) -> bool:
        """True when `wait` would return at once."""
        return self._native.done()

    def wait(self, timeout: float | None = None) -> None:
        """Block until the request is done.

        timeout: seconds; TimeoutError after that, and the request goes on. Raises what ended the request: a
        `CollectiveError`, or ValueError for misuse found by the core (a name already in flight).
        """
        if not self._native.wait(_FOREVER if timeout is None else timeout):
            raise TimeoutError(f"the operation is not done after {timeout} s; it goes on")
        self._keep = None
        code, message, ranks = self._native.status()
        if code:
            raise errors.from_status(code, message, ranks)

    def output(self) -> NDArray[np.uint8]:
        """The result of an allgather or alltoall as bytes, without a copy; the caller owns it."""
        return self._native.output()

    def shape(self) -> tuple[int, ...]:
        """The dimensions of `output()`."""
        return self._native.shape()

    def received_splits(self) -> tuple[int, ...]:
        """Rows received from each member of the process set."""
        return self._native.received_splits()


class World:
    """One rank's view of all ranks: who and where it is, and the door to the core.

    Attributes: rank, size, local_rank, local_size, cross_rank, cross_size, epoch, hosts (a name for each rank),
    config, place,
    process_sets (by id), world_set. All methods may be called from any thread.
    """

    def __init__(
        self,
        place: Place,
        options: config.Config,
        hosts: Sequence[str],
        peer_links: Sequence[tuple[int, str, list[int], int]],
        arena_fd: int,
        hub: _core.LoopbackHub | None = None,
    ) -> None:
        """Takes over the sockets in `peer_links`; `arena_fd` is closed by the caller."""
        self.rank, self.size = place.rank, place.size
        self.local_rank, self.local_size = place.local_rank, place.local_size
        self.cross_rank, self.cross_size = place.cross_rank, place.cross_size
        self.epoch, self.hosts, self.config, self.place = place.epoch, tuple(hosts), options, place
        self._engine = _core.Engine(
            rank=place.rank,
            size=place.size,
            epoch=place.epoch,
            hosts=list(hosts),
            links=list(peer_links),
            arena_fd=arena_fd,
            hub=hub,
            fusion_bytes=options.fusion_bytes,
            small_bytes=options.small_bytes,
            spin_us=options.spin_us,
            stall_warning_s=options.stall_warning_s,
            stall_limit_s=options.stall_limit_s,
            trace_events=options.trace_events,
            arena_bytes=_arena_bytes(options, place.size),
        )
        self.world_set = ProcessSet(0, range(place.size), place.rank)
        self.process_sets: dict[int, ProcessSet] = {0: self.world_set}
        self._in_flight: deque[Handle] = deque()  # keeps buffers alive when the caller drops the handle
        self._closed = False

    def submit(
        self,
        kind: str,
        *,
        name: str,
        process_set: ProcessSet,
        dtype: str,
        shape: Sequence[int],
        op: str = "sum",
        root: int = 0,
        prescale: float = 1.0,
        postscale: float = 1.0,
        splits: Sequence[int] = (),
        input: int = 0,
        output: int = 0,
        refusal: str = "",
        keep: object = None,
        sync: bool = False,
    ) -> Handle:
        """Hand one request to the engine; returns at once.

        input, output: addresses of contiguous memory, which `keep` keeps alive until the request is done. Equal
        addresses mean in place (allreduce, broadcast). allgather and alltoall make their own output.
        refusal: non-empty when this rank cannot take part; every member then gets a MismatchError with the text.
        sync: the caller waits at once; the waiting thread drives the engine and saves two wake-ups.
        """
        native = self._engine.submit(
            *self._request(
                kind,
                name,
                process_set,
                dtype,
                op,
                shape,
                root,
                prescale,
                postscale,
                splits,
                input,
                output,
                refusal,
            ),
            sync,
        )
        return self._keep(Handle(native, keep), sync)

    def submit_group(self, requests: Sequence[dict[str, Any]]) -> list[Handle]:
        """Hand over several requests (each the keywords of `submit` and "kind") together, so that they can be fused."""
        rows, keeps = [], []
        for r in requests:
            keeps.append(r.get("keep"))
            rows.append(
                self._request(
                    r["kind"],
                    r["name"],
                    r["process_set"],
                    r["dtype"],
                    r.get("op", "sum"),
                    r["shape"],
                    r.get("root", 0),
                    r.get("prescale", 1.0),
                    r.get("postscale", 1.0),
                    r.get("splits", ()),
                    r.get("input", 0),
                    r.get("output", 0),
                    r.get("refusal", ""),
                )
            )
        natives = self._engine.submit_group(rows)
        return [self._keep(Handle(n, k), False) for n, k in zip(natives, keeps, strict=True)]

    def empty(self, nbytes: int) -> NDArray[np.uint8]:
        """Zeroed registered memory, page-aligned: collectives on it need no copies between ranks of one host.

        It is freed with the last array over it, also after `shutdown()`.
        """
        try:
            return self._engine.allocate(nbytes)
        except RuntimeError as error:
            raise MemoryError(str(error)) from None

    def add_process_set(self, ranks: Iterable[int]) -> ProcessSet:
        """Make a process set of these global ranks. Collective: every rank of the world calls it with the same ranks.

        ValueError for an empty list, a repeated or an unknown rank.
        """
        chosen = sorted(ranks)
        if not chosen or len(set(chosen)) != len(chosen) or chosen[0] < 0 or chosen[-1] >= self.size:
            raise ValueError(f"a process set needs different ranks between 0 and {self.size - 1}, not {chosen}")
        handle = self.submit(
            "process_set",
            name="process_set",
            process_set=self.world_set,
            dtype="int64",
            shape=chosen,
            sync=True,
        )
        handle.wait()
        made = ProcessSet(handle.shape()[0], chosen, self.rank)
        self.process_sets[made.id] = made
        return made

    def join(self, process_set: ProcessSet | None = None) -> int:
        """Say that this rank has no more data, and wait until all ranks of the set have said so.

        Until then the others may go on with allreduces, to which this rank contributes zeros (an average still divides
        by the size of the set); any other operation of theirs fails with MismatchError. Returns the rank that joined
        last.
        """
        members = process_set or self.world_set
        handle = self.submit("join", name="join", process_set=members, dtype="uint8", shape=(), sync=True)
        handle.wait()
        return handle.shape()[0]

    def transports(self) -> dict[int, str]:
        """How this rank reaches each of the others: "shm", "tcp" or "loopback"."""
        return dict(self._engine.links())

    def counters(self) -> dict[str, int]:
        """Totals since the start: operations, plans, fused and small operations, bytes, nanoseconds in plans."""
        return self._engine.counters()

    def last_events(self) -> list[tuple[int, str, str, str, int, int]]:
        """The newest events, oldest first: (steady clock ns, phase, kind, name, bytes, plan sequence)."""
        return self._engine.trace()

    def abort(self, reason: str) -> None:
        """Tell all ranks that this one has failed.

        Their pending and later operations raise PeerLostError with the reason.
        """
        self._engine.abort(reason)

    def shutdown(self) -> None:
        """Leave the world.

        Operations that others still start with this rank fail there with ShutdownError. Idempotent.
        """
        if not self._closed:
            self._closed = True
            self._engine.shutdown(_SHUTDOWN_SECONDS)
            self._in_flight.clear()

    def _request(
        self,
        kind: str,
        name: str,
        process_set: ProcessSet,
        dtype: str,
        op: str,
        shape: Sequence[int],
        root: int,
        prescale: float,
        postscale: float,
        splits: Sequence[int],
        input: int,
        output: int,
        refusal: str,
    ) -> _Request:
        return (
            _KINDS[kind],
            name,
            process_set.id,
            _DTYPES[dtype][0],
            _OPS[op],
            shape if isinstance(shape, tuple) else tuple(shape),
            operator.index(root),
            float(prescale),
            float(postscale),
            tuple(splits),
            input,
            output,
            refusal,
        )

    def _keep(self, handle: Handle, sync: bool) -> Handle:
        if not sync:
            queue = self._in_flight
            queue.append(handle)
            while queue and queue[0].done():
                queue.popleft()
        return handle


def _arena_bytes(options: config.Config, size: int) -> int:
    """Virtual size of one arena: the memory of the machine, less where the address space is limited."""
    if options.arena_bytes:
        return options.arena_bytes
    import resource

    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return physical if limit == resource.RLIM_INFINITY else min(physical, limit // (4 * size))


def connect(place: Place, options: config.Config) -> World:
    """Meet the other ranks and make a world. RendezvousError, naming who is missing, when that fails in time."""
    deadline = time.monotonic() + options.start_timeout_s
    if place.size == 1:
        return World(place, options, [socket.gethostname()], [], -1)
    arena_fd = _core.create_arena(place.size, _arena_bytes(options, place.size))
    try:
        client = store.StoreClient(place, deadline=deadline)
        try:
            peer_links, hosts = links.connect_all(
                place, client, options.transport, arena_fd, options.interface, deadline
            )
        finally:
            client.close()
        return World(place, options, hosts, peer_links, arena_fd)
    finally:
        os.close(arena_fd)


def loopback_worlds(size: int, options: config.Config | None = None) -> list[World]:
    """Worlds of `size` ranks that are threads of this process; each is to be used by a thread of its own."""
    hub = _core.LoopbackHub(size)
    made: list[World | None] = [None] * size
    chosen = options or config.load({})

    def make(rank: int) -> None:
        place = detect.Place(rank=rank, size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1)
        made[rank] = World(place, chosen, ["localhost"] * size, [], -1, hub)

    threads = [threading.Thread(target=make, args=(r,)) for r in range(size)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return [w for w in made if w is not None]


# ---- the default world
# ------------------------------------------------------------------------------------------------------

_default: World | None = None
_lock = threading.Lock()


def init() -> World:
    """Make this process a rank of the default world; a second call returns the same world.

    Finds its place from the launcher's environment; without one the world has one rank. Waits for all ranks, at most
    FARANDOLE_START_TIMEOUT_SECONDS. Raises ConfigError for a bad FARANDOLE_* variable, RendezvousError when the
    ranks cannot meet.
    """
    global _default
    with _lock:
        if _default is None:
            options = config.load(os.environ)
            _show_messages(options.log_level)
            _default = connect(detect.detect(os.environ), options)
            _report_failures()
    return _default


def world() -> World:
    """The default world. NotInitializedError before `init()` and after `shutdown()`."""
    if _default is None:
        raise errors.NotInitializedError("farandole has not been initialized; call init() first")
    return _default


def is_initialized() -> bool:
    """Whether there is a default world."""
    return _default is not None


def shutdown() -> None:
    """Leave the default world; nothing happens when there is none. `init()` may be called again."""
    global _default
    with _lock:
        if _default is not None:
            _default.shutdown()
            _default = None


def _show_messages(level: str) -> None:
    log = logging.getLogger("farandole")
    log.setLevel(level.upper())
    if not log.hasHandlers():  # an application that has set up logging keeps its own
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("farandole: %(levelname)s: %(message)s"))
        log.addHandler(handler)


_hooked = False


def _report_failures() -> None:
    """An exception that ends this rank reaches the others with its traceback, and every exit says goodbye."""
    global _hooked
    if _hooked:
        return
    _hooked = True
    atexit.register(shutdown)
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        # A rank that fails because another one did has nothing new to say.
        if _default is not None and not isinstance(error, errors.PeerLostError):
            text = "".join(traceback.format_exception_only(kind, error)).strip()
            where = "".join(traceback.format_tb(trace)).rstrip()
            _default.abort(f"{text}\n{where}" if where else text)
        if _default is not None:
            _tell_launcher(_default.place, error)

    sys.excepthook = report


def _tell_launcher(place: Place, error: BaseException) -> None:
    """Whose fault this rank's end is, so that the launcher names the cause and not the first consequence."""
    if not place.store_address:
        return
    because = [r for r in getattr(error, "ranks", ()) if r != place.rank]
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    try:
        deadline = time.monotonic() + 1
        client = store.StoreClient(place, deadline)
        client.set(f"failure/{place.rank}", json.dumps({"because": because, "text": text}).encode(), deadline)
        client.close()
    except errors.RendezvousError:
        pass  # there is no launcher any more
