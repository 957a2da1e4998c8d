"""Ranks meet, over shared memory and TCP; and say who is missing when they do not."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from farandole.errors import RendezvousError
from farandole.rendezvous import handshake
from farandole.rendezvous import links as links_module
from farandole.rendezvous.detect import Place
from farandole.rendezvous.handshake import Claim
from farandole.rendezvous.links import PeerLink, _Formation, _Purpose, _welcome, connect_all
from farandole.rendezvous.store import StoreClient, StoreServer, new_job_id, new_secret

SECRET, JOB = new_secret(), new_job_id()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreServer]:
    """A store, and ranks that look at it often."""
    monkeypatch.setattr(links_module, "_LOOK_SECONDS", 0.1)
    made = StoreServer(SECRET, JOB)
    yield made
    made.close()


def meet(
    server: StoreServer,
    size: int,
    transport: str,
    seconds: float = 10,
    absent: int = -1,
    before: Callable[[], None] = lambda: None,
) -> tuple[list[list[PeerLink]], list[str]]:
    """connect_all of every rank but `absent`; links by rank, and the errors' texts."""
    links: list[list[PeerLink]] = [[] for _ in range(size)]
    errors: list[str] = []

    def join(rank: int) -> None:
        place = Place(rank, size, rank, size, 0, 1, server.address, JOB, SECRET)
        deadline = time.monotonic() + seconds
        arena = os.memfd_create(f"arena {rank}")
        os.write(arena, b"%d" % rank)
        client = StoreClient(place, deadline)
        try:
            links[rank], hosts = connect_all(place, client, transport, arena, "", deadline)
            assert hosts == [socket.gethostname()] * size
        except RendezvousError as error:
            errors.append(str(error))
        finally:
            client.close()
            os.close(arena)

    threads = [threading.Thread(target=join, args=(r,)) for r in range(size) if r != absent]
    for t in threads:
        t.start()
    before()
    for t in threads:
        t.join(30)
        assert not t.is_alive()
    return links, errors


@pytest.mark.parametrize("transport", ["shm", "tcp", "auto"])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_pair_gets_its_link(server: StoreServer, size: int, transport: str) -> None:
    links, errors = meet(server, size, transport)
    assert not errors
    kind = "tcp" if transport == "tcp" else "shm"
    ends = {(rank, peer): (fds, arena) for rank in range(size) for peer, k, fds, arena in links[rank] if k == kind}
    assert set(ends) == {(a, b) for a in range(size) for b in range(size) if a != b}
    for (rank, peer), (fds, arena) in ends.items():
        assert all(not os.get_blocking(fd) and not os.get_inheritable(fd) for fd in fds)
        if kind == "shm":
            assert os.pread(arena, 9, 0) == b"%d" % peer
        for i, fd in enumerate(fds):
            os.write(fd, b"from %d on %d" % (rank, i))
    for (_, peer), (fds, arena) in ends.items():
        for i, fd in enumerate(fds):
            assert os.read(fd, 99) == b"from %d on %d" % (peer, i)
            os.close(fd)
        if arena >= 0:
            os.close(arena)


def test_the_missing_rank_is_named_everywhere(server: StoreServer) -> None:
    links, errors = meet(server, 3, "auto", seconds=0.4, absent=1)
    assert links == [[], [], []]
    assert len(errors) == 2
    assert all("2 of 3 ranks are here, missing: 1" in e and "FARANDOLE_START_TIMEOUT_SECONDS" in e for e in errors)


def test_strangers_at_the_listeners_are_turned_away(server: StoreServer) -> None:
    """Everything a port scanner does while ranks meet: connect, talk nonsense, stay."""
    stay: list[socket.socket] = []

    def scan() -> None:
        with open("/proc/net/tcp") as table:
            ports = {int(line.split()[1].split(":")[1], 16) for line in table if " 0A " in line and "0100007F" in line}
        for port in ports:
            try:
                s = socket.create_connection(("127.0.0.1", port), 1)
                s.sendall(b"GET / HTTP/1.0\r\n\r\n" * 20)
                stay.append(s)
            except OSError:
                continue

    links, errors = meet(server, 4, "tcp", before=scan)
    assert not errors
    for s in stay:
        s.close()
    for rank_links in links:
        assert len(rank_links) == 3
        for _, _, fds, _ in rank_links:
            for fd in fds:
                os.close(fd)


def close_all(links: list[list[PeerLink]]) -> None:
    for rank_links in links:
        for _, _, fds, arena in rank_links:
            for fd in [*fds, *([arena] if arena >= 0 else [])]:
                os.close(fd)


def published(server: StoreServer, rank: int) -> tuple[str, int]:
    """Where a rank listens, as soon as it has said so."""
    client = StoreClient(Place(0, 1, 0, 1, 0, 1, server.address, JOB, SECRET), time.monotonic() + 5)
    value = client.get(f"epoch/0/rank/{rank}", 5.0)
    client.close()
    assert value is not None
    return "127.0.0.1", json.loads(value)["port"]


def test_a_silent_stranger_delays_nobody(server: StoreServer) -> None:
    """It is accepted before the ranks are complete, and says nothing for longer than a handshake may take."""
    stay: list[socket.socket] = []
    links: list[list[PeerLink]] = []

    def silence() -> None:
        stay.append(socket.create_connection(published(server, 0), 5))

    start = time.monotonic()
    found, errors = meet(server, 2, "tcp", absent=1, seconds=0.5, before=silence)  # rank 0 fails at its deadline
    assert len(errors) == 1 and found == [[], []]
    assert time.monotonic() - start < 2
    stay.pop().close()

    other = StoreServer(SECRET, JOB)
    try:
        waiting = threading.Thread(target=lambda: links.extend(one(other, 0, 2)))
        waiting.start()
        stay.append(socket.create_connection(published(other, 0), 5))
        start = time.monotonic()
        links.extend(one(other, 1, 2))
        waiting.join(10)
        assert time.monotonic() - start < 2
        assert len(links) == 2
    finally:
        stay.pop().close()
        other.close()
        close_all(links)


def one(server: StoreServer, rank: int, size: int, interface: str = "", seconds: float = 10) -> list[list[PeerLink]]:
    deadline = time.monotonic() + seconds
    arena = os.memfd_create("arena")
    place = Place(rank, size, rank, size, 0, 1, server.address, JOB, SECRET)
    client = StoreClient(place, deadline)
    try:
        return [connect_all(place, client, "auto" if rank else "tcp", arena, interface, deadline)[0]]
    finally:
        client.close()
        os.close(arena)


def test_arenas_are_not_inherited(server: StoreServer) -> None:
    links, errors = meet(server, 2, "shm")
    assert not errors
    assert [os.get_inheritable(arena) for rank in links for _, _, _, arena in rank] == [False, False]
    close_all(links)


def test_a_second_arena_of_a_rank_replaces_the_first() -> None:
    """A rank may come again; what it replaces is closed."""
    formation = _Formation()
    for _ in range(2):
        ours, theirs = socket.socketpair()
        theirs.close()
        formation.add(1, _Purpose.SHM, ours, os.memfd_create("arena"))
    formation.close()  # the guard looks for memfds that are left
    assert not [fd for fd in os.listdir("/proc/self/fd") if _memfd(fd)]


def _memfd(fd: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:arena")
    except OSError:
        return False


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_dies_after_publishing_is_named(server: StoreServer, transport: str) -> None:
    """Rank 2 published its place and is gone: rank 1 and rank 0 wait for its connection, and close what they have."""
    gone = {"host": "elsewhere", "unix": "nobody", "tcp": ["127.0.0.1"], "port": 1}
    server.set("epoch/0/rank/2", json.dumps(gone).encode())
    links, errors = meet(server, 3, transport, seconds=0.6, absent=2)
    assert links == [[], [], []]
    assert len(errors) == 2 and all("rank 2 on elsewhere" in e for e in errors)
    assert not [fd for fd in os.listdir("/proc/self/fd") if _memfd(fd)]


def test_the_reason_of_one_rank_reaches_the_others_at_once(server: StoreServer) -> None:
    errors: list[str] = []

    def fail(rank: int, interface: str) -> None:
        try:
            one(server, rank, 2, interface, seconds=20)
        except RendezvousError as error:
            errors.append(str(error))

    start = time.monotonic()
    threads = [threading.Thread(target=fail, args=(r, i)) for r, i in ((0, ""), (1, "nosuch0"))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert time.monotonic() - start < 10
    assert len(errors) == 2 and all("no address on interface nosuch0; this host has " in e for e in errors)


@pytest.mark.parametrize("sender", [0, 2, -1])
def test_only_higher_ranks_of_the_world_are_welcome(sender: int) -> None:
    """Someone who knows the secret but cannot be a peer."""
    ours, theirs = socket.socketpair()
    formation = _Formation()
    place = Place(0, 2, 0, 2, 0, 1, "", JOB, SECRET)
    worker = threading.Thread(target=_welcome, args=(theirs, place, -1, formation, time.monotonic() + 5))
    worker.start()
    with ours:
        handshake.initiate(ours, SECRET, JOB, Claim(sender, 0, _Purpose.CONTROL, 0), time.monotonic() + 5)
        ours.settimeout(5)
        assert ours.recv(1) == b""
    worker.join(10)
    assert not formation.sockets and not formation.welcoming and theirs.fileno() == -1


def test_a_silent_address_of_every_rank_costs_its_time_once(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank publishes first an address where connections are taken and nothing is ever said."""
    silent: list[socket.socket] = []

    def listen(addresses: list[str]) -> socket.socket:
        while True:
            real = socket.create_server((addresses[-1], 0), backlog=64)
            try:
                silent.append(socket.create_server((addresses[0], real.getsockname()[1]), backlog=64))
                return real
            except OSError:  # someone has that port there
                real.close()

    monkeypatch.setattr(links_module, "_addresses", lambda place, interface: ["127.0.0.2", "127.0.0.1"])
    monkeypatch.setattr(links_module, "_listen_tcp", listen)
    monkeypatch.setattr(links_module, "_CONNECT_SECONDS", 0.4)
    start = time.monotonic()
    links, errors = meet(server, 6, "tcp")
    took = time.monotonic() - start
    for s in silent:
        s.close()
    close_all(links)
    assert not errors and [len(found) for found in links] == [5] * 6
    assert 0.4 < took < 1.2  # one after another it would be 5 * 0.4 s


class Failing:
    """A listener whose first accept fails."""

    def __init__(self, real: socket.socket) -> None:
        self._real, self.failed = real, False

    def accept(self) -> object:
        if not self.failed:
            self.failed = True
            raise OSError(24, "Too many open files")
        return self._real.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


def test_an_accept_that_fails_once_ends_nothing(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    listen, made = links_module._listen_tcp, []

    def failing(addresses: list[str]) -> Failing:
        made.append(Failing(listen(addresses)))
        return made[-1]

    monkeypatch.setattr(links_module, "_listen_tcp", failing)
    links, errors = meet(server, 3, "tcp")
    close_all(links)
    assert not errors and [len(found) for found in links] == [2, 2, 2]
    assert all(listener.failed for listener in made)


def test_a_rank_without_descriptors_tells_the_others(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    listen, failed = links_module._listen_tcp, threading.Event()

    def fail_once(addresses: list[str]) -> socket.socket:
        if not failed.is_set():
            failed.set()
            raise OSError(24, "Too many open files")
        return listen(addresses)

    monkeypatch.setattr(links_module, "_listen_tcp", fail_once)
    links, errors = meet(server, 2, "auto", seconds=20)
    assert links == [[], []] and len(errors) == 2
    assert len(set(errors)) == 1 and "cannot open its links" in errors[0] and "Too many open files" in errors[0]


def test_strangers_at_a_rank_are_logged_once(server: StoreServer, caplog: pytest.LogCaptureFixture) -> None:
    def talk() -> None:
        for _ in range(3):
            with socket.create_connection(published(server, 0), 5) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b" " * 100)
                stranger.settimeout(5)
                try:
                    assert stranger.recv(1) == b""
                except ConnectionResetError:
                    pass

    with caplog.at_level(logging.WARNING, "farandole"):
        meet(server, 2, "tcp", absent=1, seconds=0.5, before=talk)
    assert len([r for r in caplog.records if "not a rank of this job" in r.getMessage()]) == 1


def test_slow_ranks_are_reported_while_they_are_awaited(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(links_module, "_REPORT_SECONDS", 0.15)
    with caplog.at_level(logging.WARNING, "farandole"):
        _, errors = meet(server, 4, "auto", seconds=0.5, absent=2)
    assert len(errors) == 3
    assert "waiting for ranks: 3 of 4 ranks are here, missing: 2" in {r.getMessage() for r in caplog.records}


def test_who_comes_late_is_closed_and_not_kept() -> None:
    formation = _Formation()
    formation.end()
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(RendezvousError, match="no one is awaited"):
        formation.add(1, _Purpose.SHM, ours, os.memfd_create("arena"))
    assert ours.fileno() == -1 and not [fd for fd in os.listdir("/proc/self/fd") if _memfd(fd)]


def test_ranks_listen_only_where_they_are_published() -> None:
    for addresses, bound in ((["127.0.0.1"], "127.0.0.1"), (["192.0.2.1", "127.0.0.1"], "0.0.0.0")):
        with links_module._listen_tcp(addresses) as listener:
            assert listener.getsockname()[0] == bound
    place = Place(0, 2, 0, 1, 0, 2)
    assert links_module._addresses(place, "lo") == ["127.0.0.1"]
    assert links_module._addresses(place, "")[-1] == "127.0.0.1"


@pytest.mark.parametrize(
    ("peer_sends", "says"), [(b"a", "closed the connection instead of sending"), (b"", "did not exchange|closed")]
)
def test_a_peer_without_an_arena_is_no_link(peer_sends: bytes, says: str) -> None:
    """It has proven itself, and then sends a byte without a descriptor, or nothing."""
    formation = _Formation()
    ours, theirs = socket.socketpair()
    arena = os.memfd_create("mine")
    with ours, theirs:
        theirs.sendall(peer_sends)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(RendezvousError, match=says):
            links_module._finish(1, _Purpose.SHM, ours, arena, formation, time.monotonic() + 5)
    os.close(arena)
    assert not formation.complete(1)
