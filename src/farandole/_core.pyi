"""
The native core of farandole: engine, collectives, transports and reduction kernels.
"""

from collections.abc import Sequence

import numpy
import numpy.typing

def kinds() -> dict[str, int]:
    """The code of each kind of request."""

def ops() -> dict[str, int]:
    """The code of each reduction."""

def dtypes() -> dict[str, tuple[int, int, bool]]:
    """name -> (code, bytes of one element, whether it can be reduced)"""

def why_not(dtype: int, op: int) -> str:
    """Why this dtype cannot be reduced with this op; empty when it can."""

def instruction_set() -> str:
    """The instruction set the reduction kernels use here."""

def create_arena(size: int, arena_bytes: int) -> int:
    """
    A memfd for this rank's arena in a world of `size` ranks; the caller owns it.
    """

class LoopbackHub:
    """Where ranks that are threads of one process find each other."""

    def __init__(self, size: int) -> None: ...

class Handle:
    """
    A request in flight. Any thread may ask; results may be read once done.
    """

    def done(self) -> bool: ...
    def wait(self, timeout_s: float) -> bool:
        """True once done, False when the time is over first."""

    def status(self) -> tuple[int, str, tuple[int, ...]]: ...
    def output(self) -> numpy.typing.NDArray[numpy.uint8]: ...
    def shape(self) -> tuple[int, ...]: ...
    def received_splits(self) -> tuple[int, ...]: ...

class Engine:
    """One rank's engine: its thread, links and memory."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        epoch: int,
        hosts: Sequence[str],
        links: Sequence[tuple[int, str, Sequence[int], int]],
        arena_fd: int,
        hub: LoopbackHub | None,
        fusion_bytes: int,
        small_bytes: int,
        spin_us: int,
        stall_warning_s: float,
        stall_limit_s: float,
        trace_events: int,
        arena_bytes: int,
    ) -> None: ...
    def submit(
        self,
        kind: int,
        name: str,
        process_set: int,
        dtype: int,
        op: int,
        shape: Sequence[int],
        root: int,
        prescale: float,
        postscale: float,
        splits: Sequence[int],
        input: int,
        output: int,
        refusal: str,
        sync: bool,
    ) -> Handle: ...
    def submit_group(
        self,
        requests: Sequence[
            tuple[int, str, int, int, int, Sequence[int], int, float, float, Sequence[int], int, int, str]
        ],
    ) -> list[Handle]: ...
    def allocate(self, nbytes: int) -> numpy.typing.NDArray[numpy.uint8]:
        """Registered memory, page-aligned, zeroed, freed with the array."""

    def abort(self, reason: str) -> None: ...
    def shutdown(self, timeout_s: float) -> None: ...
    def links(self) -> list[tuple[int, str]]: ...
    def counters(self) -> dict[str, int]: ...
    def trace(self) -> list[tuple[int, str, str, str, int, int]]:
        """
        The last events: (steady clock ns, phase, kind, name, bytes, sequence).
        """
