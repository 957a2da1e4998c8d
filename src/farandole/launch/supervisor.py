"""Start the ranks, watch them, end them. One loop, one thread; signals and ends of processes are events like output."""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from farandole.errors import LaunchError
from farandole.launch.output import LogFile, NobodyReadsError, Prefixer, Screen
from farandole.launch.plan import Slot
from farandole.launch.spawn.local import CommandError, LocalJob, LocalSpawner
from farandole.rendezvous.store import StoreServer, new_job_id, new_secret

_READ_BYTES: Final = 1 << 16
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Options:
    """How a job is run.

    grace_s: from a polite end to SIGKILL. last_words_s: after a first failure the others get this long to see it
    themselves and to say what they think.
    """

    grace_s: float = 5.0
    last_words_s: float = 1.0
    prefix: bool = True
    timestamps: bool = False
    log_dir: Path | None = None
    verbose: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


class _Rank:
    def __init__(self, slot: Slot, job: LocalJob) -> None:
        self.slot, self.job = slot, job
        self.code: int | None = None  # negative: a signal
        self.blameless = False  # ended because we asked
        self.streams: list[tuple[Any, Prefixer, LogFile | None]] = []


def run(command: Sequence[str], slots: Sequence[Slot], options: Options, environ: Mapping[str, str]) -> int:
    """Run the command once per slot and wait for all. Returns the job's exit code; LaunchError when it cannot start."""
    for descriptor in (0, 1, 2):  # `>&-`: else a pipe or socket of ours would take the place of our output
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    return _Supervisor(command, slots, options, environ).run()


class OutputError(LaunchError):
    """Output has nowhere to go, so the job was ended."""

    code = 1


class _Supervisor:
    def __init__(
        self, command: Sequence[str], slots: Sequence[Slot], options: Options, environ: Mapping[str, str]
    ) -> None:
        self._command, self._slots, self._options, self._environ = command, slots, options, environ
        self._selector = selectors.DefaultSelector()
        self._ranks: list[_Rank] = []
        self._failed: _Rank | None = None  # the first
        self._signal: signal.Signals | None = None  # the first that asked us to stop
        self._terminate_at = self._kill_at = float("inf")
        self._pending: list[signal.Signals] = []
        self._asked_to_end = False
        self._orphans = False  # some child has ended, perhaps one that we inherited
        self._out = Screen(1, stalled=self._stalled)
        self._err = Screen(2, self._out, self._stalled)
        self._own = Prefixer(self._err, b"farandole: ")

    def run(self) -> int:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        # A signal that is ignored (nohup, a script's background job) stays so for us. A handler that does nothing,
        # unlike SIG_IGN, is not inherited by the ranks: in sessions of their own, only who means them reaches them.
        ignored = {s for s in _SIGNALS if signal.getsignal(s) is signal.SIG_IGN}
        before = {s: signal.signal(s, _nothing if s in ignored else self._on_signal) for s in _SIGNALS}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._on_child)
        old_wakeup = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._selector.register(wake_read, selectors.EVENT_READ, lambda: os.read(wake_read, 4096))
        secret, job = new_secret(), new_job_id()
        store = StoreServer(secret, job)
        spawner = LocalSpawner()
        try:
            self._start(spawner, store.address, secret, job)
            self._watch(spawner)
            return self._report(store)
        finally:
            for rank in self._ranks:
                if rank.code is None:
                    rank.job.signal(signal.SIGKILL)
            spawner.kill_strays()
            spawner.close()
            store.close()
            signal.set_wakeup_fd(old_wakeup)
            for s, handler in before.items():
                signal.signal(s, handler)
            self._selector.close()
            os.close(wake_read)
            os.close(wake_write)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._pending.append(signal.Signals(number))

    def _on_child(self, number: int, frame: FrameType | None) -> None:
        self._orphans = True

    def _start(self, spawner: LocalSpawner, address: str, secret: str, job: str) -> None:
        logs = self._options.log_dir
        if logs:
            try:
                logs.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LaunchError(f"--log-dir: cannot make {logs}: {error.strerror}") from None
        cores = len(os.sched_getaffinity(0))
        if "OMP_NUM_THREADS" not in {**self._environ, **self._options.environment}:
            threads = max(1, cores // self._slots[0].local_size)
            self._say(f"OMP_NUM_THREADS is not set; {threads} for each rank ({cores} cores)", verbose=True)
        for slot in self._slots:
            environment = {
                "PYTHONUNBUFFERED": "1",
                # Without a limit every rank would use all cores, and N ranks would fight over them.
                "OMP_NUM_THREADS": str(max(1, cores // slot.local_size)),
                **self._environ,
                **self._options.environment,
                **slot.environment(),
                "FARANDOLE_STORE_ADDRESS": address,
                "FARANDOLE_JOB": job,
                "FARANDOLE_SECRET": secret,
                "FARANDOLE_EPOCH": "0",
            }
            started = spawner.start(self._command, environment)
            rank = _Rank(slot, started)
            self._ranks.append(rank)
            self._say(f"rank {slot.rank} is process {started.pid}", verbose=True)
            prefix = f"[{slot.rank}] ".encode() if self._options.prefix else b""
            for pipe, screen, ending in ((started.stdout, self._out, "out"), (started.stderr, self._err, "err")):
                log = None
                if logs:
                    try:
                        log = LogFile(logs / f"rank.{slot.rank}.{ending}")
                    except OSError as error:
                        raise LaunchError(f"--log-dir: cannot write {error.filename}: {error.strerror}") from None
                stream = (pipe, Prefixer(screen, prefix, self._options.timestamps), log)
                rank.streams.append(stream)
                self._selector.register(pipe, selectors.EVENT_READ, lambda s=stream: self._read(*s))
            self._selector.register(started.exit_descriptor, selectors.EVENT_READ, lambda r=rank: self._ended(r))

    def _watch(self, spawner: LocalSpawner) -> None:
        while any(r.code is None for r in self._ranks):
            self._turn(float("inf"))
            if self._orphans:
                self._orphans = False
                spawner.reap()
        spawner.kill_strays()
        # Nobody holds the ranks' pipes any more, so they end; read what is in them.
        deadline = time.monotonic() + 1
        while len(self._selector.get_map()) > 1 and time.monotonic() < deadline:
            self._turn(deadline)
        for rank in self._ranks:
            for pipe, prefixer, log in rank.streams:
                self._close_stream(pipe, prefixer, log)

    def _turn(self, deadline: float) -> None:
        now = time.monotonic()
        prefixers = [p for r in self._ranks for _, p, _ in r.streams if p.waiting]
        until = min(deadline, self._terminate_at, self._kill_at, now + (0.1 if prefixers else 3600))
        events = self._selector.select(max(until - now, 0))
        self._attend()  # first: what ends because we are asked to stop is no failure
        for key, _ in events:
            key.data()
        for prefixer in prefixers:
            self._guarded(prefixer.tick)

    def _attend(self) -> None:
        """Do what signals and deadlines ask for."""
        while self._pending:
            self._stop(self._pending.pop(0))
        now = time.monotonic()
        if now >= self._terminate_at:
            self._terminate_at = float("inf")
            self._signal_all(signal.SIGTERM)
        if now >= self._kill_at:
            self._kill_at = float("inf")
            self._signal_all(signal.SIGKILL)

    def _stalled(self) -> None:
        """Our reader takes nothing (a pager, a stopped terminal). That may last, but not once we are asked to stop."""
        self._attend()
        if self._signal is not None and self._kill_at == float("inf"):
            raise NobodyReadsError

    def _read(self, pipe: Any, prefixer: Prefixer, log: LogFile | None) -> None:
        data = os.read(pipe.fileno(), _READ_BYTES)
        if not data:
            self._close_stream(pipe, prefixer, log)
            return
        if log:
            try:
                log.feed(data)
            except OSError as error:
                raise OutputError(f"--log-dir: cannot write: {error.strerror}; the job was ended") from None
        self._guarded(lambda: prefixer.feed(data))

    def _close_stream(self, pipe: Any, prefixer: Prefixer, log: LogFile | None) -> None:
        if pipe.closed:
            return
        self._selector.unregister(pipe)
        pipe.close()
        if log:
            log.close()
        self._guarded(prefixer.close)

    def _guarded(self, show: Any) -> None:
        """Nobody reads our output any more (`| head`): end the job quietly, as any program would.

        Unless it is ending anyway: Ctrl-C in `farandole run ... | tee log` ends tee, too; the ranks keep their grace.
        """
        try:
            show()
        except NobodyReadsError:
            if self._signal is None and self._failed is None:
                self._stop(signal.SIGPIPE)
        except OSError as error:
            raise OutputError(f"cannot write the ranks' output: {error.strerror}; the job was ended") from None

    def _ended(self, rank: _Rank) -> None:
        self._selector.unregister(rank.job.exit_descriptor)
        rank.code = rank.job.poll()
        assert rank.code is not None
        rank.job.end()
        rank.blameless = self._asked_to_end
        if rank.code != 0 and self._failed is None and self._signal is None:
            self._failed = rank
            now = time.monotonic()
            self._terminate_at = now + self._options.last_words_s
            self._kill_at = self._terminate_at + self._options.grace_s

    def _stop(self, number: signal.Signals) -> None:
        """Someone wants the job to end. Once is polite, twice is now."""
        if self._signal is not None:
            self._terminate_at = self._kill_at = float("inf")
            self._signal_all(signal.SIGKILL)
            return
        self._signal = number
        self._signal_all(signal.SIGTERM if number is signal.SIGPIPE else number)
        self._terminate_at = time.monotonic() + self._options.grace_s
        self._kill_at = self._terminate_at + self._options.grace_s

    def _signal_all(self, number: signal.Signals) -> None:
        self._asked_to_end = True
        for rank in self._ranks:
            if rank.code is None:
                rank.job.signal(number)

    def _report(self, store: StoreServer) -> int:
        if self._failed is None:  # a failure before someone stopped the job stays the headline
            if self._signal is None:
                return 0
            if self._signal is not signal.SIGPIPE:
                self._say(f"stopped by {self._signal.name}")
            return 128 + self._signal
        rank, reason = self._cause(store)
        lines = rank.streams[1][1].last_lines()
        text = f"rank {rank.slot.rank} (process {rank.job.pid}) {_describe(rank.code)}"
        if reason:
            text += f": {reason}"
        others = sum(1 for r in self._ranks if r is not rank and r.code != 0)
        if others:
            text += f"; {others} other rank{'s' if others > 1 else ''} ended because of it"
        self._say(text)
        if lines:
            self._say("its last lines were:")
            text = "".join(f"    {line}\n" for line in lines)
            self._guarded(lambda: self._err.write(text.encode(errors="backslashreplace")))
        assert rank.code is not None
        return rank.code if rank.code > 0 else 128 - rank.code if rank.code < 0 else 1

    def _cause(self, store: StoreServer) -> tuple[_Rank, str]:
        """The rank to blame: who was killed, or whom the ranks that failed name; else the first that ended badly."""
        assert self._failed is not None
        killed = [r for r in self._ranks if r.code is not None and r.code < 0 and not r.blameless]
        told: dict[int, dict[str, Any]] = {}
        for r in self._ranks:
            value = store.get(f"failure/{r.slot.rank}")
            if value is not None:
                told[r.slot.rank] = json.loads(value)
        rank = killed[0] if killed else self._failed
        for culprit in [] if killed else told.get(rank.slot.rank, {}).get("because", [])[:1]:
            if 0 <= culprit < len(self._ranks) and self._ranks[culprit].code and not self._ranks[culprit].blameless:
                rank = self._ranks[culprit]
        return rank, str(told.get(rank.slot.rank, {}).get("text", ""))

    def _say(self, text: str, verbose: bool = False) -> None:
        if self._options.verbose or not verbose:
            self._guarded(lambda: self._own.feed(f"{text}\n".encode(errors="backslashreplace")))


def _nothing(number: int, frame: FrameType | None) -> None:
    """A signal that is of no interest."""


def _describe(code: int | None) -> str:
    assert code is not None
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def check_command(command: Sequence[str]) -> list[str]:
    """The command as it will be started; a Python script is run by this interpreter.

    LaunchError, with the exit code a shell would use in `code`, when it is missing or cannot be executed.
    """
    import shutil

    name = command[0]
    if name.endswith(".py"):
        if not Path(name).is_file():
            where = "" if Path(name).is_absolute() else f" in {os.getcwd()}"
            raise CommandError(f"there is no script {name}{where}", 127)
        return [sys.executable, *command]
    if shutil.which(name) is None:
        if Path(name).exists():
            raise CommandError(f"{name} is not an executable program", 126)
        raise CommandError(f"there is no command {name}", 127)
    return list(command)
