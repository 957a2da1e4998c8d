"""Mutual authentication of a fresh connection: both sides prove that they know the job's secret, neither sends it.

    initiator -> responder   hello: magic, from, to, purpose, epoch, nonce
    responder -> initiator   nonce, HMAC-SHA256(secret, "responder" | job | hello | nonce)
    initiator -> responder   HMAC-SHA256(secret, "initiator" | job | hello | nonce)

Everything has a fixed size; nothing else is read before both proofs are checked, and each nonce is used once, so a
recording is worthless.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from typing import Final, NamedTuple

from farandole.errors import AuthenticationError, RendezvousError

_MAGIC: Final = b"farandl1"
_HELLO: Final = struct.Struct("<8siiIQ32s")
_PROOF_BYTES: Final = 32
_NONCE_BYTES: Final = 32

FOREVER: Final = float("inf")  # a deadline that never comes
STORE_RANK: Final = -1  # the store in the place of a rank


class Claim(NamedTuple):
    """What the initiator says about itself. sender, receiver: ranks, or STORE_RANK; purpose: the owner's number."""

    sender: int
    receiver: int
    purpose: int
    epoch: int


def initiate(connection: socket.socket, secret: str, job: str, claim: Claim, deadline: float) -> None:
    """Prove ourselves to the responder and check its proof. deadline: time.monotonic() seconds.

    AuthenticationError when the other side does not know the secret, RendezvousError when it closes or says nothing.
    """
    hello = _HELLO.pack(_MAGIC, *claim, secrets.token_bytes(_NONCE_BYTES))
    send_all(connection, hello, deadline)
    answer = receive_exactly(connection, _NONCE_BYTES + _PROOF_BYTES, deadline)
    nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, b"responder", job, hello, nonce)):
        raise AuthenticationError("the other side does not know this job's secret, or belongs to another job")
    send_all(connection, _proof(secret, b"initiator", job, hello, nonce), deadline)


def respond(
    connection: socket.socket, secret: str, job: str, receiver: int, epoch: int | None, deadline: float
) -> Claim:
    """Check an initiator and prove ourselves. epoch: the only one welcome, None for any. Returns its claim, now proven.

    AuthenticationError for a stranger, RendezvousError for silence or a closed connection.
    """
    hello = receive_exactly(connection, _HELLO.size, deadline)
    magic, sender, to, purpose, its_epoch, _ = _HELLO.unpack(hello)
    if magic != _MAGIC:
        raise AuthenticationError("the first bytes are not a farandole hello of this version")
    if to != receiver or (epoch is not None and its_epoch != epoch):
        raise RendezvousError(f"a hello for rank {to} in epoch {its_epoch} reached rank {receiver} in epoch {epoch}")
    nonce = secrets.token_bytes(_NONCE_BYTES)
    send_all(connection, nonce + _proof(secret, b"responder", job, hello, nonce), deadline)
    proof = receive_exactly(connection, _PROOF_BYTES, deadline)
    if not hmac.compare_digest(proof, _proof(secret, b"initiator", job, hello, nonce)):
        raise AuthenticationError("the other side does not know this job's secret, or belongs to another job")
    return Claim(sender, to, purpose, its_epoch)


def _proof(secret: str, role: bytes, job: str, hello: bytes, nonce: bytes) -> bytes:
    name = job.encode()
    message = role + struct.pack("<I", len(name)) + name + hello + nonce
    return hmac.digest(bytes.fromhex(secret), message, "sha256")


def receive_exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    """`size` bytes, or RendezvousError at the deadline or when the other side closes."""
    parts = bytearray()
    while len(parts) < size:
        try:
            _allow(connection, deadline)
            piece = connection.recv(min(size - len(parts), 1 << 20))
        except TimeoutError:
            raise RendezvousError(f"no answer: {len(parts)} of {size} bytes came before the deadline") from None
        except OSError as error:
            raise RendezvousError(f"the connection failed: {error}") from None
        if not piece:
            raise RendezvousError("the other side closed the connection")
        parts += piece
    return bytes(parts)


def send_all(connection: socket.socket, data: bytes, deadline: float) -> None:
    """Send everything, or RendezvousError at the deadline or when the other side is gone."""
    try:
        _allow(connection, deadline)
        connection.sendall(data)
    except TimeoutError:
        raise RendezvousError("the other side took no data before the deadline") from None
    except OSError as error:
        raise RendezvousError(f"the connection failed: {error}") from None


def _allow(connection: socket.socket, deadline: float) -> None:
    connection.settimeout(None if deadline == FOREVER else max(deadline - time.monotonic(), 0.001))
