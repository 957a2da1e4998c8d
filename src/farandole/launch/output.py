"""Ranks' output, byte-exact: a prefix at each line's start, lines never mixed, `\\r` progress bars kept."""

from __future__ import annotations

import errno
import os
import re
import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# A line ends with \n, or with \r: then it is one that will be drawn again.
_LINE: Final = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")
_HOLD_SECONDS: Final = 0.2  # how long an unfinished line may wait for its end
_WRITE_BYTES: Final = 4096  # a pipe that says it can be written to takes this much without blocking
_STALL_SECONDS: Final = 0.1  # how often a write that waits for a slow reader looks up


@dataclass
class _Cursor:
    """Where a terminal, a pipe or a file stands."""

    source: Prefixer | None = None  # whose line is not finished: the cursor stands in or before it
    text: bool = False  # it stands in it


class NobodyReadsError(Exception):
    """What is written can no longer reach anyone."""


class Screen:
    """Where several ranks' lines go: our stdout or stderr.

    beside: another screen; when both lead to the same place (a terminal, `2>&1`), they share its cursor.
    stalled: called again and again while a reader takes nothing; raises NobodyReadsError to give up on it.
    """

    def __init__(
        self, descriptor: int, beside: Screen | None = None, stalled: Callable[[], None] = lambda: None
    ) -> None:
        self._descriptor, self._stalled = descriptor, stalled
        self._terminal = os.isatty(descriptor)
        together = beside is not None and os.path.sameopenfile(beside._descriptor, descriptor)
        self._cursor: _Cursor = beside._cursor if beside is not None and together else _Cursor()
        self._lost = False
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def show(self, source: Prefixer, data: bytes) -> None:
        """Whole lines, or a piece of one. Raises NobodyReadsError once; what follows is dropped."""
        at = self._cursor
        if at.source is not None and at.source is not source:
            # Another rank's unfinished line, or on a terminal its progress bar, stays visible: go below it.
            if at.text or self._terminal:
                data = b"\n" + data
            at.source.interrupted()
        unfinished = not data.endswith((b"\n", b"\r"))
        at.source = source if unfinished or data.endswith(b"\r") else None
        at.text = unfinished
        self.write(data)

    def write(self, data: bytes) -> None:
        """As it is. Raises as `show`; OSError when the place cannot take it (a full disk)."""
        rest = memoryview(data)
        try:
            while rest and not self._lost:
                if not self._poll.poll(_STALL_SECONDS * 1000):
                    self._stalled()
                    continue
                try:
                    rest = rest[os.write(self._descriptor, rest[:_WRITE_BYTES]) :]
                except BlockingIOError:
                    continue  # someone made it non-blocking and took the room between our look and our write
        except NobodyReadsError:
            self._lost = True
            raise
        except OSError as error:
            self._lost = True
            if error.errno in (errno.EPIPE, errno.EIO):  # a closed pipe, a terminal that was closed
                raise NobodyReadsError from None
            raise


class Prefixer:
    """One rank's stream on its way to a screen. prefix: before each line, empty for none."""

    def __init__(self, screen: Screen, prefix: bytes, timestamps: bool = False) -> None:
        self._screen, self._prefix, self._timestamps = screen, prefix, timestamps
        self._held = b""
        self._held_since = 0.0
        self._within = False  # the screen shows the beginning of our current line
        self._after_return = False  # our last line ended with \r
        self.tail: deque[bytes] = deque(maxlen=20)  # the last lines
        self._tail_line = b""

    def feed(self, data: bytes) -> None:
        """New bytes of the rank.

        Lines are shown at once, an unfinished one when it has waited a moment (see `tick`).
        """
        self._remember(data)
        if not self._prefix and not self._timestamps:
            self._screen.write(data)
            return
        fresh = max(data.rfind(b"\n"), data.rfind(b"\r"))  # where the last finished line ends
        end = len(self._held) + fresh + 1 if fresh >= 0 else 0
        data = self._held + data
        # Only as far as lines end: the pattern would look again and again for the end of an unfinished one.
        shown = [self._line(match.group()) for match in _LINE.finditer(data, 0, end)]
        if not self._held or end:
            self._held_since = time.monotonic()
        self._held = data[end:]
        if shown:
            self._screen.show(self, b"".join(shown))

    def tick(self) -> None:
        """Show an unfinished line that has waited long enough."""
        if self._held and time.monotonic() - self._held_since >= _HOLD_SECONDS:
            self._flush()

    @property
    def waiting(self) -> bool:
        """Whether `tick` will have something to show."""
        return bool(self._held)

    def close(self) -> None:
        """The stream has ended: show the rest. A last line without an end stays without."""
        if self._held:
            self._flush()

    def interrupted(self) -> None:
        """The screen has gone to a new line in the middle of ours."""
        self._within = self._after_return = False

    def _flush(self) -> None:
        data, self._held = self._held, b""
        text = data if self._within else self._head() + data
        self._within, self._after_return = True, False
        self._screen.show(self, text)

    def _line(self, line: bytes) -> bytes:
        bare = line in (b"\r", b"\n", b"\r\n")
        # The \n of a \r\n that came in two pieces, and the \r that some bars begin with, need no prefix.
        skip = self._within or (bare and (line == b"\r" or (line == b"\n" and self._after_return)))
        self._within = False
        self._after_return = line.endswith(b"\r")
        return line if skip else self._head() + line

    def _head(self) -> bytes:
        return (time.strftime("%H:%M:%S ").encode() if self._timestamps else b"") + self._prefix

    def _remember(self, data: bytes) -> None:
        *lines, self._tail_line = (self._tail_line[-4096:] + data).split(b"\n")
        self.tail.extend(lines)

    def last_lines(self) -> list[str]:
        """The last lines, as text."""
        lines = [*self.tail, self._tail_line] if self._tail_line else list(self.tail)
        return [line.rpartition(b"\r")[2].decode(errors="replace") for line in lines]


class LogFile:
    """One rank's stream, untouched, in a new file. Its methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def feed(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        os.close(self._descriptor)
