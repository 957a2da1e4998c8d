"""`farandole run` with real processes: output, exit codes, signals, and that nothing survives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.procs.jobs import Job, run, script

PYTHON = sys.executable
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def signals_are_not_ignored() -> Iterator[None]:
    """A script's background job ignores SIGINT, one under nohup SIGHUP, and so would the launchers we start."""
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGHUP)}
    for s, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(s, signal.SIG_DFL)
    yield
    for s, handler in before.items():
        signal.signal(s, handler)


def test_every_rank_runs_and_is_told_its_place(tmp_path: Path) -> None:
    program = script(
        tmp_path, "e = os.environ\nprint(e['FARANDOLE_RANK'], e['FARANDOLE_SIZE'], e['FARANDOLE_LOCAL_RANK'])"
    )
    code, out, err = run(["-np", "3", program])
    assert code == 0 and err == ""
    assert sorted(out.splitlines()) == ["[0] 0 3 0", "[1] 1 3 1", "[2] 2 3 2"]


def test_output_is_kept_byte_for_byte(tmp_path: Path) -> None:
    payload = b"a\rb 50%\rc\n" + b"x" * 10_000 + b"\n\xff\xfe\n\r\n[tail without end"
    (tmp_path / "payload").write_bytes(payload)
    program = script(tmp_path, f"sys.stdout.buffer.write(open({str(tmp_path / 'payload')!r}, 'rb').read())")
    job = Job(["-np", "1", "--no-prefix", "--log-dir", str(tmp_path / "logs"), program])
    out, _ = job.process.communicate(timeout=60)
    assert out == payload == (tmp_path / "logs" / "rank.0.out").read_bytes()
    job = Job(["-np", "1", program])
    out, _ = job.process.communicate(timeout=60)
    assert out.replace(b"[0] ", b"") == payload
    assert out.startswith(b"[0] a\r[0] b 50%\r[0] c\n[0] xx")


def test_lines_of_ranks_do_not_mix(tmp_path: Path) -> None:
    program = script(tmp_path, "r = os.environ['FARANDOLE_RANK']\nfor i in range(300): print(r * 500)")
    code, out, _ = run(["-np", "4", program])
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 1200
    assert all(line == f"[{line[1]}] {line[1] * 500}" for line in lines)


def test_environment_travels_as_data(tmp_path: Path) -> None:
    values = {"ODD": "line\nquote'\" $(x) `y` ü", "LONG": "v" * 100_000}
    program = script(
        tmp_path,
        "assert os.environ['ODD'] == open(sys.argv[1]).read() and len(os.environ['LONG']) == 100_000\n"
        "print(sys.argv[2:], os.environ['NEW'])",
    )
    (tmp_path / "odd").write_text(values["ODD"])
    code, out, err = run(
        ["-np", "1", "-x", "NEW=a=b", "-x", "LONG", program, str(tmp_path / "odd"), "--np", "a b"], **values
    )
    assert (code, out) == (0, "[0] ['--np', 'a b'] a=b\n"), err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["-np", "0", "true"], 2, "at least 1, not '0'"),
        (["-np", "two", "true"], 2, "not 'two'"),
        (["-np", "2"], 2, "no program to run"),
        (["-np", "2", "nowhere.py"], 127, "there is no script nowhere.py"),
        (["-np", "2", "no-such-command"], 127, "there is no command no-such-command"),
        (["-np", "2", "/etc/passwd"], 126, "/etc/passwd is not an executable program"),
        (["-np", "-1", "true"], 2, "at least 1, not '-1'"),
        (["-np", "1", "--log-dir", "/etc/passwd/logs", "true"], 2, "cannot make /etc/passwd/logs: Not a directory"),
        (["-np", "1", "-x", "UNSET_NAME", "true"], 2, "-x UNSET_NAME: expected NAME=VALUE"),
        (["-np", "1", "-x", "FARANDOLE_TRANSPRT=tcp", "true"], 2, "did you mean FARANDOLE_TRANSPORT?"),
    ],
)
def test_bad_arguments_get_one_sentence(arguments: list[str], code: int, says: str) -> None:
    got, out, err = run(arguments)
    assert got == code and says in err and out == ""
    assert "Traceback" not in err


def test_the_first_failure_is_the_headline(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        "if os.environ['FARANDOLE_RANK'] == '1':\n    print('my last words', file=sys.stderr)\n"
        "    sys.exit(3)\ntime.sleep(300)",
    )
    code, _, err = run(["-np", "3", program])
    assert code == 3
    assert "farandole: rank 1 (process" in err and "ended with exit code 3" in err
    assert err.rstrip().endswith("my last words")


def test_a_rank_that_is_done_early_is_no_failure(tmp_path: Path) -> None:
    code, _, err = run(["-np", "2", script(tmp_path, "time.sleep(0.3 * int(os.environ['FARANDOLE_RANK']))")])
    assert (code, err) == (0, "")


def test_a_killed_rank_never_counts_as_success(tmp_path: Path) -> None:
    program = script(
        tmp_path, "if os.environ['FARANDOLE_RANK'] == '0': os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(0.5)"
    )
    code, _, err = run(["-np", "2", program])
    assert code == 137 and "rank 0" in err and "was killed by SIGKILL" in err


def test_whoever_ignores_the_polite_end_is_killed(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.environ['FARANDOLE_RANK'] == '1': sys.exit(7)\ntime.sleep(300)",
    )
    assert run(["-np", "2", "--grace", "0.2", program])[0] == 7


STAYS = """
import subprocess
child = subprocess.Popen(['sleep', '300'])
away = subprocess.Popen(['sleep', '300'], start_new_session=True)
try:
    print('ready', flush=True)
    time.sleep(300)
except KeyboardInterrupt:
    print('interrupted', flush=True)
    sys.exit(5)
"""


@pytest.mark.parametrize(
    ("text", "code", "says"), [("#!/no/such\n", 127, "the interpreter that"), ("echo", 126, "neither a program")]
)
def test_a_program_that_the_system_cannot_start(tmp_path: Path, text: str, code: int, says: str) -> None:
    path = tmp_path / "program"
    path.write_text(text)
    path.chmod(0o755)
    got, _, err = run(["-np", "1", str(path)])
    assert got == code and says in err and "Traceback" not in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_everything(tmp_path: Path, number: signal.Signals, code: int) -> None:
    job = Job(["-np", "1", script(tmp_path, STAYS)])
    job.read_until("ready")
    job.process.send_signal(number)
    got, out, err = job.finish()
    assert got == code and f"stopped by {number.name}" in err
    assert ("interrupted" in out) == (number == signal.SIGINT)


def test_a_second_interrupt_is_now(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        "signal.signal(signal.SIGINT, lambda *_: print('no', flush=True))\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\nwhile True: time.sleep(1)",
    )
    job = Job(["-np", "1", "--grace", "100", program])
    job.read_until("ready")
    job.process.send_signal(signal.SIGINT)
    job.read_until("no")
    job.process.send_signal(signal.SIGINT)
    assert job.finish()[0] == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_a_background_job_ignores_it_ignores(tmp_path: Path, number: signal.Signals) -> None:
    """nohup, and SIGINT for whoever is in front (T16). A rank that is meant itself does hear it."""
    program = script(
        tmp_path,
        f"assert signal.getsignal({number.value}) != signal.SIG_IGN\n"
        "print('ready', flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)",
    )
    before = signal.signal(number, signal.SIG_IGN)
    try:
        job = Job(["-np", "1", program, str(tmp_path / "go")])
    finally:
        signal.signal(number, before)
    job.read_until("ready")
    job.process.send_signal(number)
    (tmp_path / "go").touch()
    assert job.finish() == (0, "", "")


def test_the_grace_of_an_interrupt_survives_the_reader(tmp_path: Path) -> None:
    """Ctrl-C in `farandole run ... | tee log` ends tee, too."""
    program = script(
        tmp_path,
        "def save(*_):\n    for i in range(20): print(i); time.sleep(0.02)\n"
        "    open(sys.argv[1], 'w').close(); sys.exit(0)\n"
        "signal.signal(signal.SIGINT, save)\nprint('ready', flush=True)\nwhile True: time.sleep(1)",
    )
    job = Job(["-np", "1", program, str(tmp_path / "saved")])
    job.read_until("ready")
    job.process.stdout.close()  # type: ignore[union-attr]
    job.process.stdout = None
    job.process.send_signal(signal.SIGINT)
    assert job.process.wait(60) == 130 and (tmp_path / "saved").exists()
    job.process.stderr.close()  # type: ignore[union-attr]
    job.assert_gone()


def test_a_failure_before_an_interrupt_stays_the_headline(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(0))\n"
        "if os.environ['FARANDOLE_RANK'] == '1': open(sys.argv[1], 'w').write(str(os.getpid())); sys.exit(3)\n"
        "print('ready')\ntime.sleep(300)",
    )
    job = Job(["-np", "2", program, str(tmp_path / "pid")])
    job.read_until("ready")
    deadline = time.monotonic() + 30
    pid = tmp_path / "pid"
    while not pid.exists() or not pid.read_text() or Path("/proc", pid.read_text()).exists():
        assert time.monotonic() < deadline  # the launcher has not yet seen rank 1 end
        time.sleep(0.01)
    job.process.send_signal(signal.SIGINT)
    code, _, err = job.finish()
    assert code == 3 and "rank 1" in err and "stopped by" not in err


def test_a_reader_that_takes_nothing_does_not_hold_the_end(tmp_path: Path) -> None:
    job = Job(["-np", "1", "--grace", "0.2", script(tmp_path, "while True: print('x' * 1000)")])
    job.read_until("x")  # and never again
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(60) == 143
    job.finish()


def test_children_from_before_are_left_alone(tmp_path: Path) -> None:
    """`exec farandole run ... > >(tee log)`: the tee is the launcher's child, but none of its job."""
    log = tmp_path / "log"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    subprocess.run(
        ["bash", "-c", f"exec {PYTHON} -m farandole run -np 1 echo done > >(cat > {log}; echo > {fifo})"],
        timeout=60,
        check=True,
        start_new_session=True,
    )
    reader = subprocess.run(["timeout", "10", "cat", str(fifo)], check=True, capture_output=True)
    assert reader.stdout == b"\n" and log.read_text() == "[0] done\n"


def test_orphans_are_buried_while_the_job_runs(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        "import subprocess\n"
        "def zombies():\n"
        "    states = subprocess.run(['ps', '-o', 'stat=', '--ppid', str(os.getppid())], capture_output=True)\n"
        "    return states.stdout.count(b'Z')\n"
        "for i in range(5): subprocess.run(['sh', '-c', 'setsid sleep 0.01 &'])\n"
        "time.sleep(0.2)\n"
        "deadline = time.monotonic() + 10\n"
        "while zombies() and time.monotonic() < deadline: time.sleep(0.01)\n"
        "assert not zombies()",
    )
    code, _, err = run(["-np", "1", program])
    assert code == 0, err


def test_standard_streams_may_be_closed() -> None:
    command = f"{PYTHON} -m farandole run -np 1 sh -c 'echo hi; echo ho >&2; exit 4' <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], timeout=60).returncode == 4


def test_the_number_of_threads_is_said(tmp_path: Path) -> None:
    command = [PYTHON, "-m", "farandole", "run", "-v", "-np", "1", "sh", "-c", "echo threads $OMP_NUM_THREADS"]
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    cores = len(os.sched_getaffinity(0))
    got = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=True)
    assert got.stdout == f"[0] threads {cores}\n" and f"OMP_NUM_THREADS is not set; {cores} for each" in got.stderr


def test_no_orphans_when_the_launcher_is_killed(tmp_path: Path) -> None:
    """The rank's group dies; only what deliberately left the group in a session of its own is out of reach then."""
    job = Job(
        [
            "-np",
            "2",
            script(tmp_path, STAYS.replace("away = subprocess.Popen(['sleep', '300'], start_new_session=True)", "")),
        ]
    )
    job.read_until("ready")
    job.process.kill()
    assert job.finish()[0] == -signal.SIGKILL


def test_a_closed_pipe_ends_the_job(tmp_path: Path) -> None:
    program = script(tmp_path, "while True: print('x' * 100)")
    head = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {PYTHON} -m farandole run -np 2 {program} | head -1"],
        capture_output=True,
        timeout=60,
        env=dict(os.environ),
    )
    assert head.stdout.count(b"\n") == 1
    assert head.returncode == 128 + signal.SIGPIPE and b"Traceback" not in head.stderr


def test_help_and_version() -> None:
    for flag, says in (("--help", "run"), ("--version", "farandole 0.1.0")):
        out = subprocess.run([PYTHON, "-m", "farandole", flag], capture_output=True, text=True, timeout=30, check=True)
        assert says in out.stdout
