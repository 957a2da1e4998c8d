"""Where am I? Each environment that can start ranks is a row; the first that is present answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["ENVIRONMENTS", "Place", "detect"]


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's place in its job, and where the job meets.

    store_address: "host:port"; job: a name that tells this job from others; secret: hexadecimal, known to this job
    only; epoch: which forming of the world this is.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    store_address: str = ""
    job: str = ""
    secret: str = ""
    epoch: int = 0

    def __repr__(self) -> str:  # never the secret: places are printed in errors and logs
        where = f"store={self.store_address!r}, job={self.job!r}, epoch={self.epoch}"
        return f"Place(rank={self.rank}, size={self.size}, {where})"


def detect(environ: Mapping[str, str]) -> Place:
    """This process's place.

    Raises RendezvousError, naming the variable, when an environment is present but inconsistent.
    """
    for _, ask in ENVIRONMENTS:
        place = ask(environ)
        if place is not None:
            return place
    raise AssertionError("the last environment is always present")


from farandole.rendezvous.detect import alone, launcher  # noqa: E402  (rows need Place)

ENVIRONMENTS: Final[tuple[tuple[str, Callable[[Mapping[str, str]], Place | None]], ...]] = (
    ("farandole run", launcher.place),
    ("alone", alone.place),
)
