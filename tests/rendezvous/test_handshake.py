"""The handshake itself: what is proven, and every way in which it ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farandole.errors import AuthenticationError, RendezvousError
from farandole.rendezvous import handshake
from farandole.rendezvous.handshake import Claim, initiate, receive_exactly, respond, send_all
from farandole.rendezvous.store import new_secret

SECRET, JOB, CLAIM = new_secret(), "job", Claim(3, 1, 2, 5)


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


@dataclass
class Responder:
    """respond() in a thread, over one end of a pair; `end` is the other."""

    secret: str = SECRET
    job: str = JOB
    rank: int = 1
    epoch: int | None = 5
    seconds: float = 5.0
    outcome: list[Claim | RendezvousError] = field(default_factory=list)

    def __enter__(self) -> Responder:
        self.end, self._theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end.close()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with self._theirs:
            try:
                claim = respond(self._theirs, self.secret, self.job, self.rank, self.epoch, soon(self.seconds))
                self.outcome.append(claim)
            except RendezvousError as error:
                self.outcome.append(error)

    def error(self) -> RendezvousError:
        assert len(self.outcome) == 1 and isinstance(self.outcome[0], RendezvousError)
        return self.outcome[0]


@pytest.mark.parametrize("epoch", [5, None])
def test_friends_meet_and_the_claim_is_known(epoch: int | None) -> None:
    with Responder(epoch=epoch) as r:
        initiate(r.end, SECRET, JOB, CLAIM, soon())
    assert r.outcome == [CLAIM]


@pytest.mark.parametrize(
    ("secret", "job"), [(new_secret(), JOB), (SECRET, "jo"), (SECRET, "job2"), (SECRET, ""), (SECRET[:-2], JOB)]
)
def test_another_secret_or_job_fails_on_both_sides(secret: str, job: str) -> None:
    with Responder() as r:
        with pytest.raises(AuthenticationError, match="does not know this job's secret"):
            initiate(r.end, secret, job, CLAIM, soon())
        r.end.sendall(b"\0" * 32)  # a stranger would go on
    assert isinstance(r.error(), AuthenticationError)
    assert secret not in str(r.error())


@pytest.mark.parametrize("claim", [CLAIM._replace(receiver=0), CLAIM._replace(epoch=4), CLAIM._replace(epoch=6)])
def test_another_receiver_or_epoch_fails_on_both_sides(claim: Claim) -> None:
    with Responder() as r, pytest.raises(RendezvousError, match=r"closed|failed"):
        initiate(r.end, SECRET, JOB, claim, soon())
    assert f"rank {claim.receiver} in epoch {claim.epoch} reached rank 1 in epoch 5" in str(r.error())


def recording() -> bytes:
    """All that the initiator sent in a good handshake."""
    sent = b""
    ours, between = socket.socketpair()
    with Responder() as r, ours, between:
        thread = threading.Thread(target=initiate, args=(ours, SECRET, JOB, CLAIM, soon()))
        thread.start()
        for size in (handshake._HELLO.size, handshake._PROOF_BYTES):
            piece = receive_exactly(between, size, soon())
            sent += piece
            r.end.sendall(piece)
            if size == handshake._HELLO.size:
                between.sendall(receive_exactly(r.end, 64, soon()))
        thread.join(10)
    assert r.outcome == [CLAIM]
    return sent


def test_a_whole_recorded_handshake_is_worthless() -> None:
    sent = recording()
    with Responder() as r:
        r.end.sendall(sent)
        receive_exactly(r.end, 64, soon())
        assert r.end.recv(1) == b""
    assert isinstance(r.error(), AuthenticationError)


def test_a_responders_answer_sent_back_is_worthless() -> None:
    """The two proofs differ by role: a reflected one does not pass."""
    with Responder() as r:
        r.end.sendall(handshake._HELLO.pack(b"farandl1", *CLAIM, b"n" * 32))
        answer = receive_exactly(r.end, 64, soon())
        r.end.sendall(answer[32:])
        assert r.end.recv(1) == b""
    assert isinstance(r.error(), AuthenticationError)


@pytest.mark.parametrize(
    "words", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + b" " * 99, b"\xff" * 99, b"farandl2" + b"\0" * 99]
)
def test_strangers_words_are_told_from_a_hello_and_get_no_answer(words: bytes) -> None:
    with Responder() as r:
        r.end.sendall(words)
        r.end.settimeout(5)
        try:
            assert r.end.recv(1) == b""
        except ConnectionResetError:
            pass
    assert isinstance(r.error(), AuthenticationError) and "not a farandole hello" in str(r.error())


@given(st.binary(max_size=150))
@settings(max_examples=50, deadline=None)
def test_any_bytes_end_in_an_error(junk: bytes) -> None:
    with Responder() as r:
        r.end.sendall(junk)
        r.end.shutdown(socket.SHUT_WR)
        try:
            while r.end.recv(100):
                pass
        except ConnectionResetError:
            pass
    assert isinstance(r.error(), RendezvousError)


@pytest.mark.parametrize("size", [0, 1, 59])
def test_silence_ends_at_the_deadline(size: int) -> None:
    with Responder(seconds=0.05) as r:
        r.end.sendall(b"f" * size)
        r._thread.join(5)
    assert f"{size} of {handshake._HELLO.size} bytes came before the deadline" in str(r.error())


@pytest.mark.parametrize("step", ["hello", "proof"])
def test_a_close_in_the_middle_is_told(step: str) -> None:
    with Responder() as r:
        hello = handshake._HELLO.pack(b"farandl1", *CLAIM, b"n" * 32)
        r.end.sendall(hello[:20] if step == "hello" else hello)
        if step == "proof":
            receive_exactly(r.end, 64, soon())
        r.end.shutdown(socket.SHUT_WR)
    assert "closed" in str(r.error()) and not isinstance(r.error(), AuthenticationError)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair()
    with a, b:
        yield a, b


def test_the_initiator_does_not_wait_for_ever(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(RendezvousError, match="0 of 64 bytes came before the deadline"):
        initiate(pair[0], SECRET, JOB, CLAIM, soon(0.05))


def test_who_takes_no_data_is_told(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(RendezvousError, match="took no data before the deadline"):
        send_all(pair[0], bytes(1 << 24), soon(0.05))


def test_a_closed_socket_is_a_failed_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].close()
    with pytest.raises(RendezvousError, match="the connection failed"):
        send_all(pair[0], b"x", soon())
    with pytest.raises(RendezvousError, match="the connection failed"):
        receive_exactly(pair[0], 1, soon())


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pieces_are_put_together(pair: tuple[socket.socket, socket.socket], pieces: list[bytes]) -> None:
    for piece in pieces:
        send_all(pair[0], piece, soon())
    whole = b"".join(pieces)
    assert receive_exactly(pair[1], len(whole), soon()) == whole
