"""Clients of a worker and a gateway in one process, `nsbridge dev`."""

import http.client
import json
import os
import socket
import statistics
import subprocess
import threading
import time

TOKENS = 200

# Seconds for the worker to load its models and to warm up.
STARTING = 120


def measure(program, device, clients):
    """Prints the pieces and the latencies of one client, and of several at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "dev", "--no-open", "--device", device, "--listen", f"127.0.0.1:{port}"]
    worker = subprocess.Popen(command)
    try:
        end = time.monotonic() + STARTING
        while True:
            try:
                first, _, _ = ask(port, 0, 8)
                break
            except OSError:
                if worker.poll() is not None or time.monotonic() > end:
                    print("the worker does not answer")
                    return 1
                time.sleep(0.2)
        print(json.dumps({"kind": "first", "text": first}), flush=True)
        alone, _ = together(port, 1)
        several, texts = together(port, clients)
        for count, (seconds, pieces, firsts, ends) in ((1, alone), (clients, several)):
            print(json.dumps({
                "kind": "worker", "clients": count, "device": device, "pieces": pieces,
                "pieces_per_s": pieces / seconds, "first_ms": statistics.median(firsts) * 1e3,
                "end_ms": statistics.median(ends) * 1e3, "slowest_ms": max(ends) * 1e3,
            }), flush=True)
        # The same seed again, beside others or not, is the same text.
        again = ask(port, 0, TOKENS)[0]
        equal = again == texts[0]
        print(json.dumps({"kind": "repeated", "equal": equal}), flush=True)
        return 0
    finally:
        worker.terminate()
        worker.wait(timeout=30)


def together(port, clients):
    """Asks with several clients at once."""
    results = [None] * clients

    def one(index):
        results[index] = ask(port, index, TOKENS)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(clients)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begun
    lost = results.count(None)
    if lost:
        raise SystemExit(f"{lost} of {clients} clients have no reply")
    pieces = sum(len(times) for _, times, _ in results)
    firsts = [times[0] - since for _, times, since in results]
    ends = [times[-1] - since for _, times, since in results]
    return (seconds, pieces, firsts, ends), [text for text, _, _ in results]


def ask(port, seed, tokens):
    """Returns the text of a streamed reply, the times of its pieces, and when it was asked for."""
    body = {"prompt": "Once a bear", "max_tokens": tokens, "seed": seed, "stream": True}
    since = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise OSError(f"status {response.status}: {response.read(300)!r}")
    text, times = "", []
    for line in response:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                raise OSError(str(event["error"]))
            for choice in event.get("choices", []):
                if choice.get("text"):
                    text += choice["text"]
                    times.append(time.monotonic())
    connection.close()
    return text, times, since
