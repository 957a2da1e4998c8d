"""Start ranks on this machine, each in a process group of its own, with a guard that outlives the launcher."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from farandole.errors import LaunchError
from farandole.launch.spawn import guard

_PR_SET_CHILD_SUBREAPER = 36


class CommandError(LaunchError):
    """The command cannot be run. code: what a shell would return."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class LocalSpawner:
    """Starts jobs and makes sure that none of their processes survives. Use from the main thread.

    For a process that is the launcher and nothing else: what its jobs leave behind is known by being its child.
    """

    def __init__(self) -> None:
        # Children that are none of ours, as in `exec farandole run ... > >(tee log)`: tee is one.
        self._foreign = set(_children())
        self._jobs: set[int] = set()
        # What a rank leaves behind becomes our child instead of init's, so that close() finds it.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(guard.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> LocalJob:
        """Start one process. CommandError when the command cannot be run."""
        try:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            code = 127 if error.errno == errno.ENOENT else 126
            why = error.strerror
            if error.errno == errno.ENOENT and os.path.exists(command[0]):
                why = "the interpreter that its first line names does not exist"
            elif error.errno == errno.ENOEXEC:
                why = "it is neither a program for this machine nor a script with a #! line"
            raise CommandError(f"cannot run {command[0]}: {why}", code) from None
        self._jobs.add(process.pid)
        self._tell("+", process.pid)
        return LocalJob(process, self)

    def forget(self, group: int) -> None:
        """A group is gone; its number may be used again."""
        self._jobs.discard(group)
        self._tell("-", group)

    def reap(self) -> None:
        """Bury orphans that have become our children and have ended; in a long job there may be many."""
        for pid in self._ours() - self._jobs:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass

    def kill_strays(self) -> None:
        """Every job has ended: kill the processes they left behind."""
        while strays := self._ours():
            for pid in strays:
                _kill(pid, signal.SIGKILL)
                try:
                    os.waitpid(pid, 0)  # what it leaves behind in turn becomes ours only now
                except ChildProcessError:
                    pass

    def close(self) -> None:
        """End the guard."""
        assert self._guard.stdin
        self._guard.stdin.close()
        self._guard.wait()

    def _ours(self) -> set[int]:
        return set(_children()) - self._foreign - {self._guard.pid}

    def _tell(self, sign: str, group: int) -> None:
        assert self._guard.stdin
        try:
            self._guard.stdin.write(f"{sign}{group}\n".encode())
        except BrokenPipeError:
            pass  # someone killed the guard; the job is no worse for it


class LocalJob:
    """A rank's process and those it started."""

    def __init__(self, process: subprocess.Popen[bytes], spawner: LocalSpawner) -> None:
        self._process, self._spawner = process, spawner
        self.pid = process.pid
        self.exit_descriptor = os.pidfd_open(process.pid)  # readable when the process has ended
        assert process.stdout and process.stderr
        self.stdout: IO[bytes] = process.stdout
        self.stderr: IO[bytes] = process.stderr

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """To the whole group; nothing happens when it is gone."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def end(self) -> None:
        """The process has ended: kill the rest of its group and free what we hold, but for the output."""
        self.signal(signal.SIGKILL)
        self._spawner.forget(self.pid)
        os.close(self.exit_descriptor)


def _children() -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += [int(pid) for pid in (task / "children").read_text().split()]
        except OSError:
            continue  # the thread has just ended
    return found


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
