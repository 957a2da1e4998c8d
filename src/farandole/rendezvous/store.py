"""Where ranks meet: a small key-value store that the launcher serves.

Typed messages, no pickle, every connection authenticated.

A message is a head (operation, key bytes, value bytes, seconds) and its two strings. `get` may wait: the server
answers when someone sets the key, or when the time is over.
"""

from __future__ import annotations

import logging
import math
import secrets
import socket
import struct
import threading
import time
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from farandole.errors import AuthenticationError, RendezvousError
from farandole.rendezvous import handshake

if TYPE_CHECKING:
    from farandole.rendezvous.detect import Place

log = logging.getLogger("farandole")

_HEAD: Final = struct.Struct("<BHId")
_LARGEST_KEY: Final = 0xFFFF
_LARGEST_VALUE: Final = 16 << 20
_MOST_CONNECTIONS: Final = 4096
_HANDSHAKE_SECONDS: Final = 5.0


class _Op(IntEnum):
    SET = 1
    GET = 2
    FOUND = 3
    ABSENT = 4


def new_secret() -> str:
    """256 random bits, hexadecimal."""
    return secrets.token_hex(32)


def new_job_id() -> str:
    """A name no other job has."""
    return secrets.token_hex(8)


def _send(connection: socket.socket, op: _Op, key: str, value: bytes, seconds: float, deadline: float) -> None:
    name = key.encode()
    handshake.send_all(connection, _HEAD.pack(op, len(name), len(value), seconds) + name + value, deadline)


def _receive(connection: socket.socket, deadline: float) -> tuple[_Op, str, bytes, float]:
    head = handshake.receive_exactly(connection, _HEAD.size, deadline)
    op, key_bytes, value_bytes, seconds = _HEAD.unpack(head)
    if value_bytes > _LARGEST_VALUE:
        raise RendezvousError(f"a store message of {value_bytes} bytes is over the limit of {_LARGEST_VALUE}")
    body = handshake.receive_exactly(connection, key_bytes + value_bytes, deadline)
    if math.isnan(seconds):
        raise RendezvousError("a store message is not well-formed: it waits for NaN seconds")
    try:
        return _Op(op), body[:key_bytes].decode(), body[key_bytes:], seconds
    except ValueError as error:
        raise RendezvousError(f"a store message is not well-formed: {error}") from None


class StoreServer:
    """Serves one job until `close()`.

    address: "host:port", also for ranks on other hosts when `host` is reachable there.
    """

    def __init__(self, secret: str, job: str, host: str = "127.0.0.1") -> None:
        self._secret, self._job = secret, job
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._closed = False
        self._strangers = 0
        self._listener = socket.create_server((host, 0), backlog=1024)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._acceptor = threading.Thread(target=self._accept, name="farandole-store", daemon=True)
        self._acceptor.start()

    def set(self, key: str, value: bytes) -> None:
        """Set a value from the server's own process."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes | None:
        """The value now, None when nobody has set it."""
        with self._changed:
            return self._values.get(key)

    def close(self) -> None:
        """End all connections and threads. Idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            open_now = dict(self._connections)
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._acceptor.join()
        self._listener.close()
        for connection, thread in open_now.items():
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has closed by itself
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed; or this one connection failed, or no descriptor is free just now
                with self._changed:
                    if self._changed.wait_for(lambda: self._closed, 0.05):
                        return
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), name="farandole-store", daemon=True)
            with self._changed:
                if self._closed or len(self._connections) >= _MOST_CONNECTIONS:
                    connection.close()
                    continue
                try:
                    thread.start()
                except RuntimeError:  # too many threads just now
                    connection.close()
                    continue
                self._connections[connection] = thread

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                until = time.monotonic() + _HANDSHAKE_SECONDS
                try:
                    handshake.respond(connection, self._secret, self._job, handshake.STORE_RANK, None, until)
                except RendezvousError as error:
                    self._stranger(error)
                    return
                while True:
                    self._answer(connection)
        except RendezvousError:
            pass  # the client is gone
        finally:
            with self._changed:
                self._connections.pop(connection, None)

    def _answer(self, connection: socket.socket) -> None:
        op, key, value, seconds = _receive(connection, handshake.FOREVER)  # close() shuts the connection down
        soon = time.monotonic() + _HANDSHAKE_SECONDS
        if op is _Op.SET:
            self.set(key, value)
            _send(connection, _Op.FOUND, key, b"", 0, soon)
        elif op is _Op.GET:
            with self._changed:
                self._changed.wait_for(lambda: key in self._values or self._closed, min(max(seconds, 0), 3600))
                found = self._values.get(key)
            soon = time.monotonic() + _HANDSHAKE_SECONDS
            _send(connection, _Op.ABSENT if found is None else _Op.FOUND, key, found or b"", 0, soon)
        else:
            raise RendezvousError(f"unexpected operation {op}")

    def _stranger(self, error: RendezvousError) -> None:
        if not isinstance(error, AuthenticationError):
            return  # a rank that died, or a port scan
        with self._changed:
            self._strangers += 1
            first = self._strangers == 1 and not self._closed
        if first:
            log.warning("someone who is not a rank of this job connected to its store and was turned away: %s", error)


class StoreClient:
    """One rank's connection to the store. Any thread may call; calls take turns."""

    def __init__(self, place: Place, deadline: float) -> None:
        """Connects and authenticates. deadline: time.monotonic() seconds; RendezvousError names the address."""
        self.address = place.store_address
        host, _, port = self.address.rpartition(":")
        self._lock = threading.Lock()
        if not host or not port.isdecimal() or len(port) > 5:
            raise RendezvousError(f"the store's address {self.address!r} is not host:port")
        try:
            seconds = max(deadline - time.monotonic(), 0.001)
            self._connection = socket.create_connection((host.strip("[]"), int(port)), seconds)
        except (OSError, ValueError, OverflowError) as error:  # the last two: a name or a port that cannot be
            raise RendezvousError(f"rank {place.rank} cannot reach the store at {self.address}: {error}") from None
        try:
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            claim = handshake.Claim(place.rank, handshake.STORE_RANK, 0, place.epoch)
            handshake.initiate(self._connection, place.secret, place.job, claim, deadline)
        except RendezvousError as error:
            self._connection.close()
            raise type(error)(f"the store at {self.address}: {error}") from None
        except BaseException:
            self._connection.close()
            raise

    def set(self, key: str, value: bytes, deadline: float) -> None:
        """Publish a value. RendezvousError at the deadline."""
        self._ask(_Op.SET, key, value, 0.0, deadline)

    def get(self, key: str, seconds: float) -> bytes | None:
        """The value of a key, waiting up to `seconds` for someone to set it; None when nobody does."""
        op, value = self._ask(_Op.GET, key, b"", seconds, time.monotonic() + seconds + _HANDSHAKE_SECONDS)
        return value if op is _Op.FOUND else None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, op: _Op, key: str, value: bytes, seconds: float, deadline: float) -> tuple[_Op, bytes]:
        about = f"the store at {self.address}, key {key!r}"
        if len(key.encode()) > _LARGEST_KEY or len(value) > _LARGEST_VALUE:
            limit = f"at most {_LARGEST_KEY} bytes of key and {_LARGEST_VALUE} of value"
            raise RendezvousError(f"{about[:200]}: {limit} fit, not {len(key.encode())} and {len(value)}")
        patience = min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
        if not self._lock.acquire(timeout=patience):
            raise RendezvousError(f"{about}: another thread's question was not answered before the deadline")
        try:
            _send(self._connection, op, key, value, seconds, deadline)
            answer, _, found, _ = _receive(self._connection, deadline)
        except RendezvousError as error:
            self._connection.close()  # a late answer must not be taken for that to the next question
            raise RendezvousError(f"{about}: {error}") from None
        finally:
            self._lock.release()
        return answer, found
