"""vLLM's own OpenAI server, with the model and the options of the suite's worker."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import report

PLACE = os.environ["OUTSIDE_PLACE"]
START_WITHIN_S = 600


def answers(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def running():
    """Starts the server, and ends it at the end of the block. Returns its URL."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    with open("server.log", "w", encoding="utf-8") as log:
        command += ["--port", str(port), "--model", os.environ["OUTSIDE_MODEL_FOLDER"]]
        command += ["--served-model-name", report.MODEL, *os.environ["OUTSIDE_ENGINE_ARGUMENTS"].split()]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        end = time.monotonic() + START_WITHIN_S
        while not answers(url):
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"vLLM's server did not start; {os.path.abspath('server.log')} says why")
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
