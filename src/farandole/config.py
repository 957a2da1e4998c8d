"""Every option, once. Options come from the environment; an unknown FARANDOLE_* name is refused."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from farandole.errors import ConfigError

_LARGEST_NUMBER: Final = (1 << 63) - 1  # what the core can take

# What a launcher tells a rank about its place; read in rendezvous.detect, listed here so that they are not unknown.
LAUNCH_VARIABLES: Final = frozenset(
    f"FARANDOLE_{name}"
    for name in (
        "RANK",
        "SIZE",
        "LOCAL_RANK",
        "LOCAL_SIZE",
        "CROSS_RANK",
        "CROSS_SIZE",
        "STORE_ADDRESS",
        "JOB",
        "SECRET",
        "EPOCH",
    )
)


@dataclass(frozen=True, slots=True)
class Config:
    """The options of one world; the table below says what each means."""

    transport: str = "auto"
    interface: str = ""
    fusion_bytes: int = 64 << 20
    small_bytes: int = 4096
    bucket_bytes: int = 8 << 20
    first_bucket_bytes: int = 1 << 20
    arena_bytes: int = 0
    spin_us: int = -1
    start_timeout_s: float = 60.0
    stall_warning_s: float = 60.0
    stall_limit_s: float = 600.0
    trace_events: int = 4096
    log_level: str = "warning"


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table. least: the smallest number allowed; choices: the words allowed."""

    name: str
    env: str
    unit: str
    help: str
    horovod: str = ""
    least: float = 0
    choices: tuple[str, ...] = ()

    @property
    def default(self) -> Any:
        return getattr(Config(), self.name)

    @property
    def type(self) -> type:
        return type(self.default)


OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "transport",
        "FARANDOLE_TRANSPORT",
        "",
        "how ranks of one host talk: shared memory where possible, or tcp",
        choices=("auto", "shm", "tcp"),
    ),
    Option(
        "interface",
        "FARANDOLE_NETWORK_INTERFACE",
        "",
        "publish the addresses of this network interface only",
        "HOROVOD_GLOO_IFACE",
    ),
    Option(
        "fusion_bytes",
        "FARANDOLE_FUSION_BYTES",
        "bytes",
        "most bytes of small allreduces run as one; 0 runs each alone",
        "HOROVOD_FUSION_THRESHOLD",
    ),
    Option("small_bytes", "FARANDOLE_SMALL_BYTES", "bytes", "inputs up to this size ride in the announcement", least=0),
    Option("bucket_bytes", "FARANDOLE_BUCKET_BYTES", "bytes", "size of an optimizer's gradient buckets", least=1),
    Option(
        "first_bucket_bytes",
        "FARANDOLE_FIRST_BUCKET_BYTES",
        "bytes",
        "size of the first gradient bucket, which starts the overlap",
        least=1,
    ),
    Option(
        "arena_bytes",
        "FARANDOLE_ARENA_BYTES",
        "bytes",
        "most registered memory of a rank (address space, not pages); 0: the memory of the machine",
    ),
    Option(
        "spin_us",
        "FARANDOLE_SPIN_MICROSECONDS",
        "us",
        "how long a waiting thread spins before it sleeps; -1: chosen",
        least=-1,
    ),
    Option(
        "start_timeout_s",
        "FARANDOLE_START_TIMEOUT_SECONDS",
        "s",
        "how long init() waits for all ranks",
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        least=0.001,
    ),
    Option(
        "stall_warning_s",
        "FARANDOLE_STALL_WARNING_SECONDS",
        "s",
        "warn about a request that some ranks have not submitted; 0: never",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
    ),
    Option(
        "stall_limit_s",
        "FARANDOLE_STALL_LIMIT_SECONDS",
        "s",
        "fail such a request; 0: never",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    ),
    Option("trace_events", "FARANDOLE_TRACE_EVENTS", "events", "how many of the last events a rank remembers"),
    Option(
        "log_level",
        "FARANDOLE_LOG_LEVEL",
        "",
        "least severe messages shown",
        "HOROVOD_LOG_LEVEL",
        choices=("debug", "info", "warning", "error"),
    ),
)


def load(environ: Mapping[str, str]) -> Config:
    """The options set in `environ`, defaults for the others.

    Raises ConfigError for an unknown FARANDOLE_* name (naming the nearest one) and for a value that does not fit.
    """
    by_env = {option.env: option for option in OPTIONS}
    values: dict[str, Any] = {}
    for name, text in environ.items():
        if not name.startswith("FARANDOLE_") or name in LAUNCH_VARIABLES:
            continue
        if name not in by_env:
            near = difflib.get_close_matches(name, [*by_env, *LAUNCH_VARIABLES], 1, 0.4)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"unknown option {name}{hint} (`farandole config` lists all)")
        values[by_env[name].name] = _parse(by_env[name], text)
    return Config(**values)


def _parse(option: Option, text: str) -> Any:
    if option.choices:
        if text.lower() in option.choices:
            return text.lower()
        raise ConfigError(f"{option.env}={text!r}: expected one of {', '.join(option.choices)}")
    if option.type is str:
        return text
    kind = "a whole number" if option.type is int else "a number"
    unit = f" of {option.unit}" if option.unit else ""
    try:
        value = option.type(text)
    except ValueError:
        raise ConfigError(f"{option.env}={text!r}: expected {kind}{unit}") from None
    if not option.least <= value < float("inf"):
        raise ConfigError(f"{option.env}={text!r}: expected {kind}{unit}, at least {option.least:g}")
    if value > _LARGEST_NUMBER:
        raise ConfigError(f"{option.env}={text!r}: expected {kind}{unit}, at most {_LARGEST_NUMBER}")
    return value
