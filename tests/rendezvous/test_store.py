"""The store and its handshake, against friends, strangers and recordings."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farandole.errors import AuthenticationError, RendezvousError
from farandole.rendezvous import handshake, store
from farandole.rendezvous.detect import Place, detect
from farandole.rendezvous.handshake import Claim
from farandole.rendezvous.store import StoreClient, StoreServer, new_job_id, new_secret

SECRET, JOB = new_secret(), new_job_id()


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def place(server: StoreServer, rank: int = 0) -> Place:
    return Place(rank, 2, rank, 2, 0, 1, store_address=server.address, job=JOB, secret=SECRET)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    made = StoreServer(SECRET, JOB)
    yield made
    made.close()


def connect(server: StoreServer) -> socket.socket:
    host, port = server.address.split(":")
    return socket.create_connection((host, int(port)), 5)


def test_values_wait_for_their_key(server: StoreServer) -> None:
    a, b = StoreClient(place(server), soon()), StoreClient(place(server, 1), soon())
    assert a.get("k", 0.0) is None
    got: list[bytes | None] = []
    waiting = threading.Thread(target=lambda: got.append(a.get("k", 10.0)))
    waiting.start()
    b.set("k", b"v" * 100_000, soon())
    waiting.join(10)
    assert got == [b"v" * 100_000] == [server.get("k")]
    server.set("x", b"")
    assert b.get("x", 0.0) == b""
    a.close()
    b.close()


def test_close_ends_those_who_wait() -> None:
    server = StoreServer(SECRET, JOB)
    client = StoreClient(place(server), soon())
    answers: list[object] = []

    def wait() -> None:
        try:
            answers.append(client.get("never", 60.0))
        except RendezvousError as error:
            answers.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    server.close()
    waiting.join(10)
    assert len(answers) == 1 and (answers[0] is None or "never" in str(answers[0]))
    client.close()
    server.close()


@pytest.mark.parametrize("changed", [{"secret": new_secret()}, {"job": new_job_id()}])
def test_another_job_is_turned_away(
    server: StoreServer, changed: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "farandole"):
        for _ in range(3):
            with pytest.raises(AuthenticationError, match=server.address):
                StoreClient(replace(place(server), **changed), soon())
    StoreClient(place(server), soon()).close()


def test_strangers_do_no_harm_and_are_logged_once(server: StoreServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "farandole"):
        for words in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * 100, b"\0" * 100, b"\xff" * 5000):
            with connect(server) as stranger:
                stranger.sendall(words)
                stranger.settimeout(10)
                try:
                    assert stranger.recv(1) == b""
                except ConnectionResetError:
                    pass
    assert len(caplog.records) == 1
    StoreClient(place(server), soon()).close()


def test_a_recording_of_a_good_handshake_is_worthless(server: StoreServer) -> None:
    class Recorder:
        def __init__(self, inner: socket.socket) -> None:
            self.inner, self.sent = inner, b""

        def sendall(self, data: bytes) -> None:
            self.sent += data
            self.inner.sendall(data)

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

    with connect(server) as connection:
        recorder = Recorder(connection)
        handshake.initiate(recorder, SECRET, JOB, Claim(0, handshake.STORE_RANK, 0, 0), soon())  # type: ignore[arg-type]
    with connect(server) as replay:
        replay.sendall(recorder.sent + b"\x02\x01\x00\x00\x00\x00\x00" + b"\0" * 8 + b"k")
        replay.settimeout(10)
        answer = b""
        try:
            while piece := replay.recv(1000):
                answer += piece
        except ConnectionResetError:
            pass
    assert len(answer) <= 64  # the server's own nonce and proof, and nothing after


@pytest.mark.parametrize("wrong", ["initiator", "responder"])
def test_both_sides_prove_themselves(wrong: str) -> None:
    ours, theirs = socket.socketpair()
    other = new_secret()
    outcome: list[BaseException] = []

    def answer() -> None:
        try:
            handshake.respond(theirs, other if wrong == "responder" else SECRET, JOB, 1, 0, soon())
        except RendezvousError as error:
            outcome.append(error)
        theirs.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with ours, pytest.raises(AuthenticationError):
        handshake.initiate(ours, other if wrong == "initiator" else SECRET, JOB, Claim(0, 1, 0, 0), soon())
    thread.join(10)
    assert len(outcome) == 1


@pytest.mark.parametrize("claim", [Claim(0, 2, 0, 0), Claim(0, 1, 0, 7)])
def test_a_hello_for_someone_else_is_refused(claim: Claim) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(handshake._HELLO.pack(b"farandl1", *claim, b"n" * 32))
        with pytest.raises(RendezvousError, match=r"reached rank 1 in epoch 0"):
            handshake.respond(theirs, SECRET, JOB, 1, 0, soon())


def test_silence_ends_at_the_deadline() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(RendezvousError, match="before the deadline"):
        handshake.respond(theirs, SECRET, JOB, 1, 0, soon(0.05))


@given(st.binary(max_size=200))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_break_the_server(server: StoreServer, junk: bytes) -> None:
    client = StoreClient(place(server), soon())
    client._connection.sendall(junk)
    client.close()
    again = StoreClient(place(server), soon())
    again.set("alive", b"1", soon())
    again.close()


def test_oversized_messages_are_refused(server: StoreServer) -> None:
    client = StoreClient(place(server), soon())
    client._connection.sendall(store._HEAD.pack(1, 1, (16 << 20) + 1, 0.0) + b"k")
    with pytest.raises(RendezvousError):
        client.get("k", 1.0)
    client.close()


def test_nobody_at_the_address() -> None:
    server = StoreServer(SECRET, JOB)
    where = place(server)
    server.close()
    with pytest.raises(RendezvousError, match=f"rank 0 cannot reach the store at {where.store_address}"):
        StoreClient(where, soon(1))


ENVIRONMENT = {
    "FARANDOLE_RANK": "1", "FARANDOLE_SIZE": "4", "FARANDOLE_LOCAL_RANK": "1", "FARANDOLE_LOCAL_SIZE": "2",
    "FARANDOLE_CROSS_RANK": "0", "FARANDOLE_CROSS_SIZE": "2", "FARANDOLE_STORE_ADDRESS": "h:1", "FARANDOLE_JOB": "j",
    "FARANDOLE_SECRET": "ab", "FARANDOLE_EPOCH": "3",
}  # fmt: skip


def test_a_place_is_found_and_never_shows_the_secret() -> None:
    assert detect({}) == Place(0, 1, 0, 1, 0, 1)
    found = detect(ENVIRONMENT)
    assert found == Place(1, 4, 1, 2, 0, 2, "h:1", "j", "ab", 3)
    assert "ab" not in repr(found)


@pytest.mark.parametrize(("name", "value"), [("FARANDOLE_RANK", "4"), ("FARANDOLE_SIZE", "0"), ("FARANDOLE_RANK", "x")])
def test_a_bad_place_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(RendezvousError, match=f"{name}='{value}'"):
        detect({**ENVIRONMENT, name: value})


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(RendezvousError, match="FARANDOLE_SECRET is not set"):
        detect({k: v for k, v in ENVIRONMENT.items() if k != "FARANDOLE_SECRET"})


def test_secrets_differ() -> None:
    assert len({new_secret() for _ in range(10)}) == 10 and len(new_secret()) == 64
    assert os.environ.get("FARANDOLE_SECRET") is None


def test_a_silent_first_stranger_does_not_hide_the_next(server: StoreServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "farandole"):
        with connect(server) as scan:
            scan.shutdown(socket.SHUT_WR)
            scan.settimeout(5)
            assert scan.recv(1) == b""
        assert not caplog.records
        for _ in range(2):
            with pytest.raises(AuthenticationError):
                StoreClient(replace(place(server), secret=new_secret()), soon())
            with connect(server) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b" " * 100)
                stranger.settimeout(5)
                try:
                    stranger.recv(1)
                except ConnectionResetError:
                    pass
    assert len([r for r in caplog.records if "turned away" in r.getMessage()]) == 1


def test_a_late_answer_is_not_taken_for_the_next(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = StoreClient(place(server), soon())
    monkeypatch.setattr(store, "_HANDSHAKE_SECONDS", -0.95)
    with pytest.raises(RendezvousError, match=r"key 'late': .*deadline"):
        client.get("late", 1.0)  # gives up after 50 ms; the server will answer still
    monkeypatch.undo()
    server.set("late", b"old")
    server.set("next", b"new")
    with pytest.raises(RendezvousError, match=r"key 'next'"):
        client.get("next", 0.0)
    client.close()


def test_the_largest_value_fits_and_one_byte_more_does_not(server: StoreServer) -> None:
    client = StoreClient(place(server), soon())
    client.set("k", bytes(16 << 20), soon())
    assert client.get("k", 0.0) == bytes(16 << 20)
    for key, value in (("k", bytes((16 << 20) + 1)), ("k" * 65_536, b"")):
        with pytest.raises(RendezvousError, match="at most"):
            client.set(key, value, soon())
    client.set("ü" * 32_767, b"usable", soon())
    assert server.get("ü" * 32_767) == b"usable"
    client.close()


HEADS = st.builds(
    store._HEAD.pack,
    st.integers(0, 6),
    st.integers(0, 8),
    st.one_of(st.integers(0, 40), st.integers(0, (1 << 32) - 1)),
    st.one_of(st.floats(max_value=0.001), st.just(float("nan"))),
)


@given(st.lists(st.one_of(HEADS, st.binary(max_size=40)), max_size=6).map(b"".join))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_messages_break_the_server(server: StoreServer, junk: bytes) -> None:
    """Nearly good messages of someone who knows the secret; nothing is left running for them."""
    client = StoreClient(place(server), soon())
    client._connection.sendall(junk)
    try:
        client._connection.shutdown(socket.SHUT_WR)
        client._connection.settimeout(5)
        while client._connection.recv(4096):
            pass
    except OSError as error:  # the server has closed already; but it is never silent
        assert not isinstance(error, TimeoutError)
    finally:
        client.close()
    again = StoreClient(place(server), soon())
    again.set("alive", b"1", soon())
    again.close()


def test_the_store_survives_a_lack_of_descriptors(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """accept fails once; who comes then is served."""
    real, failed = server._listener, threading.Event()

    class Failing:
        def accept(self) -> object:
            if not failed.is_set():
                failed.set()
                raise OSError(24, "Too many open files")
            return real.accept()

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    monkeypatch.setattr(server, "_listener", Failing())
    StoreClient(place(server), soon()).close()  # ends the accept that was under way
    StoreClient(place(server), soon()).close()
    assert failed.is_set()


@pytest.mark.parametrize(
    "address", ["", "host", ":1", "h:x", "127.0.0.1:70000", "127.0.0.1:1234567", f"{'a' * 70}.b:1"]
)
def test_addresses_that_cannot_be(address: str) -> None:
    with pytest.raises(RendezvousError, match="store"):
        StoreClient(Place(0, 2, 0, 2, 0, 1, address, JOB, SECRET), soon(1))


def test_close_ends_many_who_wait_and_those_who_say_nothing() -> None:
    server = StoreServer(SECRET, JOB)
    clients = [StoreClient(place(server, r), soon()) for r in range(8)]
    for client in clients:
        store._send(client._connection, store._Op.GET, "never", b"", 60.0, soon())
    with connect(server) as silent:
        start = time.monotonic()
        server.close()
        assert time.monotonic() - start < 2
        silent.settimeout(5)
        try:
            assert silent.recv(1) == b""
        except ConnectionResetError:
            pass
    for client in clients:
        client.close()
    server.close()


def test_a_deadline_holds_while_another_thread_waits_for_its_answer(server: StoreServer) -> None:
    client = StoreClient(place(server), soon())
    waiting = threading.Thread(target=client.get, args=("slow", 10.0))
    waiting.start()
    while not client._lock.locked():
        time.sleep(0.001)
    start = time.monotonic()
    with pytest.raises(RendezvousError, match=r"key 'k': another thread's question"):
        client.set("k", b"", soon(0.1))
    assert time.monotonic() - start < 2
    server.set("slow", b"")
    waiting.join(10)
    client.set("k", b"usable", soon())
    assert server.get("k") == b"usable"
    client.close()


def test_the_store_survives_a_lack_of_threads(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    start, failed = threading.Thread.start, threading.Event()

    def fail_once(self: threading.Thread) -> None:
        if self.name == "farandole-store" and not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    with connect(server) as unlucky:
        unlucky.settimeout(5)
        assert unlucky.recv(1) == b""
    StoreClient(place(server), soon()).close()
    assert failed.is_set()
