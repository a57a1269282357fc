"""The Helm chart: rendered with several values, linted, and every object against the schemas of Kubernetes."""

import copy
import json
import pathlib
import re
import shutil
import tempfile
import tomllib
import unittest

import helm_python
import jsonschema
import kubernetes_validate
import stacks
import yaml
from test_rules import fields_of

FOLDER = stacks.ROOT / "deploy" / "helm" / "nsbridge"
MODEL = {
    "name": "tale-7m",
    "target": "/models/tale-7m",
    "draft": "/models/tale-1m",
    "brokerSecret": "worker-tale-7m",
    "keyringSecret": "worker-keyring",
    "resources": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
}
LARGE = {
    "name": "qwen3-8b.v2",
    "target": "s3://models/qwen3-8b",
    "image": "registry.example.com/nsbridge:0.1.0-cuda",
    "brokerSecret": "worker-qwen3",
    "keyringSecret": "worker-keyring",
    "config": '[handler]\ndevice = "cuda"\nmax_rolling_batch_size = 16\n[store]\nregion = "eu-central-1"\ncache_gb = 100\n',
    "gpus": 1,
    "resources": {"requests": {"cpu": "4"}, "limits": {"memory": "24Gi"}},
    "cache": {"hostPath": "/var/lib/nsbridge/cache"},
    "nodeSelector": {"nvidia.com/gpu.present": "true"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "keda": {"enabled": True, "min": 1, "max": 8},
    "deadLetters": {"schedule": "0 6 * * *", "days": 2, "brokerSecret": "dead-letters-qwen3"},
}
SCALER = {"enabled": True, "config": "# The fields are those of nsbridge scaler.\n"}
# Values by the name of the case.
CASES = {
    "defaults": {},
    "one-model": {"models": [MODEL], "gateway": {"config": "[models.tale-7m]\ncontext = 512\n", "defaultModel": "tale-7m"}},
    "all": {
        "image": {"repository": "registry.example.com/nsbridge@sha256:" + "0" * 64, "pullSecrets": ["registry"]},
        "workerAnnotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/nsbridge-worker-task-a"},
        "models": [MODEL, LARGE],
        "gateway": {"shared": "s3://replies/gateway", "region": "eu-central-1", "storeKeySecret": "gateway-store-key"},
        "scaler": SCALER,
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    },
    "workers-alone": {"models": [MODEL], "gateway": {"enabled": False}, "networkPolicy": {"enabled": False}},
}

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


def closed(required: str, **properties: dict) -> dict:
    return {"type": "object", "additionalProperties": False, "required": required.split(), "properties": properties}


SCALING_RULE = closed(
    "",
    stabilizationWindowSeconds=NUMBER,
    selectPolicy=TEXT,
    policies={"type": "array", "items": closed("type value periodSeconds", type=TEXT, value=NUMBER, periodSeconds=NUMBER)},
    tolerance=TEXT,
)
# The fields of the spec of keda.sh/v1alpha1 ScaledObject (config/crd/bases/keda.sh_scaledobjects.yaml of kedacore/keda);
# the cluster takes away what it does not know, so a typo would be no error there. `metadata` of a trigger is open there;
# here it has the fields of the scaler metrics-api.
SCALED_OBJECT = closed(
    "scaleTargetRef triggers",
    scaleTargetRef=closed("name", name=TEXT, kind=TEXT, apiVersion=TEXT, envSourceContainerName=TEXT),
    pollingInterval=NUMBER,
    initialCooldownPeriod=NUMBER,
    cooldownPeriod=NUMBER,
    idleReplicaCount=NUMBER,
    minReplicaCount=NUMBER,
    maxReplicaCount=NUMBER,
    fallback=closed(
        "failureThreshold replicas",
        failureThreshold=NUMBER,
        replicas=NUMBER,
        behavior={"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]},
    ),
    advanced=closed(
        "",
        restoreToOriginalReplicaCount={"type": "boolean"},
        horizontalPodAutoscalerConfig=closed("", name=TEXT, behavior=closed("", scaleUp=SCALING_RULE, scaleDown=SCALING_RULE)),
    ),
    triggers={
        "type": "array",
        "minItems": 1,
        "items": closed(
            "type metadata",
            type={"const": "metrics-api"},
            name=TEXT,
            metricType={"enum": ["AverageValue", "Value"]},
            useCachedMetrics={"type": "boolean"},
            authenticationRef=closed("name", name=TEXT, kind=TEXT),
            metadata=closed(
                "url valueLocation targetValue",
                url=TEXT,
                format=TEXT,
                valueLocation=TEXT,
                targetValue=TEXT,
                activationTargetValue=TEXT,
                unsafeSsl=TEXT,
            ),
        ),
    },
)
LABELS = {"type": "object", "additionalProperties": TEXT}
# The fields of the spec of monitoring.coreos.com/v1 ServiceMonitor that the chart may use.
SERVICE_MONITOR = closed(
    "selector endpoints",
    jobLabel=TEXT,
    selector=closed("", matchLabels=LABELS),
    endpoints={"type": "array", "minItems": 1, "items": closed("port", port=TEXT, path=TEXT, interval=TEXT, scrapeTimeout=TEXT)},
)
OWN_SCHEMAS = {"ScaledObject": SCALED_OBJECT, "ServiceMonitor": SERVICE_MONITOR}


def render(values: dict) -> list[dict]:
    files = helm_python.Chart.load(str(FOLDER)).render(copy.deepcopy(values), name="fleet", namespace="models")
    return [item for name, text in sorted(files.items()) if name.endswith(".yaml") for item in yaml.safe_load_all(text) if item]


def check(item: dict) -> None:
    """Raises an error if an object does not fit its schema."""
    schema = OWN_SCHEMAS.get(item["kind"])
    if schema:
        jsonschema.validate(item["spec"], schema)
    else:
        kubernetes_validate.validate(item, "1.37", strict=True)


def of_kind(objects: list[dict], kind: str) -> dict[str, dict]:
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def pods(objects: list[dict]) -> dict[str, dict]:
    return {name: item["spec"]["template"] for name, item in of_kind(objects, "Deployment").items()}


def jobs(objects: list[dict]) -> dict[str, dict]:
    return {name: item["spec"]["jobTemplate"]["spec"]["template"] for name, item in of_kind(objects, "CronJob").items()}


def unreached(objects: list[dict]) -> list[str]:
    """Returns what the scaler, KEDA or Prometheus needs and a network policy keeps from it."""
    policies = {name: item["spec"] for name, item in of_kind(objects, "NetworkPolicy").items()}
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(objects).items()}

    def ports(rules: list[dict], side: str, pod: str | None) -> set[int]:
        """Returns the ports that are open to a pod, or with None to peers outside of the release."""

        def is_meant(peer: dict) -> bool:
            if pod is None or "podSelector" not in peer:
                return (pod is None) == ("podSelector" not in peer)
            return peer["podSelector"]["matchLabels"].items() <= labels[pod].items()

        return {port["port"] for rule in rules if any(map(is_meant, rule.get(side, [{}]))) for port in rule["ports"]}

    wrong = []
    for worker in (name for name in labels if name.startswith("fleet-worker")):
        if 9464 not in ports(policies["fleet-scaler"]["egress"], "to", worker) & ports(policies["fleet-worker"]["ingress"], "from", "fleet-scaler"):
            wrong.append(f"{worker}: not read")
    if not {5671, 443, 15671} <= ports(policies["fleet-scaler"]["egress"], "to", None):
        wrong.append("the broker's management API")
    if ports(policies["fleet-scaler"]["ingress"], "from", None) != {9465}:
        wrong.append("the number of workers")
    return wrong


class Objects(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.rendered = {name: render(values) for name, values in CASES.items()}

    def test_each_fits_its_schema(self) -> None:
        for name, objects in self.rendered.items():
            for item in objects:
                with self.subTest(case=name, kind=item["kind"], name=item["metadata"]["name"]):
                    check(item)

    def test_a_typo_in_an_object_is_found(self) -> None:
        def wrong(kind: str, *path: str, name: str) -> None:
            item = copy.deepcopy(next(iter(of_kind(self.rendered["all"], kind).values())))
            place = item
            for key in path:
                place = place[int(key) if key.isdigit() else key]
            place[name] = place.pop(next(iter(place)))
            with self.assertRaises((jsonschema.ValidationError, kubernetes_validate.ValidationError), msg=kind):
                check(item)

        wrong("Deployment", "spec", "template", "spec", name="terminationGracePeriodSecond")
        wrong("PodDisruptionBudget", "spec", name="maxUnavailabel")
        wrong("ScaledObject", "spec", name="minReplicas")
        wrong("ScaledObject", "spec", "advanced", "horizontalPodAutoscalerConfig", "behavior", "scaleDown", name="stabilisationWindowSeconds")
        wrong("ScaledObject", "spec", "triggers", "0", "metadata", name="valueLocaton")
        wrong("ServiceMonitor", "spec", "endpoints", "0", name="ports")

    def test_each_case_has_the_objects_that_it_asks_for(self) -> None:
        kinds = {name: {(i["kind"], i["metadata"]["name"]) for i in objects} for name, objects in self.rendered.items()}
        self.assertEqual({kind for kind, _ in kinds["defaults"]}, {"ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"})
        self.assertNotIn(("Deployment", "fleet-gateway"), kinds["workers-alone"])
        self.assertFalse(any(kind == "NetworkPolicy" for kind, _ in kinds["workers-alone"]))
        self.assertIn(("ScaledObject", "fleet-worker-qwen3-8b-v2"), kinds["all"])
        self.assertNotIn(("ScaledObject", "fleet-worker-tale-7m"), kinds["all"])
        for name, objects in self.rendered.items():
            self.assertEqual(len(kinds[name]), len(objects), "two objects with one name")

    def test_pods_have_no_more_rights_than_they_need(self) -> None:
        for objects in self.rendered.values():
            for name, pod in (pods(objects) | jobs(objects)).items():
                spec = pod["spec"]
                self.assertEqual(spec["securityContext"]["runAsUser"], 10001, name)
                self.assertEqual(spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
                self.assertFalse(spec["automountServiceAccountToken"])
                (container,) = spec["containers"]
                self.assertEqual(
                    container["securityContext"],
                    {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
                )
                self.assertIn("memory", container["resources"]["limits"])

    def test_no_secret_is_in_an_object(self) -> None:
        for objects in self.rendered.values():
            self.assertEqual(of_kind(objects, "Secret"), {})
            self.assertNotRegex(json.dumps(objects), "amqps?://")

    def test_selectors_find_their_pods_and_no_others(self) -> None:
        objects = self.rendered["all"]
        labels = {name: pod["metadata"]["labels"] for name, pod in (pods(objects) | jobs(objects)).items()}

        def found(selector: dict) -> set[str]:
            return {name for name, has in labels.items() if selector.items() <= has.items()}

        workers = {"fleet-worker-tale-7m", "fleet-worker-qwen3-8b-v2"}
        for name, item in of_kind(objects, "Deployment").items():
            self.assertEqual(found(item["spec"]["selector"]["matchLabels"]), {name})
        for name, item in of_kind(objects, "PodDisruptionBudget").items():
            self.assertEqual(found(item["spec"]["selector"]["matchLabels"]), {name})
        for name, item in of_kind(objects, "NetworkPolicy").items():
            all_of = {"fleet-worker": workers, "fleet-dead-letters": set(jobs(objects))}
            self.assertEqual(found(item["spec"]["podSelector"]["matchLabels"]), all_of.get(name, {name}))
        services = of_kind(objects, "Service")
        for name, item in services.items():
            self.assertEqual(found(item["spec"]["selector"]), {name})
        for name, item in of_kind(objects, "ServiceMonitor").items():
            monitored = item["spec"]["selector"]["matchLabels"].items()
            (port,) = [endpoint["port"] for endpoint in item["spec"]["endpoints"]]
            chosen = {key: s for key, s in services.items() if monitored <= s["metadata"]["labels"].items()}
            self.assertEqual(set(chosen), workers if name == "fleet-worker" else {name})
            self.assertTrue(all(port in {p["name"] for p in s["spec"]["ports"]} for s in chosen.values()))

    def test_the_name_of_a_model_resolves_to_all_of_its_workers(self) -> None:
        for case in ("one-model", "all", "workers-alone"):
            for name, item in of_kind(self.rendered[case], "Service").items():
                if name.startswith("fleet-worker"):
                    # An address of its own would lead to one of them, and a worker that loads has metrics too.
                    self.assertEqual(item["spec"]["clusterIP"], "None")
                    self.assertTrue(item["spec"]["publishNotReadyAddresses"])
                    self.assertEqual([(p["port"], p["targetPort"]) for p in item["spec"]["ports"]], [(9464, "health")])
            self.assertLessEqual(set(pods(self.rendered[case])), {"fleet-scaler", *of_kind(self.rendered[case], "Service")})

    def test_the_scaler_reaches_the_pages_of_workers_and_the_management_api(self) -> None:
        self.assertEqual(unreached(self.rendered["all"]), [])
        for name, remove in [
            ("fleet-worker", lambda spec: spec["ingress"].pop()),
            ("fleet-worker", lambda spec: spec["ingress"][-1]["ports"][0].update(port=9465)),
            ("fleet-scaler", lambda spec: spec["egress"].pop()),
            ("fleet-scaler", lambda spec: spec["egress"].pop(-2)),
            ("fleet-scaler", lambda spec: spec["ingress"].pop()),
        ]:
            broken = copy.deepcopy(self.rendered["all"])
            remove(of_kind(broken, "NetworkPolicy")[name]["spec"])
            self.assertNotEqual(unreached(broken), [], name)
        # Without a scaler no pod but Prometheus reads workers.
        (rule,) = of_kind(self.rendered["one-model"], "NetworkPolicy")["fleet-worker"]["spec"]["ingress"]
        self.assertNotIn("podSelector", rule["from"][0])

    def test_the_check_for_dead_letters_removes_none_and_fails_once(self) -> None:
        (look,) = of_kind(self.rendered["all"], "CronJob").values()
        self.assertEqual(look["metadata"]["name"], "fleet-dead-qwen3-8b-v2")
        pod = look["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        self.assertEqual(pod["restartPolicy"], "Never")
        (container,) = pod["containers"]
        self.assertEqual(container["args"], ["queue", "purge", "--model", "qwen3-8b.v2", "--older-than", "2"])
        self.assertEqual(container["env"][0]["valueFrom"]["secretKeyRef"]["name"], "dead-letters-qwen3")
        self.assertEqual(look["spec"]["jobTemplate"]["spec"]["backoffLimit"], 0)
        self.assertEqual([len(of_kind(objects, "CronJob")) for objects in self.rendered.values()], [0, 0, 1, 0])

    def test_keda_asks_the_scaler_at_its_port(self) -> None:
        objects = self.rendered["all"]
        (scaled,) = of_kind(objects, "ScaledObject").values()
        service = of_kind(objects, "Service")["fleet-scaler"]["spec"]["ports"][0]
        url = f"http://fleet-scaler.models.svc:{service['port']}/v1/desired/qwen3-8b.v2"
        asked = scaled["spec"]["triggers"][0]["metadata"]
        self.assertEqual((asked["url"], asked["format"], asked["valueLocation"], asked["targetValue"]), (url, "json", "desired", "1"))
        target = of_kind(objects, "Deployment")[scaled["spec"]["scaleTargetRef"]["name"]]
        # Else each upgrade of the chart would set the number back.
        self.assertNotIn("replicas", target["spec"])
        (container,) = target["spec"]["template"]["spec"]["containers"]
        self.assertEqual(container["resources"]["limits"]["nvidia.com/gpu"], 1)


class Configuration(unittest.TestCase):
    def files(self, case: str) -> dict[str, dict]:
        maps = of_kind(render(CASES[case]), "ConfigMap")
        return {name: tomllib.loads(text) for name, item in maps.items() for text in item["data"].values()}

    def test_every_field_is_one_of_the_examples(self) -> None:
        known = {"worker": fields_of("worker.example.toml"), "gateway": fields_of("gateway.example.toml")}
        for case in ("one-model", "all"):
            for name, config in self.files(case).items():
                if name.endswith("scaler"):
                    continue
                for section, fields in config.items():
                    # The fields of [models] are names of models.
                    for field in fields if section != "models" else ():
                        variable = f"NSBRIDGE_{section}__{field}".upper()
                        self.assertIn(variable, known["worker" if "worker" in name else "gateway"])

    def test_the_values_of_a_model_are_its_workers_configuration(self) -> None:
        config = self.files("all")["fleet-worker-qwen3-8b-v2"]
        self.assertEqual(config["worker"]["model"], "qwen3-8b.v2")
        self.assertEqual(config["models"], {"target": "s3://models/qwen3-8b"})
        self.assertEqual(config["handler"]["max_rolling_batch_size"], 16)

    def test_paths_of_the_configuration_are_mounted(self) -> None:
        objects = render(CASES["all"])
        configs = of_kind(objects, "ConfigMap")
        for name, pod in pods(objects).items():
            (container,) = pod["spec"]["containers"]
            mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
            for path in re.findall(r'"(/(?:keys|access|cache)[^"]*)"', "".join(configs[name]["data"].values())):
                self.assertIn(str(pathlib.PurePath(path).parent), mounted)
            self.assertIn(container["args"][2], {f"/etc/nsbridge/{file}" for file in configs[name]["data"]})

    def test_stop_times_and_ports_are_those_of_the_configuration(self) -> None:
        objects = render(CASES["all"])
        configs = of_kind(objects, "ConfigMap")
        (scaler,) = pods(objects)["fleet-scaler"]["spec"]["containers"]
        pages = {name: scaler[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")}
        self.assertEqual(pages, {"livenessProbe": "/livez", "readinessProbe": "/readyz"})
        for name, pod in pods(objects).items():
            if name == "fleet-scaler":
                continue
            config = tomllib.loads(next(iter(configs[name]["data"].values())))
            part = config.get("worker") or config["server"]
            self.assertGreaterEqual(pod["spec"]["terminationGracePeriodSeconds"], part["grace_s"] + 15)
            addresses = [config["health"]["listen"]] if "health" in config else [config["server"]["listen"], config["server"]["metrics"]]
            (container,) = pod["spec"]["containers"]
            self.assertEqual([int(a.rsplit(":")[-1]) for a in addresses], [p["containerPort"] for p in container["ports"]])
            named = {port["name"] for port in container["ports"]}
            for probe, page in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
                self.assertEqual(container[probe]["httpGet"]["path"], page)
                self.assertIn(container[probe]["httpGet"]["port"], named)


class Values(unittest.TestCase):
    def test_a_value_that_does_not_fit_is_refused(self) -> None:
        chart = helm_python.Chart.load(str(FOLDER))
        mutants = [
            {"gatway": {}},
            {"gateway": {"replica": 3}},
            {"models": [MODEL | {"targets": "x"}]},
            {"models": [{key: value for key, value in MODEL.items() if key != "keyringSecret"}]},
            {"models": [MODEL | {"resources": {"requests": {"cpu": "1"}}}]},
            # These sections are the chart's own.
            {"models": [MODEL | {"config": "[handler]\n[broker]\n"}]},
            {"gateway": {"shared": "/folder"}},
            {"models": [MODEL | {"deadLetters": {"schedule": "0 6 * * *"}}]},
            {"worker": {"graceSeconds": "100"}},
        ]
        for values in mutants:
            with self.assertRaises(helm_python.HelmError, msg=values):
                chart.validate_schema(values)
        for values in CASES.values():
            chart.validate_schema(values)

    def test_values_that_contradict_each_other_are_refused(self) -> None:
        for values, said in [
            ({"models": [LARGE]}, "keda needs scaler.enabled"),
            ({"worker": {"graceSeconds": 110}}, "worker.stopSeconds"),
            ({"gateway": {"shared": "s3://a/b"}}, "storeKeySecret"),
            ({"scaler": {"enabled": True}}, "scaler.config"),
        ]:
            with self.assertRaisesRegex(helm_python.HelmError, said):
                render(values)

    def test_the_lint_of_helm_is_clean_and_finds_a_broken_template(self) -> None:
        def told(folder: pathlib.Path) -> list[str]:
            found = helm_python.lint(str(folder), values=CASES["all"], namespace="models")
            messages = [*(found["messages"] or []), *(found["errors"] or [])]
            return [str(message) for message in messages if "icon is recommended" not in str(message)]

        self.assertEqual(told(FOLDER), [])
        with tempfile.TemporaryDirectory() as folder:
            broken = pathlib.Path(folder) / "nsbridge"
            shutil.copytree(FOLDER, broken)
            (broken / "templates" / "scaler.yaml").write_text("{{ .Values.scaler.none.none }}")
            self.assertNotEqual(told(broken), [])


if __name__ == "__main__":
    unittest.main()
