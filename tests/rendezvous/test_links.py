"""Ranks meet, over shared memory and TCP; and say who is missing when they do not."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from farandole.errors import RendezvousError
from farandole.rendezvous.detect import Place
from farandole.rendezvous.links import PeerLink, connect_all
from farandole.rendezvous.store import StoreClient, StoreServer, new_job_id, new_secret

SECRET, JOB = new_secret(), new_job_id()


@pytest.fixture
def server() -> Iterator[StoreServer]:
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
    links, errors = meet(server, 3, "auto", seconds=1.0, absent=1)
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
