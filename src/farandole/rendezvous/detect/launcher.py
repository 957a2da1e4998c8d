"""Started by `farandole run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from farandole.errors import RendezvousError
from farandole.rendezvous.detect import Place

_BELOW: Final = 1 << 31  # ranks and epochs travel as 32 bits or more
_MOST_DIGITS: Final = 20


def place(environ: Mapping[str, str]) -> Place | None:
    """Present when FARANDOLE_RANK or FARANDOLE_SIZE is set."""
    if "FARANDOLE_RANK" not in environ and "FARANDOLE_SIZE" not in environ:
        return None
    size = _number(environ, "FARANDOLE_SIZE", 1)
    rank = _number(environ, "FARANDOLE_RANK", 0, size)
    secret = _text(environ, "FARANDOLE_SECRET")
    if not _is_secret(secret):
        raise RendezvousError("FARANDOLE_SECRET: expected hexadecimal digits, two for each byte")
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
        secret=secret,
        epoch=_number(environ, "FARANDOLE_EPOCH", 0),
    )


def _text(environ: Mapping[str, str], name: str) -> str:
    if name not in environ:
        raise RendezvousError(f"{name} is not set though this process is a rank; start it with `farandole run`")
    return environ[name]


def _is_secret(text: str) -> bool:
    try:
        return len(bytes.fromhex(text)) > 0
    except ValueError:
        return False


def _number(environ: Mapping[str, str], name: str, least: int, below: int = _BELOW) -> int:
    text = _text(environ, name)
    if not text.isdecimal() or len(text) > _MOST_DIGITS or not least <= int(text) < below:
        raise RendezvousError(f"{name}={text!r}: expected a whole number from {least} to {below - 1}")
    return int(text)
