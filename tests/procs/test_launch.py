"""`farandole run` with real processes: output, exit codes, signals, and that nothing survives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.procs.jobs import Job, run, script

PYTHON = sys.executable
pytestmark = pytest.mark.slow


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
