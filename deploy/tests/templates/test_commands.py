"""The commands of AWS in the documents: known to AWS's own models, and those of a rotation accepted by moto."""

import re
import shlex
import unittest

import botocore.session
import stacks
from botocore import xform_name

# Imports boto3 with the environment that moto needs.
from test_moto import boto3, lower, mock_aws

GLOBAL = {"query", "output", "region"}
# Commands of the program `aws` alone, with the options that the documents use.
CUSTOM = {("s3", "cp"): set(), ("cloudformation", "deploy"): {"stack-name", "template-file", "capabilities", "parameter-overrides"}}
SESSION = botocore.session.get_session()


def commands(text: str) -> list[list[str]]:
    """Returns the words of each command of AWS in the code of a document, without `aws`."""
    found = []
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        words = shlex.shlex(block.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
        words.whitespace_split, command = True, None
        for word in words:
            if word == "aws":
                command = []
                found.append(command)
            elif set(word) <= set("();<>|&"):
                command = None
            elif command is not None:
                command.append(word)
    return found


def options(command: list[str]) -> dict[str, list[str]]:
    """Returns the values of each option."""
    given, last = {}, None
    for word in command:
        if word.startswith("--"):
            last = given.setdefault(word[2:], [])
        elif last is not None:
            last.append(word)
    return given


def operation(command: list[str]):
    """Returns the operation that a command calls, or None if there is none."""
    service, name = command[0], command[1]
    model = SESSION.get_service_model(service)
    if name == "wait":
        waiters = SESSION.get_waiter_model(service)
        names = {xform_name(waiter, "-"): waiters.get_waiter(waiter).operation for waiter in waiters.waiter_names}
        return model.operation_model(names[command[2]]) if command[2] in names else None
    names = {xform_name(operation, "-"): operation for operation in model.operation_names}
    return model.operation_model(names[name]) if name in names else None


def wrong(command: list[str]) -> list[str]:
    given = set(options(command)) - GLOBAL
    if tuple(command[:2]) in CUSTOM:
        return [f"no --{option}" for option in given - CUSTOM[tuple(command[:2])]]
    if command[0] not in SESSION.get_available_services():
        return [f"no service {command[0]}"]
    called = operation(command)
    if called is None:
        return [f"no operation {' '.join(command[:3])}"]
    members = {xform_name(member, "-"): shape.type_name for member, shape in called.input_shape.members.items()}
    given = {option.removeprefix("no-") if members.get(option.removeprefix("no-"), "") == "boolean" else option for option in given}
    needed = {xform_name(member, "-") for member in called.input_shape.required_members}
    return [f"no --{option}" for option in given - set(members)] + [f"needs --{option}" for option in needed - given]


def documents() -> dict[str, str]:
    paths = [*(stacks.ROOT / "docs").glob("*.md"), *(stacks.ROOT / "deploy").rglob("*.md")]
    return {str(path.relative_to(stacks.ROOT)): path.read_text() for path in paths}


class Commands(unittest.TestCase):
    def test_each_is_known_with_its_options(self) -> None:
        number = 0
        for name, text in documents().items():
            for command in commands(text):
                number += 1
                with self.subTest(document=name, command=command):
                    self.assertEqual(wrong(command), [])
        self.assertGreater(number, 10)

    def test_a_typo_is_found(self) -> None:
        for text in [
            "aws ecs update-services --cluster C --service S",
            "aws ecs update-service --cluster C --services S",
            "aws ecs update-service --cluster C --force-new-deployment",
            "aws ecs wait service-stable --cluster C --services S",
            "aws secretmanager put-secret-value --secret-id I",
            "aws cloudformation deploy --stack S",
            "X=$(aws ecs describe-service --services S)",
        ]:
            (command,) = commands(f"```sh\n{text} && echo done\n```\n")
            self.assertNotEqual(wrong(command), [], text)


class Rotation(unittest.TestCase):
    def test_a_step_on_ecs_is_accepted_and_keeps_the_former_secret(self) -> None:
        section = documents()["docs/operating.md"].split("\n### On ECS\n")[1].split("\n### ")[0]
        with mock_aws():
            ecs, secrets = boto3.client("ecs"), boto3.client("secretsmanager")
            secrets.create_secret(Name="nsbridge/worker/keyring", SecretString="former")
            ecs.create_cluster(clusterName="nsbridge-M")
            (task,) = stacks.resolved()["workers"].of_type("AWS::ECS::TaskDefinition")["SpotTask"]["ContainerDefinitions"]
            ecs.register_task_definition(family="M", containerDefinitions=[lower({"Name": task["Name"], "Image": task["Image"], "Memory": 1024})])
            ecs.create_service(cluster="nsbridge-M", serviceName="SERVICE", taskDefinition="M", desiredCount=1)
            called = []
            for command in commands(section):
                called.append(command[1])
                if command[1] == "wait":
                    continue
                members = {xform_name(m, "-"): (m, shape.type_name) for m, shape in operation(command).input_shape.members.items()}
                arguments = {}
                for option, values in options(command).items():
                    if option not in GLOBAL:
                        member, kind = members[option]
                        text = " ".join(values).replace("file://keys.json", "new")
                        arguments[member] = {"list": values, "boolean": True}.get(kind, text)
                getattr(boto3.client(command[0]), command[1].replace("-", "_"))(**arguments)
            self.assertEqual(called, ["put-secret-value", "update-service", "wait", "describe-services"])
            self.assertEqual(secrets.get_secret_value(SecretId="nsbridge/worker/keyring")["SecretString"], "new")
            former = secrets.get_secret_value(SecretId="nsbridge/worker/keyring", VersionStage="AWSPREVIOUS")
            self.assertEqual(former["SecretString"], "former")


if __name__ == "__main__":
    unittest.main()
