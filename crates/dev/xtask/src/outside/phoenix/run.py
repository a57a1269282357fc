"""Arize Phoenix as the collector: one request is one trace, from its caller to the handler's call."""

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request

import report

PORT = os.environ["OUTSIDE_OTLP"].rsplit(":", 1)[1]
SERVER = f"http://127.0.0.1:{PORT}"
WITHIN_S = 60


def get(path):
    with urllib.request.urlopen(SERVER + path, timeout=10) as answer:
        return json.load(answer)


def wait(check):
    """Waits until `check` returns something that is true, and returns it."""
    end = time.monotonic() + WITHIN_S
    while True:
        try:
            found = check()
        except (urllib.error.URLError, ConnectionError):
            found = None
        if found or time.monotonic() > end:
            return found
        time.sleep(0.5)


def spans(trace):
    found = get("/v1/projects/default/spans?limit=1000")["data"]
    return [span for span in found if span["context"]["trace_id"] == trace]


def one_request_is_one_trace():
    trace, caller = secrets.token_hex(16), secrets.token_hex(8)
    body = {"model": report.MODEL, "input": "Once a bear", "max_output_tokens": 40, "stream": True}
    headers = {"authorization": f"Bearer {report.KEY}", "content-type": "application/json",
               "traceparent": f"00-{trace}-{caller}-01"}
    request = urllib.request.Request(report.URL + "/v1/responses", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
    found = wait(lambda: len(spans(trace)) == 3 and spans(trace))
    assert found, f"{len(spans(trace))} of 3 spans arrived"
    chain, parent = [], caller
    while len(chain) < 3:
        span = next(span for span in found if span["parent_id"] == parent)
        parent = span["context"]["span_id"]
        chain.append(span)
    names = [span["name"] for span in chain]
    assert names == ["POST /v1/responses", f"process nsbridge.{report.MODEL}", f"generate_content {report.MODEL}"], names
    starts = [span["start_time"] for span in chain]
    assert starts == sorted(starts), starts
    # The reply is whole before the worker acks the request, so only the call is within its parent.
    assert chain[2]["end_time"] <= chain[1]["end_time"], names
    print(json.dumps(chain, indent=2))


def main():
    environment = {"PHOENIX_PORT": PORT, "PHOENIX_HOST": "127.0.0.1", "PHOENIX_WORKING_DIR": os.path.abspath("data"),
                   "PHOENIX_GRPC_PORT": str(int(PORT) + 1), "PHOENIX_TELEMETRY_ENABLED": "false"}
    phoenix = os.path.join(os.path.dirname(sys.executable), "phoenix")
    with open("phoenix.log", "w", encoding="utf-8") as log:
        server = subprocess.Popen([phoenix, "serve"], env={**os.environ, **environment}, stdout=log, stderr=log)
    try:
        report.version("arize-phoenix")
        if not wait(lambda: get("/v1/projects")):
            sys.exit("Phoenix did not start; see phoenix.log")
        report.test(one_request_is_one_trace)
    finally:
        server.terminate()
        server.wait()


main()
