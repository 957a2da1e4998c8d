"""Kills the ranks when the launcher is gone, however it went.

A dying parent cannot clean up after SIGKILL, and PR_SET_PDEATHSIG reaches children only, not theirs. So this small
process, in a session of
its own, holds the reading end of a pipe whose other end only the launcher has: it learns process groups ("+pid")
and forgets them ("-pid"),
and when the pipe closes it kills those it still knows. Run as a script, so that it loads nothing else.
"""

import os
import signal
import sys


def main() -> None:
    for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(s, signal.SIG_IGN)
    groups = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    main()
