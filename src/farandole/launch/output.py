"""Ranks' output, byte-exact: a prefix at each line's start, lines never mixed, `\\r` progress bars kept."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from typing import BinaryIO, Final

# A line ends with \n, or with \r: then it is one that will be drawn again.
_LINE: Final = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")
_HOLD_SECONDS: Final = 0.2  # how long an unfinished line may wait for its end


class Screen:
    """Where several ranks' lines go: our stdout or stderr."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._terminal = os.isatty(descriptor)
        self._open: Prefixer | None = None  # whose line is not finished: the cursor stands in or before it
        self._open_text = False

    def show(self, source: Prefixer, data: bytes) -> None:
        """Whole lines, or a piece of one. Raises BrokenPipeError when nobody reads any more."""
        if self._open is not None and self._open is not source:
            # Another rank's unfinished line, or on a terminal its progress bar, stays visible: go below it.
            if self._open_text or self._terminal:
                data = b"\n" + data
            self._open.interrupted()
        unfinished = not data.endswith((b"\n", b"\r"))
        self._open = source if unfinished or data.endswith(b"\r") else None
        self._open_text = unfinished
        while data:
            data = data[os.write(self._descriptor, data) :]


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
            self._screen.show(self, data)
            return
        data = self._held + data
        end = 0
        shown = []
        for match in _LINE.finditer(data):
            shown.append(self._line(match.group()))
            end = match.end()
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
    """One rank's stream, untouched, in a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def feed(self, data: bytes) -> None:
        self._file.write(data)

    def close(self) -> None:
        self._file.close()
