"""The templates of CloudFormation by checkov: the findings are those that are accepted here, each with its reason."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).parents[2] / "cloudformation"
LOGS = "logs hold no prompt, reply or key; a KMS key would need rights in each role"
ACCEPTED = {
    ("base.yaml", "AWS::S3::Bucket.Models", "CKV_AWS_18"): "CloudTrail's data events tell the same, where a team wants them",
    ("base.yaml", "AWS::SecretsManager::Secret.BrokerAdmin", "CKV_AWS_149"): "the account's own key; the secret never leaves the account",
    ("workers.yaml", "AWS::Logs::LogGroup.WorkerLog", "CKV_AWS_158"): LOGS,
    ("workers.yaml", "AWS::Logs::LogGroup.ScalerLog", "CKV_AWS_158"): LOGS,
    ("workers.yaml", "AWS::Logs::LogGroup.DeadLetterLog", "CKV_AWS_158"): LOGS,
    ("gateway.yaml", "AWS::Logs::LogGroup.GatewayLog", "CKV_AWS_158"): LOGS,
    ("gateway.yaml", "AWS::S3::Bucket.Replies", "CKV_AWS_18"): "the values are sealed, and live for minutes",
    ("gateway.yaml", "AWS::S3::Bucket.Replies", "CKV_AWS_21"): "a reply that was deleted shall be gone",
    ("gateway.yaml", "AWS::ElasticLoadBalancingV2::LoadBalancer.Balancer", "CKV_AWS_91"): "a log of callers is the team's decision; the gateway has metrics",
}
# Changes of which each must make a finding.
MUTANTS = {
    "CKV_AWS_103": ("gateway.yaml", "      SslPolicy: ELBSecurityPolicy-TLS13-1-2-2021-06\n", ""),
    "CKV_AWS_7": ("base.yaml", "      EnableKeyRotation: true\n", ""),
    "CKV_AWS_69": ("base.yaml", "PubliclyAccessible: false", "PubliclyAccessible: true"),
}


def findings(folder: pathlib.Path) -> set[tuple[str, str, str]]:
    command = [sys.executable, "-m", "checkov.main", "-d", str(folder), "--framework", "cloudformation"]
    # Without --skip-download it asks a server of its vendor first.
    command += ["--skip-download", "--quiet", "--compact", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    report = json.loads(done.stdout)
    assert not report["summary"]["parsing_errors"], report["summary"]
    failed = report["results"]["failed_checks"]
    return {(item["file_path"].lstrip("/"), item["resource"], item["check_id"]) for item in failed}


class Checkov(unittest.TestCase):
    def test_it_finds_what_is_accepted_and_each_mutant(self) -> None:
        # One run for all, since most of its time is its start.
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for path in FOLDER.glob("*.yaml"):
                (folder / path.name).write_text(path.read_text())
            for number, (file, right, wrong) in enumerate(MUTANTS.values()):
                text = (FOLDER / file).read_text()
                self.assertIn(right, text)
                (folder / f"mutant-{number}.yaml").write_text(text.replace(right, wrong))
            found = findings(folder)
        ours = {finding for finding in found if not finding[0].startswith("mutant-")}
        self.assertEqual(ours, set(ACCEPTED))
        for number, check in enumerate(MUTANTS):
            self.assertIn((f"mutant-{number}.yaml", check), {(file, name) for file, _, name in found})


if __name__ == "__main__":
    unittest.main()
