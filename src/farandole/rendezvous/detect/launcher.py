"""Started by `farandole run`."""

from __future__ import annotations

from collections.abc import Mapping

from farandole.errors import RendezvousError
from farandole.rendezvous.detect import Place


def place(environ: Mapping[str, str]) -> Place | None:
    """Present when FARANDOLE_RANK or FARANDOLE_SIZE is set."""
    if "FARANDOLE_RANK" not in environ and "FARANDOLE_SIZE" not in environ:
        return None
    size = _number(environ, "FARANDOLE_SIZE", 1)
    rank = _number(environ, "FARANDOLE_RANK", 0, size)
    local_size = _number(environ, "FARANDOLE_LOCAL_SIZE", 1)
    cross_size = _number(environ, "FARANDOLE_CROSS_SIZE", 1)
    return Place(
        rank=rank,
        size=size,
        local_rank=_number(environ, "FARANDOLE_LOCAL_RANK", 0, local_size),
        local_size=local_size,
        cross_rank=_number(environ, "FARANDOLE_CROSS_RANK", 0, cross_size),
        cross_size=cross_size,
        store_address=_text(environ, "FARANDOLE_STORE_ADDRESS"),
        job=_text(environ, "FARANDOLE_JOB"),
        secret=_text(environ, "FARANDOLE_SECRET"),
        epoch=_number(environ, "FARANDOLE_EPOCH", 0),
    )


def _text(environ: Mapping[str, str], name: str) -> str:
    if name not in environ:
        raise RendezvousError(f"{name} is not set though this process is a rank; start it with `farandole run`")
    return environ[name]


def _number(environ: Mapping[str, str], name: str, least: int, below: int | None = None) -> int:
    text = _text(environ, name)
    if not text.isdecimal() or int(text) < least or (below is not None and int(text) >= below):
        limit = f"at least {least}" if below is None else f"from {least} to {below - 1}"
        raise RendezvousError(f"{name}={text!r}: expected a whole number {limit}")
    return int(text)
