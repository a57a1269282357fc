"""The templates by cfn-lint. What it does not find is in test_rules.py."""

import unittest

import stacks
from cfnlint.api import lint
from cfnlint.config import ManualArgs


def findings(text: str) -> list[str]:
    return [f"{found.rule.id} {found.message}" for found in lint(text, config=ManualArgs(regions=[stacks.REGION]))]


def text_of(name: str) -> str:
    return (stacks.FOLDER / f"{name}.yaml").read_text()


class Lint(unittest.TestCase):
    def test_the_templates_have_no_finding(self) -> None:
        for name in stacks.NAMES:
            self.assertEqual(findings(text_of(name)), [], name)

    def test_a_template_fits_into_a_call(self) -> None:
        # A larger one needs a bucket (`--s3-bucket`).
        for name in stacks.NAMES:
            self.assertLess(len(text_of(name).encode()), 51_200, name)

    def test_a_wrong_template_has_one(self) -> None:
        mutants = {
            ("workers", "ManagedDraining: ENABLED", "ManagedDrainning: ENABLED"): "ManagedDraining",
            ("workers", "TaskDefinition: !Ref SpotTask", "TaskDefinition: !Ref SpotTusk"): "SpotTusk",
            ("base", "DeploymentMode: CLUSTER_MULTI_AZ", "DeploymentMode: CLUSTER"): "CLUSTER",
            ("gateway", "Port: 443\n      Certificates", "Port: high\n      Certificates"): "high",
        }
        for (name, right, wrong), word in mutants.items():
            text = text_of(name)
            self.assertIn(right, text)
            found = findings(text.replace(right, wrong))
            self.assertTrue(any(word in line for line in found), (wrong, found))


if __name__ == "__main__":
    unittest.main()
