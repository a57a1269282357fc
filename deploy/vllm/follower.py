#!/usr/bin/env python3
"""Ranks of a worker with vLLM on a further machine, for as long as rank 0 runs.

    follower.py worker.toml --rank 1

The worker runs on the machine of `master_addr` and is rank 0. The follower takes [handler.options] and the model's
folder from the worker's file, so that all machines have the same options, and starts `vllm serve --headless`. It
ends with code 1 after rank 0, for which its own ranks would wait without a limit. After a SIGTERM it still waits for
the end of rank 0, which may be draining; a second SIGTERM ends it at once. It needs vLLM's Python, 3.11 or later.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import tomllib
from typing import Any

PAUSE_S = 1.0
# A machine that is lost closes no connection. The kernel notices it within IDLE_S + PROBES * BETWEEN_S.
IDLE_S, BETWEEN_S, PROBES = 10, 5, 3


def flags(options: dict[str, Any]) -> list[str]:
    """Returns options of the worker as arguments of vLLM's command."""
    arguments = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            arguments += [f"--{flag}", *map(str, value)]
        else:
            arguments.append(f"--{flag}={json.dumps(value) if isinstance(value, dict) else value}")
    return arguments


def folder(file: pathlib.Path, place: object) -> str:
    """Returns the folder of a model that the worker's file names."""
    path = file.parent / place if isinstance(place, (str, pathlib.Path)) else None
    if path is None or not path.is_dir():
        raise ValueError(f"{place} is no folder here: --model names that of `target` (nsbridge model pull fetches it)")
    return str(path)


def command(file: pathlib.Path, rank: int, model: pathlib.Path | None) -> tuple[list[str], tuple[str, int]]:
    """Returns vLLM's command, and the address at which rank 0 listens. Raises ValueError for a wrong file."""
    config = tomllib.loads(file.read_text())
    options = dict(config.get("handler", {}).get("options", {}))
    nodes, address, port = (options.get(name) for name in ("nnodes", "master_addr", "master_port"))
    if not (isinstance(nodes, int) and 0 < rank < nodes and isinstance(address, str)):
        raise ValueError(f"{file}: [handler.options] needs master_addr, and nnodes above the rank {rank}")
    models = config.get("models", {})
    draft = options.get("speculative_config")
    if isinstance(draft, dict) and draft.get("model") in models:
        options["speculative_config"] = {**draft, "model": folder(file, models[draft["model"]])}
    target = folder(file, model or models.get("target"))
    options["node_rank"] = rank
    started = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", target, "--headless"]
    return started + flags(options), (address, port or 29501)


def watched(address: tuple[str, int]) -> socket.socket | None:
    """Returns a connection to rank 0 that is closed when rank 0 ends, or None if it does not listen."""
    try:
        connection = socket.create_connection(address, timeout=PAUSE_S)
    except OSError:
        return None
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, BETWEEN_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Waits for a pause. Returns true if rank 0 has ended."""
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def follow(ranks: subprocess.Popen[bytes], address: tuple[str, int]) -> str:
    """Waits until these ranks or rank 0 end. Returns which did."""
    connection = None
    while ranks.poll() is None:
        if connection is None:
            connection = watched(address)
            time.sleep(PAUSE_S)
        elif is_closed(connection):
            return "rank 0 has ended"
    return f"the ranks here have ended with code {ranks.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=pathlib.Path, help="worker.toml of the worker")
    parser.add_argument("--rank", type=int, required=True, help="rank of this machine, from 1 to nnodes - 1")
    parser.add_argument("--model", type=pathlib.Path, help="folder of the model here [default: `target`]")
    arguments = parser.parse_args()
    try:
        started, address = command(arguments.config, arguments.rank, arguments.model)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    environment = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", **os.environ}
    # A group of its own: a SIGTERM or Ctrl-C for this process must not reach the ranks.
    ranks = subprocess.Popen(started, env=environment, start_new_session=True)
    signals = 0

    def on_signal(*_: object) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            raise SystemExit(1)
        print("waiting for the end of rank 0; a second signal ends the ranks at once", file=sys.stderr)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    try:
        print(follow(ranks, address), file=sys.stderr)
    finally:
        try:
            os.killpg(ranks.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        ranks.wait()
    return 0 if signals else 1


if __name__ == "__main__":
    sys.exit(main())
