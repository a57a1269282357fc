"""Runs a server until standard input is closed, and then ends it with all of its processes.

python until_closed.py COMMAND..
"""

import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)

    def end(kind: int) -> None:
        try:
            os.killpg(server.pid, kind)
        except ProcessLookupError:
            pass

    def watch() -> None:
        sys.stdin.buffer.read()
        end(signal.SIGTERM)
        try:
            server.wait(8)
        except subprocess.TimeoutExpired:
            end(signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    code = server.wait()
    end(signal.SIGKILL)
    sys.exit(code)


if __name__ == "__main__":
    main()
