"""The file of Compose: what it mounts exists, and what it asks for is what the programs have."""

import copy
import json
import re
import unittest

import stacks
import yaml

FOLDER = stacks.ROOT / "deploy"
OURS = {"worker": "127.0.0.1:9464", "gateway": "127.0.0.1:9090"}


def read() -> dict:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


def wrong(compose: dict) -> list[str]:
    found, services = [], compose["services"]
    lasting = {name: s for name, s in services.items() if "restart" in s}
    for name, service in lasting.items():
        if "mem_limit" not in service:
            found.append(f"{name}: no memory limit")
        found += [f"{name}: open port {port}" for port in service.get("ports", []) if not port.startswith("127.0.0.1:")]
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            there = (FOLDER / source).exists() if source.startswith(".") else source in compose["volumes"]
            found += [] if there else [f"{name}: no {source}"]
        found += [f"{name}: no config {c['source']}" for c in service.get("configs", []) if c["source"] not in compose["configs"]]
        found += [f"{name}: waits for {other}" for other in service.get("depends_on", {}) if other not in services]
    for name, address in OURS.items():
        service = services[name]
        test = service.get("healthcheck", {}).get("test", [])
        # The address of a worker's pages is the command's default.
        if test[:3] != ["CMD", "nsbridge", "health"] or (name == "gateway" and address not in test):
            found.append(f"{name}: its health is not asked for")
        options = service["logging"]["options"]
        if options.get("mode") != "non-blocking" or "max-size" not in options:
            found.append(f"{name}: its log blocks or grows")
    return found


class Compose(unittest.TestCase):
    def test_the_file_keeps_the_rules(self) -> None:
        self.assertEqual(wrong(read()), [])

    def test_each_rule_finds_its_mutant(self) -> None:
        for name, field, value in [
            ("worker", "mem_limit", None),
            ("worker", "healthcheck", None),
            ("gateway", "healthcheck", {"test": ["CMD", "curl", "127.0.0.1:9090"]}),
            ("gateway", "ports", ["8080:8080"]),
            ("worker", "logging", {"driver": "local", "options": {}}),
            ("prometheus", "volumes", ["./prometheus/alert.yaml:/etc/prometheus/alerts.yaml:ro"]),
            ("grafana", "configs", [{"source": "grafana-board"}]),
        ]:
            compose = copy.deepcopy(read())
            if value is None:
                del compose["services"][name][field]
            else:
                compose["services"][name][field] = value
            self.assertNotEqual(wrong(compose), [], (name, field))

    def test_prometheus_scrapes_services_of_the_file(self) -> None:
        config = yaml.safe_load((FOLDER / "prometheus/prometheus.example.yaml").read_text())
        targets = [t for job in config["scrape_configs"] for s in job.get("static_configs", []) for t in s["targets"]]
        looked_up = [name for job in config["scrape_configs"] for s in job.get("dns_sd_configs", []) for name in s["names"]]
        self.assertEqual({target.split(":")[0] for target in targets + looked_up}, {"worker", "gateway", "rabbitmq"})
        self.assertLessEqual({"worker", "gateway", "rabbitmq"}, set(read()["services"]))
        mounted = " ".join(read()["services"]["prometheus"]["volumes"])
        for file in config["rule_files"]:
            self.assertIn(f"/etc/prometheus/{file}", mounted)

    def test_grafana_reads_the_boards_from_where_they_are_mounted(self) -> None:
        compose = read()
        boards = yaml.safe_load(compose["configs"]["grafana-boards"]["content"])["providers"][0]["options"]["path"]
        self.assertIn(f"./grafana:{boards}:ro", compose["services"]["grafana"]["volumes"])
        (source,) = yaml.safe_load(compose["configs"]["grafana-prometheus"]["content"])["datasources"]
        self.assertRegex(source["url"], r"^http://prometheus:\d+$")
        for board in (FOLDER / "grafana").glob("*.json"):
            # A board that asked for its source at an import could not be mounted.
            self.assertNotIn("__inputs", json.loads(board.read_text()))
            self.assertTrue(re.search(r'"query": "prometheus"', board.read_text()), board.name)


if __name__ == "__main__":
    unittest.main()
