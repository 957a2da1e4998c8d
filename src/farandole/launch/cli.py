"""The `farandole` command."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from farandole import __version__, config
from farandole.errors import ConfigError, LaunchError
from farandole.launch import plan

_USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    a = parser.parse_args(arguments)
    if a.action is None:
        parser.print_help()
        return _USAGE_ERROR
    try:
        return int(a.action(a))
    except (ConfigError, LaunchError) as error:
        print(f"farandole: {error}", file=sys.stderr)
        return getattr(error, "code", _USAGE_ERROR)
    except KeyboardInterrupt:  # before the job has begun
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `farandole config | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter would complain when it flushes
        return 128 + signal.SIGPIPE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="farandole",
        description="Distributed data-parallel training, made distributed by changing a few lines.",
    )
    parser.add_argument("--version", action="version", version=f"farandole {__version__}")
    parser.set_defaults(action=None)
    commands = parser.add_subparsers(title="commands", metavar="")
    run = commands.add_parser(
        "run",
        help="start a program on several processes and watch over them",
        description="Start a program once per rank. A .py file is run by this Python.",
        usage="farandole run -np N [options] program [arguments ...]",
    )
    run.add_argument("-np", "--num-proc", type=_count, required=True, metavar="N", help="how many processes")
    run.add_argument(
        "-x",
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set a variable for the ranks",
    )
    run.add_argument("--no-prefix", action="store_true", help="pass output on as it is, without [rank]")
    run.add_argument("--timestamps", action="store_true", help="put the time before each line")
    run.add_argument("--log-dir", type=Path, metavar="DIR", help="also write DIR/rank.N.out and DIR/rank.N.err")
    run.add_argument(
        "--start-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="how long ranks wait for each other in init()",
    )
    run.add_argument("--grace", type=_seconds, default=5.0, metavar="SECONDS", help="from a polite end to SIGKILL (5)")
    run.add_argument("-v", "--verbose", action="store_true", help="say what is started")
    run.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    run.set_defaults(action=_run)
    options = commands.add_parser("config", help="list the options (environment variables) and their values here")
    options.set_defaults(action=_config)
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of processes, at least 1, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds, not {text!r}")
    return value


def _run(a: argparse.Namespace) -> int:
    from farandole.launch import supervisor

    environment = {}
    for item in a.env:
        name, equals, value = item.partition("=")
        if not name or (not equals and name not in os.environ):
            raise LaunchError(f"-x {item}: expected NAME=VALUE, or the NAME of a variable that is set")
        environment[name] = value if equals else os.environ[name]
    if a.start_timeout is not None:
        environment["FARANDOLE_START_TIMEOUT_SECONDS"] = str(a.start_timeout)
    config.load({**os.environ, **environment})  # a misspelt option is better told once, here
    program = a.program[1:] if a.program[:1] == ["--"] else a.program
    if not program:
        raise LaunchError("no program to run; for example: farandole run -np 2 python train.py")
    command = supervisor.check_command(program)
    slots = plan.assign(a.num_proc, [("localhost", a.num_proc)])
    options = supervisor.Options(
        grace_s=a.grace,
        prefix=not a.no_prefix,
        timestamps=a.timestamps,
        log_dir=a.log_dir,
        verbose=a.verbose,
        environment=environment,
    )
    return supervisor.run(command, slots, options, os.environ)


def _config(a: argparse.Namespace) -> int:
    values = config.load(os.environ)
    for option in config.OPTIONS:
        value, unit = getattr(values, option.name), f" {option.unit}" if option.unit else ""
        was = f" [{option.horovod}]" if option.horovod else ""
        print(f"{option.env}={value}{unit}\n    {option.help}{was}", flush=True)
    return 0
