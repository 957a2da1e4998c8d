"""Every exception of farandole.

    FarandoleError
    ├── ConfigError (also a ValueError)           an unknown or bad option
    ├── NotInitializedError (also a ValueError)   a call before init() or after shutdown()
    ├── RendezvousError                           the ranks could not meet
    │   └── AuthenticationError                   the other side does not know the job's secret
    ├── LaunchError                               a job could not be started
    └── CollectiveError (also a RuntimeError)     an operation failed; `ranks` says whose fault
        ├── MismatchError                         ranks disagreed about a request; the world goes on
        ├── PeerLostError                         a rank died, raised or cannot be reached; the world is over
        ├── StallError                            a request waited past the limit for ranks that never came
        ├── ShutdownError                         this world was shut down, or a rank that was needed has left
        └── InternalError                         a fault in farandole itself

Misuse on one rank (a root out of range, bad splits, a name twice in flight) is a plain ValueError or TypeError there.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AuthenticationError",
    "CollectiveError",
    "ConfigError",
    "FarandoleError",
    "InternalError",
    "LaunchError",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "RendezvousError",
    "ShutdownError",
    "StallError",
    "from_status",
]


class FarandoleError(Exception):
    """The base of all."""


class ConfigError(FarandoleError, ValueError):
    """An option is unknown or has a bad value."""


class NotInitializedError(FarandoleError, ValueError):
    """There is no world yet, or no more."""


class RendezvousError(FarandoleError):
    """The ranks could not meet; the text names who was missing, where, and the deadline."""


class AuthenticationError(RendezvousError):
    """The other side of a connection did not prove that it knows the job's secret."""


class LaunchError(FarandoleError):
    """A job could not be started."""


class CollectiveError(FarandoleError, RuntimeError):
    """A collective operation failed. ranks: the global ranks that caused it."""

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class MismatchError(CollectiveError):
    """Ranks disagreed about a request, or one refused it. The world stays usable."""


class PeerLostError(CollectiveError):
    """A rank died, raised, or can no longer be reached."""


class StallError(CollectiveError):
    """A request waited past the limit for ranks that did not submit it."""


class ShutdownError(CollectiveError):
    """The world was shut down here, or a rank that the request needs has left."""


class InternalError(CollectiveError):
    """Something that should not happen; please report it."""


_BY_CODE: dict[int, type[CollectiveError]] = {
    1: MismatchError,
    3: PeerLostError,
    4: StallError,
    5: ShutdownError,
    6: InternalError,
}


def from_status(code: int, message: str, ranks: Sequence[int]) -> CollectiveError | ValueError:
    """The exception for a native status (native/base/status.h) that is not ok."""
    if code == 2:
        return ValueError(message)
    return _BY_CODE[code](message, ranks)
