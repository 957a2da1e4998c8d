"""What the others learn when a rank dies, raises, leaves, never comes or is interrupted; with real processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.procs.jobs import Job, run, script

TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])
pytestmark = pytest.mark.slow

# Rank 1 does `deed`; the others want an allreduce of `count` numbers and tell what they got.
STORY = """
import farandole.numpy as fd
from farandole import errors
fd.init()
try:
    fd.allreduce(np.ones(3))
    if fd.rank() == {who}:
        {deed}
    while True:
        fd.allreduce(np.ones({count}), name='work')
except errors.CollectiveError as error:
    print('told:', type(error).__name__, error.ranks, error, flush=True)
    raise
"""


def tell(tmp_path: Path, transport: str, deed: str, count: int) -> tuple[int, list[str], str]:
    program = script(tmp_path, STORY.format(who=1, deed=deed, count=count))
    code, out, err = run(["-np", "3", program], FARANDOLE_TRANSPORT=transport)
    lines = [line for line in out.splitlines() if " told: " in line]
    assert sorted(line[:4] for line in lines) == ["[0] ", "[2] "], f"{out}\n{err}"
    return code, [line.partition(" told: ")[2] for line in lines], err


@TRANSPORTS
@pytest.mark.parametrize("count", [1, 3_000_000])
def test_a_rank_raises(tmp_path: Path, transport: str, count: int) -> None:
    code, told, err = tell(tmp_path, transport, "raise ValueError('boom')", count)
    assert code == 1
    for line in told:
        assert line.startswith("PeerLostError (1,)") and "rank 1 on" in line and "ValueError: boom" in line
    headline = [line for line in err.splitlines() if line.startswith("farandole: ")]
    assert "rank 1 (process" in headline[0] and "ValueError: boom" in headline[0]


@TRANSPORTS
@pytest.mark.parametrize("count", [1, 3_000_000])
def test_a_rank_is_killed(tmp_path: Path, transport: str, count: int) -> None:
    deed = (
        "import threading; threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()\n"
        f"        while True: fd.allreduce(np.ones({count}), name='work')"
    )
    code, told, err = tell(tmp_path, transport, deed, count)
    assert code == 137
    assert all(line.startswith("PeerLostError (1,)") and "lost rank 1 on" in line for line in told)
    assert "rank 1 (process" in err and "was killed by SIGKILL" in err


@TRANSPORTS
def test_a_rank_leaves_without_a_word(tmp_path: Path, transport: str) -> None:
    code, told, _ = tell(tmp_path, transport, "os._exit(0)", 1000)
    assert code == 1
    assert all(line.startswith("PeerLostError (1,)") for line in told)


@TRANSPORTS
def test_a_rank_leaves_politely(tmp_path: Path, transport: str) -> None:
    code, told, _ = tell(tmp_path, transport, "sys.exit(0)", 1000)
    assert code == 1
    assert all("rank 1 on" in line and "has shut down" in line for line in told)
    assert any(line.startswith("ShutdownError (1,)") for line in told)


@TRANSPORTS
def test_the_coordinator_leaves(tmp_path: Path, transport: str) -> None:
    program = script(tmp_path, STORY.format(who=0, deed="sys.exit(0)", count=5))
    code, out, _ = run(["-np", "3", program], FARANDOLE_TRANSPORT=transport)
    assert code == 1
    lines = [line for line in out.splitlines() if " told: " in line]
    assert len(lines) == 2 and all("rank 0 on" in line for line in lines)


def test_a_rank_is_interrupted_while_it_waits(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
import farandole.numpy as fd
fd.init()
if fd.rank() == 0:
    open(sys.argv[1] + '/pid', 'w').write(str(os.getpid()))
print('pid', fd.rank(), os.getpid(), flush=True)
if fd.rank() == 0:
    try:
        fd.allreduce(np.ones(5), name='never')
    except KeyboardInterrupt:
        print('interrupted', flush=True)
        raise
else:
    try:
        fd.allreduce(np.ones(5), name='other')
    except Exception as error:
        print(type(error).__name__, error, flush=True)
        raise
""",
    )
    job = Job(["-np", "2", program, str(tmp_path)])
    for _ in range(2):
        job.read_until("pid")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGINT)
    code, out, _ = job.finish()
    assert code == 130 and "interrupted" in out
    assert "PeerLostError" in out and "KeyboardInterrupt" in out


@TRANSPORTS
def test_a_disagreement_is_survived(tmp_path: Path, transport: str) -> None:
    program = script(
        tmp_path,
        """
import farandole.numpy as fd
from farandole.errors import MismatchError
fd.init()
for _ in range(3):
    try:
        fd.allreduce(np.ones(3 + fd.rank() // 2), name='odd')
    except MismatchError as error:
        assert 'rank 0 has (3,), rank 2 has (4,)' in str(error)
    else:
        sys.exit(9)
assert fd.allreduce(np.ones(3))[0] == 1
""",
    )
    code, _, err = run(["-np", "3", program], FARANDOLE_TRANSPORT=transport)
    assert (code, err) == (0, "")


def test_who_never_comes_is_named(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
import farandole.numpy as fd
fd.init()
if fd.rank() == 1:
    time.sleep(60)
fd.allreduce(np.ones(3), name='lonely')
""",
    )
    code, _, err = run(
        ["-np", "3", "--grace", "0.5", program],
        FARANDOLE_STALL_LIMIT_SECONDS="1.5",
        FARANDOLE_STALL_WARNING_SECONDS="0.3",
    )
    assert code == 1
    assert "farandole: warning: allreduce 'allreduce.lonely' has waited" in err
    assert "StallError" in err and "submitted by rank 0, 2, not yet by rank 1 (" in err


def test_who_does_not_start_is_named(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
import farandole.numpy as fd
if os.environ['FARANDOLE_RANK'] == '1':
    time.sleep(60)
fd.init()
""",
    )
    code, _, err = run(["-np", "3", "--start-timeout", "1", "--grace", "0.5", program])
    assert code == 1 and "RendezvousError" in err and "missing: 1" in err


def test_a_forked_child_is_told_and_harmless(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
import farandole.numpy as fd
fd.init()
child = os.fork()
if child == 0:
    try:
        fd.allreduce(np.ones(3))
    except RuntimeError as error:
        os._exit(5 if 'forked' in str(error) else 6)
    os._exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 5, status
child = os.fork()
if child == 0:
    sys.exit(0)   # an ordinary end, with all its exit handlers
os.waitpid(child, 0)
assert fd.allreduce(np.ones(3), op=fd.Sum)[0] == 2
""",
    )
    code, _, err = run(["-np", "2", program])
    assert code == 0, err


def test_leaving_needs_no_ceremony(tmp_path: Path) -> None:
    """The script just ends, with operations still in flight."""
    program = script(
        tmp_path,
        """
import farandole.numpy as fd
fd.init()
fd.allreduce(np.ones(3))
if fd.rank() == 0:
    fd.allreduce_async(np.ones(10), name='never')
""",
    )
    assert run(["-np", "2", program])[0] == 0


def test_init_and_shutdown_many_times(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
import farandole.numpy as fd
def state():
    return len(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task'))
for i in range(30):
    fd.init()
    assert fd.allreduce(np.ones(3), op=fd.Sum)[0] == 1
    fd.shutdown()
    if i == 3:
        before = state()
assert state() == before, (before, state())
try:
    fd.allreduce(np.ones(3))
except ValueError as error:
    assert 'init()' in str(error)
else:
    sys.exit(9)
""",
    )
    code, _, err = run(["-np", "1", program])
    assert code == 0, err


@TRANSPORTS
def test_exit_does_not_wait_for_a_transfer_that_stands_still(tmp_path: Path, transport: str) -> None:
    """A thread of rank 0 is in the middle of an allreduce with a rank that was stopped; the main thread ends."""
    program = script(
        tmp_path,
        """
import atexit, threading
atexit.register(lambda: print('left', flush=True))   # runs last
import farandole.numpy as fd
fd.init()
x = np.ones(20_000_000)
if fd.rank() == 1:
    fd.allreduce_async_(x, name='big')
    os.kill(os.getpid(), signal.SIGSTOP)
threading.Thread(target=lambda: fd.allreduce_(x, name='big'), daemon=True).start()
time.sleep(0.3)
""",
    )
    job = Job(["-np", "2", program], FARANDOLE_TRANSPORT=transport)
    job.read_until("left")
    job.process.kill()
    job.finish()
