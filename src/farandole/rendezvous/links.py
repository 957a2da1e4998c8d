"""Links between ranks: every pair meets once, proves who it is, and hands its sockets to the core.

Each rank listens on an abstract Unix socket with a random name and on TCP, publishes both in the store, connects
to every lower rank and accepts every higher one. Two ranks are on one host exactly if the Unix socket can be reached
(network namespaces share boot ids and hostnames, but not this); then they exchange arenas over it. Otherwise they
make two TCP connections, for control and for data.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from farandole.errors import AuthenticationError, RendezvousError
from farandole.rendezvous import handshake

if TYPE_CHECKING:
    from farandole.rendezvous.detect import Place
    from farandole.rendezvous.store import StoreClient

log = logging.getLogger("farandole")

# (peer rank, "shm", [Unix socket], the peer's arena) or (peer rank, "tcp", [control, data], -1); descriptors the
# receiver owns.
PeerLink: TypeAlias = tuple[int, str, list[int], int]

_CONNECT_SECONDS: Final = 3.0  # for one address, when there are several
_MOST_CONNECTING: Final = 16  # peers at a time: one that is silent at an address delays few others
_REPORT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 1.0  # between looks for another rank's failure, while waiting
_SIOCGIFADDR: Final = 0x8915
_FD: Final = struct.Struct("@i")  # one descriptor in a control message


class _Purpose(IntEnum):
    SHM = 1
    CONTROL = 2
    DATA = 3


class _Formation:
    """What has been connected so far; filled by the accepting threads and the connecting one."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sockets: dict[tuple[int, _Purpose], socket.socket] = {}
        self.arenas: dict[int, int] = {}
        self.welcoming: set[socket.socket] = set()  # accepted, not yet proven
        self.over = False
        self.strangers = 0

    def add(self, peer: int, purpose: _Purpose, connection: socket.socket, arena: int = -1) -> None:
        """Note a proven connection, in the place of an older one. RendezvousError, and all closed, when it is late."""
        with self.changed:
            if self.over:
                connection.close()
                if arena >= 0:
                    os.close(arena)
                raise RendezvousError("no one is awaited any more")
            old = self.sockets.pop((peer, purpose), None)
            if old is not None:
                old.close()
            self.sockets[peer, purpose] = connection
            if arena >= 0:
                if peer in self.arenas:
                    os.close(self.arenas[peer])
                self.arenas[peer] = arena
            self.changed.notify_all()

    def welcome(self, connection: socket.socket) -> bool:
        """Note a connection whose handshake begins; False when no one is awaited any more."""
        with self.changed:
            if not self.over:
                self.welcoming.add(connection)
            return not self.over

    def welcomed(self, connection: socket.socket) -> None:
        with self.changed:
            self.welcoming.discard(connection)

    def stranger(self) -> bool:
        """Count someone who is no rank of this job; True for the first."""
        with self.changed:
            self.strangers += 1
            return self.strangers == 1

    def end(self) -> None:
        """All are here, or it failed: whoever is still silent is not waited for."""
        with self.changed:
            self.over = True
            for connection in self.welcoming:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it has closed by itself

    def complete(self, peer: int) -> bool:
        have = self.sockets
        return (peer, _Purpose.SHM) in have or ((peer, _Purpose.CONTROL) in have and (peer, _Purpose.DATA) in have)

    def links(self) -> list[PeerLink]:
        peers = sorted({peer for peer, _ in self.sockets})
        made: list[PeerLink] = []
        for connection in self.sockets.values():
            connection.setblocking(False)
        for peer in peers:
            if (peer, _Purpose.SHM) in self.sockets:
                made.append((peer, "shm", [self.sockets[peer, _Purpose.SHM].detach()], self.arenas[peer]))
            else:
                pair = [self.sockets[peer, p].detach() for p in (_Purpose.CONTROL, _Purpose.DATA)]
                made.append((peer, "tcp", pair, -1))
        return made

    def close(self) -> None:
        for connection in self.sockets.values():
            connection.close()
        for fd in self.arenas.values():
            os.close(fd)


def connect_all(
    place: Place, store: StoreClient, transport: str, arena_fd: int, interface: str, deadline: float
) -> tuple[list[PeerLink], list[str]]:
    """Links to all other ranks, and the name of every rank's host.

    transport: "auto" (shm where possible), "shm" or "tcp". interface: listen on and publish the address of this one
    only, "" for all. deadline: time.monotonic() seconds. The descriptors belong to the caller; sockets are
    non-blocking.

    RendezvousError, the same text on all ranks where possible, names who is missing; then nothing stays open.
    """
    formation = _Formation()
    listeners: list[socket.socket] = []
    try:
        addresses = _addresses(place, interface)
        listeners += [_listen_unix()]
        listeners += [_listen_tcp(addresses)]
        mine = {
            "host": socket.gethostname(),
            "unix": listeners[0].getsockname()[1:].decode(),
            "tcp": addresses,
            "port": listeners[1].getsockname()[1],
        }
        store.set(_key(place, place.rank), json.dumps(mine).encode(), deadline)
        acceptors = [
            threading.Thread(target=_accept, args=(listener, place, arena_fd, formation, deadline), daemon=True)
            for listener in listeners
        ]
        for thread in acceptors:
            thread.start()
        try:
            peers = _meet(place, store, deadline)
            _connect_lower(place, peers, transport, arena_fd, formation, deadline)
            _await_higher(place, store, peers, formation, deadline)
        finally:
            formation.end()  # first: what accept raises then is no passing failure
            for listener in listeners:
                listener.shutdown(socket.SHUT_RDWR)
            for thread in acceptors:
                thread.join()
        return formation.links(), [str(p["host"]) for p in peers]
    except BaseException as error:
        formation.close()
        if isinstance(error, OSError):  # no descriptor is free, say
            because = RendezvousError(f"rank {place.rank} on {socket.gethostname()} cannot open its links: {error}")
            _tell(place, store, str(because))
            raise because from error
        if isinstance(error, RendezvousError):
            _tell(place, store, str(error))
        raise
    finally:
        for listener in listeners:
            listener.close()


def _key(place: Place, rank: int) -> str:
    return f"epoch/{place.epoch}/rank/{rank}"


def _failure_key(place: Place) -> str:
    return f"epoch/{place.epoch}/failure"


def _tell(place: Place, store: StoreClient, text: str) -> None:
    """Let the ranks that still wait learn the reason at once."""
    try:
        store.set(_failure_key(place), text.encode(), time.monotonic() + 1)
    except RendezvousError:
        pass  # the store is what failed


def _meet(place: Place, store: StoreClient, deadline: float) -> list[dict[str, object]]:
    """Every rank's published addresses, by rank."""
    found: list[dict[str, object]] = []
    start = reported = time.monotonic()
    while len(found) < place.size:
        now = time.monotonic()
        value = store.get(_key(place, len(found)), min(_LOOK_SECONDS, max(deadline - now, 0.0)))
        if value is not None:
            found.append(json.loads(value))
            continue
        failure = store.get(_failure_key(place), 0.0)
        if failure is not None:
            raise RendezvousError(failure.decode())
        missing = [r for r in range(len(found), place.size) if store.get(_key(place, r), 0.0) is None]
        if not missing:
            continue
        here = f"{place.size - len(missing)} of {place.size} ranks are here, missing: {', '.join(map(str, missing))}"
        now = time.monotonic()
        if now >= deadline:
            raise RendezvousError(
                f"the ranks did not meet within {now - start:.0f} s: {here}. Did they start? "
                "FARANDOLE_START_TIMEOUT_SECONDS gives them more time"
            )
        if now - reported > _REPORT_SECONDS:
            reported = now
            log.warning("waiting for ranks: %s", here)
    return found


def _listen_unix() -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("\0farandole-" + secrets.token_hex(16))
    listener.listen(1024)
    return listener


def _listen_tcp(addresses: Sequence[str]) -> socket.socket:
    """Where it is published and nowhere else, if that is one address: loopback for a job of one host."""
    host = addresses[0] if len(addresses) == 1 else "0.0.0.0"
    return socket.create_server((host, 0), backlog=1024)


def _addresses(place: Place, interface: str) -> list[str]:
    """Where this rank may be reached, routable addresses before loopback."""
    if place.cross_size == 1 and not interface:
        return ["127.0.0.1"]
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _, name in socket.if_nameindex():
            if interface and name != interface:
                continue
            try:
                answer = fcntl.ioctl(s.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an IPv4 address
            found.append(socket.inet_ntoa(answer[20:24]))
    if not found:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise RendezvousError(f"no address on interface {interface or '(any)'}; this host has {names}")
    return sorted(found, key=lambda a: a.startswith("127."))


def _accept(listener: socket.socket, place: Place, arena_fd: int, formation: _Formation, deadline: float) -> None:
    """Welcome the higher ranks; a stranger on the port is turned away in a thread of its own and delays nobody."""
    workers = []
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # the listener was shut down; or this one connection failed, or no descriptor is free just now
            with formation.changed:
                if formation.changed.wait_for(lambda: formation.over, 0.05):
                    break
            continue
        worker = threading.Thread(target=_welcome, args=(connection, place, arena_fd, formation, deadline), daemon=True)
        try:
            worker.start()
        except RuntimeError:  # too many threads just now; a peer tries again
            connection.close()
            continue
        workers.append(worker)
    for worker in workers:
        worker.join()


def _welcome(connection: socket.socket, place: Place, arena_fd: int, formation: _Formation, deadline: float) -> None:
    until = min(deadline, time.monotonic() + _CONNECT_SECONDS)
    try:
        if not formation.welcome(connection):
            raise RendezvousError("no one is awaited any more")
        claim = handshake.respond(connection, place.secret, place.job, place.rank, place.epoch, until)
        if not place.rank < claim.sender < place.size:
            raise RendezvousError(f"rank {claim.sender} of {place.size} connected to rank {place.rank}")
        _finish(claim.sender, _Purpose(claim.purpose), connection, arena_fd, formation, until)
    except (RendezvousError, OSError, ValueError) as error:
        connection.close()
        if isinstance(error, AuthenticationError) and formation.stranger():
            log.warning("someone who is not a rank of this job connected to rank %d: %s", place.rank, error)
        else:
            log.debug("rank %d turned a connection away: %s", place.rank, error)
    finally:
        formation.welcomed(connection)


def _finish(
    peer: int,
    purpose: _Purpose,
    connection: socket.socket,
    arena_fd: int,
    formation: _Formation,
    deadline: float,
) -> None:
    """What follows a handshake, on both sides: arenas are exchanged, the link is noted."""
    arena = -1
    if purpose is _Purpose.SHM:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            socket.send_fds(connection, [b"a"], [arena_fd])
            # not recv_fds, which ignores its flags: a fork at the wrong moment would inherit the arena
            _, control, _, _ = connection.recvmsg(1, socket.CMSG_LEN(_FD.size), socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise RendezvousError(f"rank {peer} did not exchange its arena: {error}") from None
        if not control:
            raise RendezvousError(f"rank {peer} closed the connection instead of sending its arena")
        (arena,) = _FD.unpack(control[0][2])
    else:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    formation.add(peer, purpose, connection, arena)


def _connect_lower(
    place: Place,
    peers: Sequence[dict[str, object]],
    transport: str,
    arena_fd: int,
    formation: _Formation,
    deadline: float,
) -> None:
    """Connect to all lower ranks at the same time; the first error of the lowest one is raised when all have ended."""
    if place.rank == 0:
        return
    with ThreadPoolExecutor(min(place.rank, _MOST_CONNECTING), "farandole-connect") as pool:
        attempts = [
            pool.submit(_connect, place, rank, peers[rank], transport, arena_fd, formation, deadline)
            for rank in range(place.rank)
        ]
    for attempt in attempts:
        attempt.result()


def _connect(
    place: Place,
    peer: int,
    published: dict[str, object],
    transport: str,
    arena_fd: int,
    formation: _Formation,
    deadline: float,
) -> None:
    tried: list[str] = []

    def attempt(family: socket.AddressFamily, address: str | tuple[str, int], purposes: Sequence[_Purpose]) -> bool:
        for purpose in purposes:
            try:
                connection = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                tried.append(f"{_shown(address)} ({error})")
                return False
            try:
                until = min(deadline, time.monotonic() + _CONNECT_SECONDS)
                connection.settimeout(max(until - time.monotonic(), 0.001))
                connection.connect(address)
                claim = handshake.Claim(place.rank, peer, purpose, place.epoch)
                handshake.initiate(connection, place.secret, place.job, claim, until)
                _finish(peer, purpose, connection, arena_fd, formation, until)
            except (OSError, RendezvousError) as error:
                connection.close()
                tried.append(f"{_shown(address)} ({error})")
                return False
        return True

    if transport != "tcp" and attempt(socket.AF_UNIX, f"\0{published['unix']}", [_Purpose.SHM]):
        return
    if transport != "shm":
        addresses, port = published["tcp"], published["port"]
        assert isinstance(addresses, list) and isinstance(port, int)
        while time.monotonic() < deadline and not formation.over:
            for host in addresses:
                if attempt(socket.AF_INET, (host, port), [_Purpose.CONTROL, _Purpose.DATA]):
                    return
            time.sleep(0.05)  # between rounds over all addresses of a rank that does not answer yet
    text = "; ".join(dict.fromkeys(tried))
    raise RendezvousError(f"rank {place.rank} cannot reach rank {peer} on {published['host']}; tried {text}")


def _shown(address: str | tuple[str, int]) -> str:
    return "its Unix socket" if isinstance(address, str) else f"{address[0]}:{address[1]}"


def _await_higher(
    place: Place,
    store: StoreClient,
    peers: Sequence[dict[str, object]],
    formation: _Formation,
    deadline: float,
) -> None:
    higher = range(place.rank + 1, place.size)
    while True:
        left = max(deadline - time.monotonic(), 0.0)
        with formation.changed:
            if formation.changed.wait_for(lambda: all(formation.complete(r) for r in higher), min(left, _LOOK_SECONDS)):
                return
        failure = store.get(_failure_key(place), 0.0)
        if failure is not None:
            raise RendezvousError(failure.decode())
        if left == 0:
            break
    with formation.changed:
        missing = ", ".join(f"{r} on {peers[r]['host']}" for r in higher if not formation.complete(r))
    raise RendezvousError(f"rank {place.rank} was not reached in time by rank {missing}")
