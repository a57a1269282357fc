"""What cfn-lint does not know: rules of AWS and of nsbridge, each with the mutant that it must find."""

import re
import unittest

import stacks
import yaml
from stacks import ABSENT, Stack, changed, resolved

BROKER_VERSIONS = {"4.2", "4.3"}
# No tool has a list of types: those of the templates, with one GPU of 24 GB each and 32 GiB of memory or more.
INSTANCES = {"g6.2xlarge", "g6.4xlarge", "g5.2xlarge", "g5.4xlarge"}
# Seconds between a spot notice and the end of the instance, and the most that Fargate gives.
NOTICE = 120
# grace_s and these seconds are the stop timeout at least (docs/operating.md).
AFTER_GRACE = {"WORKER": 15, "SERVER": 10}
# Namespace, name and dimensions. Those of `nsbridge` are what `nsbridge scaler` publishes.
METRICS = {
    ("nsbridge", "DesiredWorkers", ("Model",)),
    ("nsbridge", "BacklogSeconds", ("Model",)),
    ("AWS/AmazonMQ", "RabbitMQMemUsed", ("Broker",)),
    ("AWS/AmazonMQ", "RabbitMQMemLimit", ("Broker",)),
    ("AWS/AmazonMQ", "RabbitMQDiskFree", ("Broker",)),
    ("AWS/AmazonMQ", "RabbitMQDiskFreeLimit", ("Broker",)),
    ("AWS/ApplicationELB", "HTTPCode_Target_5XX_Count", ("LoadBalancer",)),
    ("AWS/ApplicationELB", "HTTPCode_ELB_5XX_Count", ("LoadBalancer",)),
    ("AWS/ApplicationELB", "RequestCount", ("LoadBalancer",)),
    ("AWS/ApplicationELB", "HealthyHostCount", ("LoadBalancer", "TargetGroup")),
    # Of a metric filter of the template: the model's name.
    ("nsbridge/dead-letters", stacks.MODEL, ()),
    ("ECS/ContainerInsights", "RunningTaskCount", ("ClusterName", "ServiceName")),
}
# Variables that are not of nsbridge: read by the command beside them.
OTHER_VARIABLES = {"SCALER_TOML"}
# Route 53 answers with so many addresses of a name at most (Cloud Map, multivalue answer routing).
ADDRESSES = 8
AGENT = {"ECS_ENABLE_SPOT_INSTANCE_DRAINING=true", "ECS_ENABLE_GPU_SUPPORT=true"}


def broker(stacks_: dict[str, Stack]) -> list[str]:
    wrong = []
    for name, properties in stacks_["base"].of_type("AWS::AmazonMQ::Broker").items():
        allowed = set(stacks_["base"].template["Parameters"]["BrokerVersion"]["AllowedValues"]) | {properties["EngineVersion"]}
        if not allowed <= BROKER_VERSIONS:
            wrong.append(f"{name}: versions {sorted(allowed)}")
        hosts = set(stacks_["base"].template["Parameters"]["BrokerInstance"]["AllowedValues"]) | {properties["HostInstanceType"]}
        if not all(host.startswith("mq.m7g.") for host in hosts):
            wrong.append(f"{name}: hosts {sorted(hosts)}")
        if properties["PubliclyAccessible"] or properties["DeploymentMode"] != "CLUSTER_MULTI_AZ":
            wrong.append(f"{name}: not a private cluster")
    return wrong


def instances(stacks_: dict[str, Stack]) -> list[str]:
    wrong = []
    for name, properties in stacks_["workers"].of_type("AWS::EC2::LaunchTemplate").items():
        data = properties["LaunchTemplateData"]
        if data["InstanceType"] not in INSTANCES:
            wrong.append(f"{name}: {data['InstanceType']}")
        metadata = data.get("MetadataOptions", {})
        if metadata.get("HttpPutResponseHopLimit") != 2 or metadata.get("HttpTokens") != "required":
            wrong.append(f"{name}: a container cannot read the spot notice, or IMDSv1 is on")
        if not all(device["Ebs"].get("Encrypted") for device in data["BlockDeviceMappings"]):
            wrong.append(f"{name}: a disk is not encrypted")
        lines = {line.strip() for line in data["UserData"].splitlines()}
        wrong += [f"{name}: the agent lacks {line}" for line in AGENT - lines]
        if "-o 10001 -g 10001" not in data["UserData"]:
            wrong.append(f"{name}: the cache is not the worker's")
    for name, properties in stacks_["workers"].of_type("AWS::AutoScaling::AutoScalingGroup").items():
        overrides = properties.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("Overrides", [])
        wrong += [f"{name}: {o['InstanceType']}" for o in overrides if o["InstanceType"] not in INSTANCES]
    return wrong


def services(stacks_: dict[str, Stack]) -> list[str]:
    wrong = []
    for stack in stacks_.values():
        for name, resource in stack.resources.items():
            if resource["Type"] != "AWS::ECS::Service":
                continue
            needed = []
            if "CapacityProviderStrategy" in resource["Properties"]:
                # Else the service is created before its provider is known, and its deletion hangs.
                needed.append("AWS::ECS::ClusterCapacityProviderAssociations")
            if "LoadBalancers" in resource["Properties"]:
                needed.append("AWS::ElasticLoadBalancingV2::Listener")
            there = {stack.resources[other]["Type"] for other in resource.get("DependsOn", [])}
            wrong += [f"{name}: DependsOn lacks {kind}" for kind in needed if kind not in there]
            if resource["Properties"]["DeploymentConfiguration"].get("DeploymentCircuitBreaker") != {"Enable": True, "Rollback": True}:
                wrong.append(f"{name}: no circuit breaker")
    return wrong


def containers(stacks_: dict[str, Stack]):
    for stack in stacks_.values():
        for name, task in stack.of_type("AWS::ECS::TaskDefinition").items():
            for container in task["ContainerDefinitions"]:
                yield name, task, container


def variables(container: dict) -> dict[str, str]:
    return {item["Name"]: item["Value"] for item in container["Environment"]}


def stop_times(stacks_: dict[str, Stack]) -> list[str]:
    wrong = []
    for name, task, container in containers(stacks_):
        set_to, stop = variables(container), container["StopTimeout"]
        if (set_to.get("NSBRIDGE_FLEET__SPOT") == "true" or "FARGATE" in task["RequiresCompatibilities"]) and stop > NOTICE:
            wrong.append(f"{name}: stops after {stop} s")
        for section, margin in AFTER_GRACE.items():
            grace = set_to.get(f"NSBRIDGE_{section}__GRACE_S")
            if grace and stop < int(grace) + margin:
                wrong.append(f"{name}: stop {stop} s, grace {grace} s")
    return wrong


def metrics(stacks_: dict[str, Stack]) -> list[str]:
    wrong = []
    for stack in stacks_.values():
        for name, alarm in stack.of_type("AWS::CloudWatch::Alarm").items():
            named = [alarm] if "MetricName" in alarm else [m["MetricStat"]["Metric"] for m in alarm["Metrics"] if "MetricStat" in m]
            for metric in named:
                it = (metric["Namespace"], metric["MetricName"], tuple(d["Name"] for d in metric["Dimensions"]))
                if it not in METRICS:
                    wrong.append(f"{name}: {it}")
    return wrong


def fields_of(example: str) -> set[str]:
    """Returns the variables of all fields of an example of a configuration, commented ones included."""
    found, section = set(), ""
    for line in (stacks.ROOT / "deploy" / example).read_text().splitlines():
        if heading := re.match(r"(?:# )?\[([a-z_]+)(\.[^\]]+)?\]", line):
            section = heading[1] + ("." if heading[2] else "")
        elif field := re.match(r"(?:# )?([a-z0-9_]+) = ", line):
            # `[models.tale-7m]` has fields of any model.
            place = section.replace(".", "__*")
            found.add(f"NSBRIDGE_{place}__{field[1]}".upper())
    return found


def environment(stacks_: dict[str, Stack]) -> list[str]:
    known = {"worker": fields_of("worker.example.toml"), "gateway": fields_of("gateway.example.toml")}
    known["scaler"] = known["dead-letters"] = known["worker"]
    wrong = []
    for name, _, container in containers(stacks_):
        names = [item["Name"] for item in container["Environment"] + container.get("Secrets", [])]
        for variable in set(names) - OTHER_VARIABLES:
            general = re.sub(r"(NSBRIDGE_MODELS__)[^_]+(__\w+)$", r"\1*\2", variable)
            if not {variable, general} & known[container["Name"]]:
                wrong.append(f"{name}: {variable}")
        wrong += [f"{name}: {variable} twice" for variable in names if names.count(variable) > 1]
    return wrong


def safety(stacks_: dict[str, Stack]) -> list[str]:
    wrong = []
    for name, task, container in containers(stacks_):
        if not container["ReadonlyRootFilesystem"] or container["User"] != "10001:10001" or container["LinuxParameters"]["Capabilities"] != {"Drop": ["ALL"]}:
            wrong.append(f"{name}: too many rights")
        if container["LogConfiguration"]["Options"].get("mode") != "non-blocking":
            wrong.append(f"{name}: a log driver that blocks")
        for item in container["Environment"]:
            if re.search(r"amqps?://[^/]*@|PASSWORD|KEYRING_JSON|BROKER__URL$", item["Name"] + item["Value"]):
                wrong.append(f"{name}: a secret in {item['Name']}")
    return wrong


def balancer(stacks_: dict[str, Stack]) -> list[str]:
    gateway, wrong = stacks_["gateway"], []
    for name, target in gateway.of_type("AWS::ElasticLoadBalancingV2::TargetGroup").items():
        attributes = {item["Key"]: item["Value"] for item in target["TargetGroupAttributes"]}
        (grace,) = [variables(c)["NSBRIDGE_SERVER__GRACE_S"] for _, _, c in containers({"": gateway})]
        if int(attributes["deregistration_delay.timeout_seconds"]) < int(grace):
            wrong.append(f"{name}: targets leave within the grace period")
        if target["HealthCheckPath"] != "/readyz":
            wrong.append(f"{name}: asks {target['HealthCheckPath']}")
    for name, properties in gateway.of_type("AWS::ElasticLoadBalancingV2::LoadBalancer").items():
        attributes = {item["Key"]: item["Value"] for item in properties["LoadBalancerAttributes"]}
        if int(attributes["idle_timeout.timeout_seconds"]) <= 15:
            wrong.append(f"{name}: cuts a silent stream")
    wrong += [f"{name}: no TLS" for name, listener in gateway.of_type("AWS::ElasticLoadBalancingV2::Listener").items() if listener["Protocol"] != "HTTPS"]
    return wrong


def scaling(stacks_: dict[str, Stack]) -> list[str]:
    """The steps cover all numbers from 0 on without a gap, and each has the number that it is for."""
    wrong = []
    for name, policy in stacks_["workers"].of_type("AWS::ApplicationAutoScaling::ScalingPolicy").items():
        configuration, lower = policy["StepScalingPolicyConfiguration"], 0
        steps = configuration["StepAdjustments"]
        if configuration["AdjustmentType"] != "ExactCapacity" or len(steps) > 20:
            wrong.append(f"{name}: {configuration['AdjustmentType']}, {len(steps)} steps")
        for step in steps:
            upper = step.get("MetricIntervalUpperBound", float("inf"))
            if step["MetricIntervalLowerBound"] != lower or not lower <= step["ScalingAdjustment"] < upper:
                wrong.append(f"{name}: {step}")
            lower = upper
        if lower != float("inf"):
            wrong.append(f"{name}: no step above {lower}")
    return wrong


def discovery(stacks_: dict[str, Stack]) -> list[str]:
    """Each service of tasks has a name of its own in DNS, which Prometheus and the scaler know."""
    wrong, labels = [], []
    for stack in stacks_.values():
        names = {f"{name}.Arn": properties for name, properties in stack.of_type("AWS::ServiceDiscovery::Service").items()}
        for properties in names.values():
            records = properties["DnsConfig"]
            if records["RoutingPolicy"] != "MULTIVALUE" or [record["Type"] for record in records["DnsRecords"]] != ["A"]:
                wrong.append(f"{properties['Name']}: not all addresses")
            if properties["NamespaceId"] != stacks.EXPORTS["nsbridge-base-Namespace"]:
                wrong.append(f"{properties['Name']}: in another namespace")
        for name, service in stack.of_type("AWS::ECS::Service").items():
            (registry,) = service.get("ServiceRegistries", [{}])
            # With an A record ECS refuses a port.
            if set(registry) != {"RegistryArn"} or registry["RegistryArn"] not in names:
                wrong.append(f"{name}: its tasks have no name")
                continue
            label = names[registry["RegistryArn"]]["Name"]
            labels.append(label)
            if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", label):
                wrong.append(f"{name}: {label} is no label")
    wrong += [f"{label}: has two services" for label in set(labels) if labels.count(label) > 1]
    if int(stacks_["workers"].parameters["SpotWorkers"]) > ADDRESSES:
        wrong.append("SpotWorkers: more than a name has addresses")
    (namespace,) = stacks_["base"].of_type("AWS::ServiceDiscovery::PrivateDnsNamespace").values()
    scraped = {name for job in prometheus("prometheus.ecs.yaml") for name in job["names"]}
    if scraped != {f"{label}.{namespace['Name']}" for label in labels}:
        wrong.append(f"Prometheus asks for {sorted(scraped)}")
    return wrong


def prometheus(file: str) -> list[dict]:
    """Returns the lookups in DNS of a configuration of Prometheus."""
    config = yaml.safe_load((stacks.ROOT / "deploy/prometheus" / file).read_text())
    return [lookup for job in config["scrape_configs"] for lookup in job.get("dns_sd_configs", [])]


def dead_letters(stacks_: dict[str, Stack]) -> list[str]:
    """The check counts dead letters and removes none, and a failure of it reaches the alarm."""
    wrong, workers = [], stacks_["workers"]
    (command,) = [c["Command"] for name, _, c in containers(stacks_) if name == "DeadLetterTask"]
    if command[:2] != ["queue", "purge"] or command[2:4] != ["--model", stacks.MODEL] or {"--yes", "--waiting"} & set(command):
        wrong.append(f"it runs {command}")
    (group,) = [c["LogConfiguration"]["Options"]["awslogs-group"] for name, _, c in containers(stacks_) if name == "DeadLetterTask"]
    (watched,) = workers.of_type("AWS::Logs::MetricFilter").values()
    (metric,) = watched["MetricTransformations"]
    alarm = workers.of_type("AWS::CloudWatch::Alarm")["OldDeadLetters"]
    if watched["LogGroupName"] != group or (metric["MetricNamespace"], metric["MetricName"]) != (alarm["Namespace"], alarm["MetricName"]):
        wrong.append("its log does not reach the alarm")
    # What the command prints (crates/cli/src/queue.rs), after the `error: ` of each failure.
    if watched["FilterPattern"] != '"error:"':
        wrong.append(f"looks for {watched['FilterPattern']}")
    (schedule,) = workers.of_type("AWS::Scheduler::Schedule").values()
    groups = schedule["Target"]["EcsParameters"]["NetworkConfiguration"]["AwsvpcConfiguration"]["SecurityGroups"]
    if groups != [stacks.EXPORTS["nsbridge-base-BrokerClients"]]:
        wrong.append("it does not reach the broker")
    role = stacks.policies(stacks_)["dead-letters-schedule"]["Statement"]
    (family,) = [task["Family"] for name, task, _ in containers(stacks_) if name == "DeadLetterTask"]
    if not role[0]["Resource"].endswith(f":task-definition/{family}:*") or not role[1]["Resource"].endswith("/DeadLetterExecutionRole"):
        wrong.append("its schedule may not start it")
    return wrong


def open_to(stack: Stack, group: str, source: str) -> set[int]:
    """Returns the ports of a security group that another one may reach."""
    own = stack.of_type("AWS::EC2::SecurityGroup")[group].get("SecurityGroupIngress", [])
    others = [rule for rule in stack.of_type("AWS::EC2::SecurityGroupIngress").values() if rule["GroupId"] == group]
    return {rule["FromPort"] for rule in own + others if rule["SourceSecurityGroupId"] == source}


def reach(stacks_: dict[str, Stack]) -> list[str]:
    """The scaler reaches the pages of workers and the management API, and Prometheus reaches all metrics."""
    wrong, base = [], stacks_["base"]
    ports = {name: [mapping["ContainerPort"] for mapping in c.get("PortMappings", [])] for name, _, c in containers(stacks_)}
    (worker,), (scaler,) = ports["SpotTask"], ports["ScalerTask"]
    groups = stacks_["workers"].of_type("AWS::EC2::SecurityGroup")
    sends = {rule["FromPort"] for rule in groups["ScalerGroup"]["SecurityGroupEgress"] if rule.get("DestinationSecurityGroupId") == "WorkerGroup"}
    if worker not in sends & open_to(stacks_["workers"], "WorkerGroup", "ScalerGroup"):
        wrong.append("the scaler cannot read workers")
    for name, group in [("OnDemandService", "WorkerGroup"), ("SpotService", "WorkerGroup"), ("CanaryService", "WorkerGroup"), ("ScalerService", "ScalerGroup")]:
        carried = stacks_["workers"].of_type("AWS::ECS::Service")[name]["NetworkConfiguration"]["AwsvpcConfiguration"]["SecurityGroups"]
        if not {group, stacks.EXPORTS["nsbridge-base-BrokerClients"]} <= set(carried):
            wrong.append(f"{name}: carries {carried}")
    if not {5671, 443} <= open_to(base, "BrokerGroup", "BrokerClients"):
        wrong.append("the broker or its management API cannot be reached")
    watcher = stacks_["workers"].parameters["PrometheusGroup"]
    for stack, group, port in [("workers", "WorkerGroup", worker), ("workers", "ScalerGroup", scaler), ("gateway", "GatewayGroup", ports["GatewayTask"][1])]:
        if open_to(stacks_[stack], group, watcher) != {port}:
            wrong.append(f"{group}: Prometheus cannot read port {port} alone")
    scraped = {tuple(lookup["names"]): lookup["port"] for lookup in prometheus("prometheus.ecs.yaml")}
    if set(scraped.values()) != {worker, scaler, ports["GatewayTask"][1]}:
        wrong.append(f"Prometheus asks {scraped}")
    return wrong


TASK = "SpotTask/Properties/ContainerDefinitions/0"
DATA = "Instances/Properties/LaunchTemplateData"
# Rule, the template that is changed, the place, and the value there.
MUTANTS = [
    (broker, "base", "Broker/Properties/EngineVersion", "9.9"),
    (broker, "base", "Broker/Properties/HostInstanceType", "mq.t3.micro"),
    (broker, "base", "Broker/Properties/PubliclyAccessible", True),
    (instances, "workers", "SpotGroup/Properties/MixedInstancesPolicy/LaunchTemplate/Overrides/1/InstanceType", "inf2.49xlarge"),
    (instances, "workers", f"{DATA}/InstanceType", "g6.9xlarge"),
    (instances, "workers", f"{DATA}/MetadataOptions/HttpPutResponseHopLimit", ABSENT),
    (instances, "workers", f"{DATA}/MetadataOptions/HttpTokens", "optional"),
    (instances, "workers", f"{DATA}/BlockDeviceMappings/0/Ebs/Encrypted", ABSENT),
    (instances, "workers", f"{DATA}/UserData", "-o 10001 -g 10001\nECS_ENABLE_GPU_SUPPORT=true"),
    (services, "workers", "SpotService/DependsOn", ABSENT),
    (services, "workers", "OnDemandService/DependsOn", ["Cluster"]),
    (services, "gateway", "GatewayService/DependsOn", ABSENT),
    (services, "gateway", "GatewayService/Properties/DeploymentConfiguration/DeploymentCircuitBreaker", ABSENT),
    (stop_times, "workers", f"{TASK}/StopTimeout", 300),
    (stop_times, "workers", f"{TASK}/StopTimeout", 110),
    (stop_times, "gateway", "GatewayTask/Properties/ContainerDefinitions/0/StopTimeout", 121),
    (metrics, "workers", "Backlog/Properties/MetricName", "BacklogSecond"),
    (metrics, "workers", "SpotWanted/Properties/Metrics/1/MetricStat/Metric/Dimensions/0/Name", "model"),
    (metrics, "base", "BrokerMemory/Properties/Metrics/1/MetricStat/Metric/MetricName", "RabbitMQMemoryUsed"),
    (environment, "workers", f"{TASK}/Environment/1/Name", "NSBRIDGE_WORKER__GRACE"),
    (environment, "gateway", "GatewayTask/Properties/ContainerDefinitions/0/Environment/7/Name", "NSBRIDGE_MODELS__M__CONTEXTS"),
    (environment, "workers", f"{TASK}/Environment/2/Name", "NSBRIDGE_WORKER__GRACE_S"),
    (safety, "workers", f"{TASK}/ReadonlyRootFilesystem", False),
    (safety, "workers", f"{TASK}/LogConfiguration/Options/mode", "blocking"),
    (safety, "workers", f"{TASK}/Environment/0", {"Name": "NSBRIDGE_BROKER__URL", "Value": "amqps://a:b@c/"}),
    (balancer, "gateway", "Targets/Properties/HealthCheckPath", "/health"),
    (balancer, "gateway", "Balancer/Properties/LoadBalancerAttributes/0/Value", "10"),
    (balancer, "gateway", "Listener/Properties/Protocol", "HTTP"),
    (balancer, "gateway", "Targets/Properties/TargetGroupAttributes/0/Value", "30"),
    (scaling, "workers", "SpotPolicy/Properties/StepScalingPolicyConfiguration/StepAdjustments/3", ABSENT),
    (scaling, "workers", "SpotPolicy/Properties/StepScalingPolicyConfiguration/AdjustmentType", "ChangeInCapacity"),
    (discovery, "workers", "SpotService/Properties/ServiceRegistries", ABSENT),
    (discovery, "workers", "CanaryNames/Properties/Name", {"Fn::Sub": "${Model}-spot"}),
    (discovery, "workers", "SpotService/Properties/ServiceRegistries/0/ContainerPort", 9464),
    (discovery, "workers", "SpotService/Properties/ServiceRegistries/0/RegistryArn", {"Fn::GetAtt": ["OnDemandNames", "Arn"]}),
    (discovery, "workers", "SpotNames/Properties/DnsConfig/RoutingPolicy", "WEIGHTED"),
    (discovery, "workers", "SpotNames/Properties/Name", {"Fn::Sub": "${Model}.spot"}),
    (discovery, "gateway", "GatewayNames/Properties/NamespaceId", {"Fn::ImportValue": "nsbridge-base-SealingKey"}),
    (discovery, "base", "Namespace/Properties/Name", "nsbridge.local"),
    (dead_letters, "workers", "DeadLetterTask/Properties/ContainerDefinitions/0/Command", ["queue", "purge", "--model", {"Ref": "Model"}, "--yes", "--all"]),
    (dead_letters, "workers", "DeadLetterTask/Properties/ContainerDefinitions/0/LogConfiguration/Options/awslogs-group", {"Ref": "ScalerLog"}),
    (dead_letters, "workers", "OldDeadLetters/Properties/Namespace", "nsbridge"),
    (dead_letters, "workers", "DeadLetterFilter/Properties/FilterPattern", '"would"'),
    (dead_letters, "workers", "DeadLetterCheck/Properties/Target/EcsParameters/NetworkConfiguration/AwsvpcConfiguration/SecurityGroups", [{"Ref": "WorkerGroup"}]),
    (dead_letters, "workers", "DeadLetterTask/Properties/Family", "nsbridge-dead"),
    (reach, "workers", "ScalerIngress/Properties/FromPort", 9465),
    (reach, "workers", "ScalerIngress/Properties/SourceSecurityGroupId", {"Ref": "InstanceGroup"}),
    (reach, "workers", "ScalerGroup/Properties/SecurityGroupEgress", []),
    (reach, "workers", "ScalerService/Properties/NetworkConfiguration/AwsvpcConfiguration/SecurityGroups/0", {"Ref": "WorkerGroup"}),
    (reach, "workers", "ScalerTask/Properties/ContainerDefinitions/0/PortMappings/0/ContainerPort", 9464),
    (reach, "workers", "PrometheusIngress/Properties/GroupId", {"Ref": "InstanceGroup"}),
    (reach, "base", "BrokerGroup/Properties/SecurityGroupIngress/1/FromPort", 15671),
]


class Rules(unittest.TestCase):
    def test_the_templates_keep_every_rule(self) -> None:
        templates = resolved()
        for rule in {mutant[0] for mutant in MUTANTS}:
            self.assertEqual(rule(templates), [], rule.__name__)

    def test_every_rule_finds_its_mutants(self) -> None:
        for rule, name, path, value in MUTANTS:
            with self.subTest(rule=rule.__name__, path=path):
                self.assertNotEqual(rule(resolved(changed(name, path, value))), [])

    def test_the_metrics_that_are_known_are_used(self) -> None:
        text = "".join((stacks.FOLDER / f"{name}.yaml").read_text() for name in stacks.NAMES)
        self.assertEqual([name for _, name, _ in METRICS if name not in text and name != stacks.MODEL], [])


class Workers(unittest.TestCase):
    def test_the_kinds_of_workers_differ_where_they_must_alone(self) -> None:
        tasks = resolved()["workers"].of_type("AWS::ECS::TaskDefinition")
        flat = []
        for name in ("OnDemandTask", "SpotTask", "CanaryTask"):
            (container,) = tasks[name]["ContainerDefinitions"]
            rest = tasks[name] | {"ContainerDefinitions": None, "Environment": None}
            options = container["LogConfiguration"]["Options"]
            flat.append(rest | container | variables(container) | options | {"LogConfiguration": None, "Environment": None})
        on_demand, spot, canary = flat
        differ = {key for key in on_demand if on_demand[key] != spot[key]}
        self.assertEqual(differ, {"Family", "StopTimeout", "NSBRIDGE_WORKER__GRACE_S", "NSBRIDGE_FLEET__SPOT", "awslogs-stream-prefix"})
        differ = {key for key in on_demand if on_demand[key] != canary[key]}
        self.assertEqual(differ, {"Family", "Image", "NSBRIDGE_MODELS__TARGET", "awslogs-stream-prefix"})
        self.assertEqual(canary["NSBRIDGE_MODELS__TARGET"], on_demand["NSBRIDGE_MODELS__TARGET"] + "@canary")

    def test_all_services_take_from_one_queue(self) -> None:
        models = {variables(c)["NSBRIDGE_WORKER__MODEL"] for _, _, c in containers({"": resolved()["workers"]}) if c["Name"] == "worker"}
        self.assertEqual(models, {stacks.MODEL})

    def test_the_agent_and_the_worker_have_the_rights_of_the_roles_that_are_theirs(self) -> None:
        for name, task, _ in containers(resolved()):
            kind = name.removesuffix("Task").replace("OnDemand", "Worker").replace("Spot", "Worker").replace("Canary", "Worker")
            self.assertTrue(task["ExecutionRoleArn"].endswith(f"/{kind}ExecutionRole"), task["ExecutionRoleArn"])
            # The check for dead letters makes no call of AWS.
            role = task["TaskRoleArn"].rsplit("/")[-1] if kind != "DeadLetter" else f"{kind}TaskRole"
            self.assertIn(role, {f"{kind}TaskRole", f"nsbridge-worker-task-{stacks.MODEL}"})
            self.assertEqual("TaskRoleArn" in task, kind != "DeadLetter")


def metric_names(text: str) -> set[str]:
    return {re.sub("_(total|bucket|count|sum)$", "", name) for name in re.findall(r"\bnsbridge_[a-z0-9_]+", text)}


class Names(unittest.TestCase):
    def test_every_metric_of_nsbridge_that_a_file_names_is_documented(self) -> None:
        known = metric_names("".join((stacks.ROOT / "docs" / name).read_text() for name in ("metrics.md", "gateway.md", "scaling.md")))
        self.assertLessEqual(metric_names("rate(nsbridge_dead_letters_total[5m])"), known)
        self.assertFalse(metric_names("rate(nsbridge_dead_letter_total[5m])") <= known)
        for folder in ("cloudformation", "helm", "prometheus", "grafana"):
            for path in (stacks.ROOT / "deploy" / folder).rglob("*.*"):
                self.assertLessEqual(metric_names(path.read_text()), known, path.name)

    def test_the_metrics_of_the_scaler_are_the_same_everywhere(self) -> None:
        ours = {name for namespace, name, _ in METRICS if namespace == "nsbridge"}
        text = (stacks.FOLDER / "workers.yaml").read_text()
        self.assertEqual(set(re.findall(r"Namespace: nsbridge,? *\n? *MetricName: (\w+)", text)), ours)


if __name__ == "__main__":
    unittest.main()
