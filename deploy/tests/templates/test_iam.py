"""The IAM documents: equal to deploy/iam, without a finding of parliament, and no wider than the code's calls."""

import functools
import json
import re
import unittest

import botocore.session
import parliament
import stacks
from botocore import xform_name

# In the policy of a key, `*` is that key.
ACCEPTED = {("sealing-key", "RESOURCE_STAR")}
# Parliament reads no documents of trust: they have no resource.
NOT_READ = {"tasks-trust"}

# Calls of AWS's SDK in the code, and who makes them. `worker`, `gateway` and `client` call from a fleet; `push` is
# `nsbridge model push`, which an operator runs.
CALLS = {
    "get_object": ("s3:GetObject", {"worker", "gateway", "push"}),
    "list_objects_v2": ("s3:ListBucket", {"worker", "gateway", "push"}),
    "put_object": ("s3:PutObject", {"gateway", "push"}),
    "delete_object": ("s3:DeleteObject", {"gateway"}),
    "head_object": ("s3:GetObject", {"push"}),
    "create_multipart_upload": ("s3:PutObject", {"push"}),
    "upload_part": ("s3:PutObject", {"push"}),
    "complete_multipart_upload": ("s3:PutObject", {"push"}),
    "abort_multipart_upload": ("s3:AbortMultipartUpload", {"push"}),
    "list_multipart_uploads": ("s3:ListBucketMultipartUploads", {"push"}),
    "list_parts": ("s3:ListMultipartUploadParts", {"push"}),
    "decrypt": ("kms:Decrypt", {"worker"}),
    "generate_data_key": ("kms:GenerateDataKey", {"client"}),
    "put_metric_data": ("cloudwatch:PutMetricData", {"scaler"}),
    # Of a scaler with [models.NAME.ecs]. That of the templates tells CloudWatch alone.
    "update_service": ("ecs:UpdateService", set()),
}
# By the ECS agent, which uses the role of the task (crates/bridge/src/platform/ecs_protection.rs).
PROTECTION = {"ecs:GetTaskProtection", "ecs:UpdateTaskProtection"}
SERVICES = ("s3", "kms", "sts", "ecs", "secretsmanager", "cloudwatch", "ssm", "sqs", "dynamodb")


@functools.cache
def operations() -> frozenset[str]:
    session = botocore.session.get_session()
    return frozenset(xform_name(name) for service in SERVICES for name in session.get_service_model(service).operation_names)


def calls(code: str) -> set[str]:
    """Returns the operations of AWS that code in Rust calls."""
    # A builder of an operation has no argument, and its first call has one: `.get_object()\n.bucket(..)`.
    found = re.findall(r"\.([a-z0-9_]+)\(\)\s*\.(?:bucket|key_id|namespace|cluster|secret_id|name|role_arn)\(", code)
    # Requests without an SDK name the operation in their form or in a header.
    named = re.findall(r"Action=([A-Z]\w+)&Version|AmazonEC2ContainerServiceV20141113\.([A-Z]\w+)", code)
    found += [xform_name(form or header) for form, header in named]
    return set(found) & operations()


def calls_of_the_code() -> set[str]:
    """Returns the operations that the code calls outside of tests and of the project's own tools."""
    found = set()
    for path in (stacks.ROOT / "crates").rglob("*.rs"):
        parts = path.relative_to(stacks.ROOT).parts
        if parts[1] == "dev" or "tests" in parts or path.name == "tests.rs":
            continue
        found |= calls(path.read_text())
    return found


def allowed(document: dict) -> set[str]:
    actions = set()
    for statement in document["Statement"]:
        if statement["Effect"] == "Allow":
            action = statement["Action"]
            actions |= {action} if isinstance(action, str) else set(action)
    return actions


def needed(who: str) -> set[str]:
    return {action for action, callers in CALLS.values() if who in callers}


def findings(documents: dict[str, dict]) -> set[tuple[str, str]]:
    return {
        (name, found.issue)
        for name, document in documents.items()
        if name not in NOT_READ
        for found in parliament.analyze_policy_string(json.dumps(document), ignore_private_auditors=True).findings
    }


class Documents(unittest.TestCase):
    def setUp(self) -> None:
        self.documents = stacks.policies(stacks.resolved())

    def test_the_files_are_those_of_the_templates(self) -> None:
        files = {path.stem for path in (stacks.ROOT / "deploy" / "iam").glob("*.json")}
        self.assertEqual(files, set(self.documents))
        for name, document in self.documents.items():
            self.assertEqual(stacks.written(name), document, f"run `python stacks.py` to write deploy/iam/{name}.json anew")

    def test_every_role_of_a_template_is_among_them(self) -> None:
        roles = [p["Policies"] for stack in stacks.resolved().values() for p in stack.of_type("AWS::IAM::Role").values()]
        documents = [policy["PolicyDocument"] for policies in roles for policy in policies]
        for document in documents:
            self.assertIn(document, self.documents.values())
        # All tasks trust the one service, under the account's condition.
        trusts = [
            p["AssumeRolePolicyDocument"]
            for stack in stacks.resolved().values()
            for name, p in stack.of_type("AWS::IAM::Role").items()
            if name not in {"InstanceRole", "DeadLetterScheduleRole"}
        ]
        self.assertTrue(all(trust == self.documents["tasks-trust"] for trust in trusts))

    def test_parliament_finds_what_is_accepted_and_nothing_else(self) -> None:
        self.assertEqual(findings(self.documents), ACCEPTED)

    def test_parliament_finds_a_star_and_a_typo(self) -> None:
        read = self.documents["worker-task"]["Statement"][1]
        read["Resource"] = "*"
        self.assertIn(("worker-task", "RESOURCE_STAR"), findings(self.documents))
        read["Action"] = "s3:GetObjcet"
        self.assertIn(("worker-task", "UNKNOWN_ACTION"), findings(self.documents))


class Calls(unittest.TestCase):
    def test_the_code_makes_the_calls_that_are_written_down(self) -> None:
        found = calls_of_the_code()
        self.assertLessEqual(found, set(CALLS), "a new call of AWS: add it to CALLS and to the policies")
        self.assertLessEqual(set(CALLS), found, "a call that the code makes no more")

    def test_a_new_call_is_seen(self) -> None:
        self.assertEqual(calls("self.client\n.get_bucket_acl()\n    .bucket(&self.bucket)"), {"get_bucket_acl"})
        self.assertEqual(calls('"Action=ListMetrics&Version=2010-08-01"'), {"list_metrics"})
        self.assertEqual(calls('"AmazonEC2ContainerServiceV20141113.StopTask"'), {"stop_task"})
        self.assertNotIn("get_bucket_acl", CALLS)

    def test_a_task_may_do_what_its_code_calls_and_no_more(self) -> None:
        documents = stacks.policies(stacks.resolved())
        self.assertEqual(allowed(documents["worker-task"]), needed("worker") | PROTECTION)
        self.assertEqual(allowed(documents["gateway-task"]), needed("gateway"))
        self.assertEqual(allowed(documents["scaler-task"]), needed("scaler"))

    def test_a_right_more_or_less_is_found(self) -> None:
        for action in ("s3:*", "s3:PutObject"):
            mutant = stacks.changed("workers", "WorkerTaskRole/Properties/Policies/0/PolicyDocument/Statement/1/Action", action)
            document = stacks.policies(stacks.resolved(mutant))["worker-task"]
            self.assertNotEqual(allowed(document), needed("worker") | PROTECTION)

    def test_no_star_stands_where_a_name_could(self) -> None:
        def stars(documents: dict[str, dict]) -> set[tuple[str, str]]:
            # An Allow of any action, or of an action on any resource, outside of a key's policy.
            return {
                (name, statement["Sid"])
                for name, document in documents.items()
                if name not in {"sealing-key", "tasks-trust"}
                for statement in document["Statement"]
                if statement["Effect"] == "Allow" and (statement["Resource"] == "*" or "*" in json.dumps(statement["Action"]))
            }

        # The three calls that know no resource.
        known = {"LogInToRegistry", "PublishMetrics", "Discover"}
        self.assertEqual({sid for _, sid in stars(stacks.policies(stacks.resolved()))}, known)
        path = "WorkerTaskRole/Properties/Policies/0/PolicyDocument/Statement/1/Resource"
        mutant = stacks.policies(stacks.resolved(stacks.changed("workers", path, "*")))
        self.assertIn(("worker-task", "ReadModel"), stars(mutant))


class SealingKey(unittest.TestCase):
    def test_no_use_of_the_key_is_without_its_context(self) -> None:
        for statement in stacks.policies(stacks.resolved())["sealing-key"]["Statement"]:
            uses = {"kms:Decrypt", "kms:GenerateDataKey", "kms:Encrypt", "kms:CreateGrant", "kms:*"} & set(
                [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
            )
            if uses:
                context = statement["Condition"]["StringEquals"]
                self.assertEqual(context["kms:EncryptionContext:app"], "nsbridge")
                self.assertEqual(context["kms:EncryptionContext:v"], "1")

    def test_the_context_is_that_of_the_code(self) -> None:
        code = (stacks.ROOT / "crates/crypto/src/kms/service.rs").read_text()
        names = set(re.findall(r'^ +\("(\w+)", ', code, re.MULTILINE))
        self.assertEqual(names, {"app", "v", "model", "tenant"})
        documents = json.dumps([stacks.written("sealing-key"), stacks.written("worker-task")])
        self.assertEqual(set(re.findall(r"kms:EncryptionContext:(\w+)", documents)), names)


if __name__ == "__main__":
    unittest.main()
