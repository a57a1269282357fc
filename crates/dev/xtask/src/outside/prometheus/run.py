"""Prometheus beside a worker and a gateway: each query of the boards and each alert rule must work on what it scraped.

A query must return series, so that one with a wrong label is found, which a check of metric names passes."""

import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import report

DEPLOY = os.path.join(os.environ["OUTSIDE_ROOT"], "deploy")
WORKER, GATEWAY = os.environ["OUTSIDE_METRICS"].split(",")
LOAD_S = 45


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


ADDRESS = f"127.0.0.1:{free_port()}"


def ask(path, **parameters):
    """Returns the data of an answer of Prometheus."""
    url = f"http://{ADDRESS}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(json.load(error).get("error", str(error))) from error


def send(path, body, key=report.KEY, **headers):
    """Sends a request to the gateway and reads the whole response, with any status."""
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json", **headers}
    request = urllib.request.Request(report.URL + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        return error.read()


def load(until):
    """Sends requests of all kinds: streams, retries that join, priorities, wrong keys and wrong bodies."""
    number = 0
    while time.monotonic() < until:
        number += 1
        text = f"Once a bear and {number % 5} friends"
        body = {"model": report.MODEL, "input": text, "max_output_tokens": 40, "stream": True}
        send("/v1/responses", body)
        send("/v1/responses", {**body, "service_tier": "flex"})
        named = {"idempotency-key": f"load {threading.get_ident()} {number}"}
        for _ in range(2):
            send("/v1/responses", body, **named)
        chat = {"model": report.MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 20}
        send("/v1/chat/completions", chat)
        send("/v1/chat/completions", chat, key="nsk_wrong")
        send("/v1/chat/completions", {**chat, "unknown": 1})
        send("/v1/completions", {"model": report.MODEL, "prompt": text * 400, "max_tokens": 5})


def value(query):
    """Returns a query as Grafana sends it for all values of its variables. `.+` needs the label, as `.*` does not."""
    query = query.replace("$__rate_interval", "20s").replace("$__range", "60s")
    return re.sub(r"\$\w+", ".+", query)


def queries():
    """Yields the name and the text of each query of each board."""
    for name in sorted(os.listdir(os.path.join(DEPLOY, "grafana"))):
        with open(os.path.join(DEPLOY, "grafana", name), encoding="utf-8") as file:
            board = json.load(file)
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                yield f"{name.removesuffix('.json')}: {panel['title']}: {target['refId']}", target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{name.removesuffix('.json')}: variable {variable['name']}", variable["query"]["query"]


def has_series(query):
    labels = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
    if labels:
        return ask(f"label/{labels[2]}/values", **{"match[]": value(labels[1])})
    # A share of nothing is not a number.
    found = [series for series in ask("query", query=value(query))["result"] if series["value"][1] != "NaN"]
    # The outermost aggregation decides the labels.
    inner = re.match(r"(sum|max|avg)\(", query)
    by = [] if inner else re.findall(r"by \(([^)]*)\)", query)
    grouped = {label.strip() for labels in by for label in labels.split(",")} - {"le"}
    missing = grouped - {label for series in found for label in series["metric"]}
    if found and missing:
        raise RuntimeError(f"no series has the labels {sorted(missing)}")
    return found


def check(name, test):
    try:
        found = test()
        report.outcome(name, "passed" if found else "failed", "" if found else "it returns no series")
    except Exception as error:
        report.outcome(name, "failed", f"{type(error).__name__}: {error}")


def main():
    program = shutil.which("prometheus")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [os.path.join(DEPLOY, "prometheus", "alerts.yaml")],
        "scrape_configs": [
            {"job_name": "worker", "static_configs": [{"targets": [WORKER]}]},
            {"job_name": "gateway", "static_configs": [{"targets": [GATEWAY]}]},
        ],
    }
    with open("prometheus.yml", "w", encoding="utf-8") as file:
        json.dump(config, file)
    shutil.rmtree("data", ignore_errors=True)
    options = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={ADDRESS}"]
    with open("prometheus.log", "w", encoding="utf-8") as log:
        server = subprocess.Popen([program, *options], stdout=log, stderr=log)
    try:
        until = time.monotonic() + LOAD_S
        clients = [threading.Thread(target=load, args=(until,)) for _ in range(3)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        version = ask("status/buildinfo")["version"]
        report.write({"version": {"name": "prometheus", "version": version}})
        for name, query in queries():
            check(name, lambda query=query: has_series(query))
        for group in ask("rules")["groups"]:
            for rule in group["rules"]:
                healthy = rule["health"] == "ok"
                report.outcome(f"rule {rule['name']}", "passed" if healthy else "failed", rule.get("lastError", ""))
    finally:
        server.terminate()
        server.wait()


main()
