"""The templates of CloudFormation as Python values, with their references replaced by sample values."""

import copy
import functools
import json
import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "cloudformation"
NAMES = ("base", "workers", "gateway")
ACCOUNT, REGION, MODEL = "111122223333", "ap-northeast-1", "tale-7m"


def secret(name: str) -> str:
    return f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:nsbridge/{name}-AbCdEf"


TOPIC = f"arn:aws:sns:{REGION}:{ACCOUNT}:alarms"
NETWORK = {"Vpc": "vpc-0123456789abcdef0", "PrivateSubnets": ["subnet-0a", "subnet-0b", "subnet-0c"], "AlarmTopic": TOPIC}
# Parameters without a default.
PARAMETERS = {
    "base": NETWORK,
    "workers": NETWORK
    | {
        "Model": MODEL,
        "WorkerTag": "0.1.0-cuda",
        "CanaryAlias": "canary",
        "CanaryTag": "0.2.0-cuda",
        "ScalerTag": "0.1.0",
        "BrokerUrlSecret": secret(f"worker/{MODEL}/broker-url"),
        "KeyringSecret": secret("worker/keyring"),
        "ScalerUrlSecret": secret("scaler/broker-url"),
        "ScalerConfig": "# scaler.toml",
        "DeadLetterUrlSecret": secret(f"dead-letters/{MODEL}/broker-url"),
        "Ami": "ami-0123456789abcdef0",
    },
    "gateway": NETWORK
    | {
        "BalancerSubnets": ["subnet-0d", "subnet-0e"],
        "CallerNetwork": "10.0.0.0/8",
        "Certificate": f"arn:aws:acm:{REGION}:{ACCOUNT}:certificate/0",
        "Model": MODEL,
        "ModelContext": "512",
        "GatewayTag": "0.1.0",
        "BrokerUrlSecret": secret("gateway/broker-url"),
        "KeyringSecret": secret("gateway/keyring"),
        "ApiKeysSecret": secret("gateway/api-keys"),
        "StoreKeySecret": secret("gateway/store-key"),
    },
}
PSEUDO = {
    "AWS::AccountId": ACCOUNT,
    "AWS::Region": REGION,
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
    "AWS::StackName": "nsbridge-base",
}
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/00000000-0000-0000-0000-000000000000"
EXPORTS = {
    "nsbridge-base-BrokerClients": "sg-0123456789abcdef0",
    "nsbridge-base-Namespace": "ns-0123456789abcdef",
    "nsbridge-base-SealingKey": KEY,
    "nsbridge-base-ModelsBucket": f"nsbridge-models-{ACCOUNT}-{REGION}",
}
ABSENT = object()


class Loader(yaml.SafeLoader):
    """YAML with CloudFormation's short forms: `!Sub x` is `{"Fn::Sub": "x"}`."""

    def short(self, suffix: str, node: yaml.Node):
        if isinstance(node, yaml.ScalarNode):
            value = self.construct_scalar(node)
        elif isinstance(node, yaml.SequenceNode):
            value = self.construct_sequence(node, deep=True)
        else:
            value = self.construct_mapping(node, deep=True)
        if suffix == "GetAtt" and isinstance(value, str):
            value = value.split(".", 1)
        return {suffix if suffix == "Ref" else f"Fn::{suffix}": value}


Loader.add_multi_constructor("!", Loader.short)


@functools.cache
def read() -> dict[str, dict]:
    return {name: yaml.load((FOLDER / f"{name}.yaml").read_text(), Loader) for name in NAMES}


def all_templates() -> dict[str, dict]:
    return copy.deepcopy(read())


class Stack:
    """A template with its references replaced."""

    def __init__(self, name: str, template: dict) -> None:
        self.template = template
        defaults = {key: value["Default"] for key, value in template["Parameters"].items() if "Default" in value}
        self.parameters = defaults | PARAMETERS[name]
        self.resources = {key: self.resolve(value) for key, value in template["Resources"].items()}

    def of_type(self, kind: str) -> dict[str, dict]:
        """Returns the properties of all resources of a type."""
        return {key: value.get("Properties", {}) for key, value in self.resources.items() if value["Type"] == kind}

    def resolve(self, value):
        if isinstance(value, list):
            return [self.resolve(item) for item in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            (key, argument), = value.items()
            if key == "Ref":
                return self.ref(argument)
            if key.startswith("Fn::"):
                return getattr(self, key[4:].lower())(argument)
        return {key: self.resolve(item) for key, item in value.items()}

    def ref(self, name: str):
        for table in (PSEUDO, self.parameters):
            if name in table:
                return table[name]
        return self.physical(name)

    def physical(self, name: str) -> str:
        resource = self.template["Resources"][name]
        known = ("ClusterName", "BucketName", "LogGroupName", "RoleName", "BrokerName")
        properties = resource.get("Properties", {})
        return next((self.resolve(properties[key]) for key in known if key in properties), name)

    def getatt(self, argument: list[str]) -> str:
        name, attribute = argument
        kind, physical = self.template["Resources"][name]["Type"], self.physical(name)
        arns = {
            "AWS::S3::Bucket": f"arn:aws:s3:::{physical}",
            "AWS::Logs::LogGroup": f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{physical}:*",
            "AWS::ECS::Cluster": f"arn:aws:ecs:{REGION}:{ACCOUNT}:cluster/{physical}",
            "AWS::IAM::Role": f"arn:aws:iam::{ACCOUNT}:role/{physical}",
            "AWS::KMS::Key": KEY,
        }
        return arns.get(kind, f"{physical}.Arn") if attribute == "Arn" else f"{physical}.{attribute}"

    def sub(self, argument) -> str:
        text, values = argument if isinstance(argument, list) else (argument, {})
        values = {key: self.resolve(value) for key, value in values.items()}

        def replace(found: re.Match) -> str:
            name = found[1]
            if name in values:
                return str(values[name])
            return str(self.getatt(name.split(".", 1)) if "." in name else self.ref(name))

        return re.sub(r"\$\{([A-Za-z0-9:.]+)\}", replace, text)

    def importvalue(self, argument) -> str:
        return EXPORTS[self.resolve(argument)]

    def join(self, argument) -> str:
        separator, items = argument
        return separator.join(self.resolve(items))

    def split(self, argument) -> list[str]:
        separator, text = argument
        return self.resolve(text).split(separator)

    def select(self, argument):
        index, items = argument
        return self.resolve(items)[int(index)]

    def base64(self, argument) -> str:
        return self.resolve(argument)


def resolved(templates: dict[str, dict] | None = None) -> dict[str, Stack]:
    templates = templates or all_templates()
    return {name: Stack(name, template) for name, template in templates.items()}


def changed(name: str, path: str, value) -> dict[str, dict]:
    """Returns all templates with one value changed: the mutants. `path` has the keys, split at `/`; ABSENT removes."""
    templates = all_templates()
    *way, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    place = templates[name]["Resources"]
    for key in way:
        place = place[key]
    if value is ABSENT:
        del place[last]
    else:
        place[last] = value
    return templates


def policies(stacks: dict[str, Stack]) -> dict[str, dict]:
    """Returns all IAM documents of the templates by the names of their files in deploy/iam."""
    base, workers, gateway = (stacks[name] for name in NAMES)

    def role(stack: Stack, name: str) -> dict:
        (policy,) = stack.resources[name]["Properties"]["Policies"]
        return policy["PolicyDocument"]

    return {
        "worker-task": role(workers, "WorkerTaskRole"),
        "worker-execution": role(workers, "WorkerExecutionRole"),
        "scaler-task": role(workers, "ScalerTaskRole"),
        "scaler-execution": role(workers, "ScalerExecutionRole"),
        "dead-letters-execution": role(workers, "DeadLetterExecutionRole"),
        "dead-letters-schedule": role(workers, "DeadLetterScheduleRole"),
        "instance": role(workers, "InstanceRole"),
        "gateway-task": role(gateway, "GatewayTaskRole"),
        "gateway-execution": role(gateway, "GatewayExecutionRole"),
        "tasks-trust": workers.resources["WorkerTaskRole"]["Properties"]["AssumeRolePolicyDocument"],
        "models-bucket": base.resources["ModelsPolicy"]["Properties"]["PolicyDocument"],
        "replies-bucket": gateway.resources["RepliesPolicy"]["Properties"]["PolicyDocument"],
        "sealing-key": base.resources["SealingKey"]["Properties"]["KeyPolicy"],
    }


def written(name: str) -> dict:
    return json.loads((ROOT / "deploy" / "iam" / f"{name}.json").read_text())


if __name__ == "__main__":
    # Writes deploy/iam anew after a change of the templates.
    for file, document in policies(resolved()).items():
        (ROOT / "deploy" / "iam" / f"{file}.json").write_text(json.dumps(document, indent=2) + "\n")
