"""The templates in moto. It skips types that it does not know, says CREATE_COMPLETE, and warns: what it skips is written
down here, and created by its direct API where it has one."""

import atexit
import copy
import json
import logging
import os
import re
import tempfile
import unittest
import unittest.mock
import warnings

import stacks

# Without this, moto reads a list of images for seconds.
EMPTY = tempfile.NamedTemporaryFile("w+", suffix=".json")
EMPTY.write("[]")
EMPTY.flush()
atexit.register(EMPTY.close)
os.environ |= {
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_DEFAULT_REGION": stacks.REGION,
    "MOTO_ACCOUNT_ID": stacks.ACCOUNT,
    "MOTO_AMIS_PATH": EMPTY.name,
}

import boto3  # noqa: E402
from moto import mock_aws  # noqa: E402

SKIPPED = {
    "base": {
        "AWS::AmazonMQ::Broker",
        "AWS::AmazonMQ::Configuration",
        "AWS::CloudWatch::Alarm",
        "AWS::S3::BucketPolicy",
        "AWS::SecretsManager::Secret",
        "AWS::ServiceDiscovery::PrivateDnsNamespace",
    },
    "workers": {
        "AWS::ApplicationAutoScaling::ScalableTarget",
        "AWS::ApplicationAutoScaling::ScalingPolicy",
        "AWS::CloudWatch::Alarm",
        "AWS::ECS::CapacityProvider",
        "AWS::ECS::ClusterCapacityProviderAssociations",
        "AWS::Logs::MetricFilter",
        "AWS::Scheduler::Schedule",
        "AWS::ServiceDiscovery::Service",
    },
    "gateway": {"AWS::CloudWatch::Alarm", "AWS::S3::BucketPolicy", "AWS::ServiceDiscovery::Service"},
}


def lower(value):
    """Returns properties with the keys of an API that begins them with small letters, as that of ECS does."""
    if isinstance(value, list):
        return [lower(item) for item in value]
    if isinstance(value, dict):
        return {key[0].lower() + key[1:]: lower(item) for key, item in value.items()}
    return value


# moto logs each skipped type beside its warning.
logging.getLogger("moto").setLevel(logging.CRITICAL)


class Account:
    """An account in moto with a network."""

    def __init__(self) -> None:
        ec2 = boto3.client("ec2")
        (vpc,) = ec2.describe_vpcs()["Vpcs"]
        subnets = [subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"]]
        boto3.client("ssm").put_parameter(Name="/ami", Value="ami-0123456789abcdef0", Type="String")
        self.network = {
            "Vpc": vpc["VpcId"],
            "PrivateSubnets": ",".join(subnets[:3]),
            "BalancerSubnets": ",".join(subnets[:2]),
            "Ami": "/ami",
            "Certificate": boto3.client("acm").request_certificate(DomainName="gateway.example.com")["CertificateArn"],
        }

    def create(self, name: str, template: dict) -> tuple[set[str], dict[str, str]]:
        """Creates a stack. Returns the types that moto skipped, and the resources that it made."""
        template = copy.deepcopy(template)
        # They ask for attributes of what moto skips.
        template["Outputs"] = {key: output for key, output in template["Outputs"].items() if not re.search("Broker[.]|AmqpEndpoints|Names[.]", json.dumps(output))}
        for resource in template["Resources"].values():
            resource.get("Properties", {}).pop("ServiceRegistries", None)
        parameters = stacks.PARAMETERS[name] | {key: value for key, value in self.network.items() if key in template["Parameters"]}
        client = boto3.client("cloudformation")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            client.create_stack(
                StackName=f"nsbridge-{name}",
                TemplateBody=json.dumps(template),
                Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
                Capabilities=["CAPABILITY_NAMED_IAM"],
            )
            (stack,) = client.describe_stacks(StackName=f"nsbridge-{name}")["Stacks"]
            made = client.list_stack_resources(StackName=f"nsbridge-{name}")["StackResourceSummaries"]
        assert stack["StackStatus"] == "CREATE_COMPLETE", stack["StackStatus"]
        skipped = {str(warning.message).split()[3] for warning in told if "not supported by moto" in str(warning.message)}
        return skipped, {item["LogicalResourceId"]: item.get("PhysicalResourceId", "") for item in made if item.get("ResourceType")}


class Templates(unittest.TestCase):
    def test_moto_creates_all_but_what_is_written_down_and_the_rest_is_accepted_by_its_apis(self) -> None:
        with mock_aws():
            account, templates, made = Account(), stacks.all_templates(), {}
            for name in stacks.NAMES:
                skipped, made[name] = account.create(name, templates[name])
                self.assertEqual(skipped, SKIPPED[name], name)
                # What has a condition that does not hold is not made.
                wanted = {key for key, item in templates[name]["Resources"].items() if item["Type"] not in SKIPPED[name] and "Condition" not in item}
                self.assertLessEqual(wanted, set(made[name]))
            self.skipped_parts(account, made)

    def skipped_parts(self, account: Account, made: dict) -> None:
        """Creates what moto's CloudFormation skips by the APIs that CloudFormation would call."""
        stack = stacks.resolved()
        workers, base = stack["workers"], stack["base"]
        ecs, scaling, watch = boto3.client("ecs"), boto3.client("application-autoscaling"), boto3.client("cloudwatch")
        arns = {g["AutoScalingGroupName"]: g["AutoScalingGroupARN"] for g in boto3.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]}
        for name, properties in workers.of_type("AWS::ECS::CapacityProvider").items():
            provider = lower(properties["AutoScalingGroupProvider"])
            provider["autoScalingGroupArn"] = arns[made["workers"][provider["autoScalingGroupArn"]]]
            ecs.create_capacity_provider(name=name, autoScalingGroupProvider=provider)
        (providers,) = workers.of_type("AWS::ECS::ClusterCapacityProviderAssociations").values()
        ecs.put_cluster_capacity_providers(**lower(providers))
        services = ecs.list_services(cluster=providers["Cluster"])["serviceArns"]
        self.assertEqual(len(services), 4)

        (target,) = workers.of_type("AWS::ApplicationAutoScaling::ScalableTarget").values()
        spot = made["workers"]["SpotService"].rsplit("/", 1)[-1]
        target = target | {"ResourceId": f"service/{providers['Cluster']}/{spot}", "MaxCapacity": int(target["MaxCapacity"])}
        scaling.register_scalable_target(**target)
        (policy,) = workers.of_type("AWS::ApplicationAutoScaling::ScalingPolicy").values()
        place = {key: target[key] for key in ("ServiceNamespace", "ScalableDimension", "ResourceId")}
        scaling.put_scaling_policy(**{key: value for key, value in policy.items() if key != "ScalingTargetId"}, **place)
        self.assertEqual(len(scaling.describe_scaling_policies(ServiceNamespace="ecs")["ScalingPolicies"]), 1)

        number = 0
        for each in stack.values():
            for name, alarm in each.of_type("AWS::CloudWatch::Alarm").items():
                watch.put_metric_alarm(AlarmName=name, **alarm)
                number += 1
        self.assertEqual(len(watch.describe_alarms()["MetricAlarms"]), number)

        (broker,) = base.of_type("AWS::AmazonMQ::Broker").values()
        # CloudFormation reads these from the secret, and makes the configuration before.
        broker = broker | {"Users": [{"Username": "nsbridge-admin", "Password": "only-for-a-test"}], "SubnetIds": account.network["PrivateSubnets"].split(",")}
        broker["EngineVersion"] = str(broker["EngineVersion"])
        del broker["Configuration"]
        boto3.client("mq").create_broker(**broker)
        (counted,) = workers.of_type("AWS::Logs::MetricFilter").values()
        boto3.client("logs").put_metric_filter(filterName="dead-letters", **lower(counted))
        (look,) = workers.of_type("AWS::Scheduler::Schedule").values()
        parameters = look["Target"]["EcsParameters"] | {"NetworkConfiguration": {"awsvpcConfiguration": look["Target"]["EcsParameters"]["NetworkConfiguration"]["AwsvpcConfiguration"]}}
        boto3.client("scheduler").create_schedule(Name="dead-letters", **look | {"Target": look["Target"] | {"EcsParameters": parameters}})

        names = boto3.client("servicediscovery")
        (namespace,) = base.of_type("AWS::ServiceDiscovery::PrivateDnsNamespace").values()
        made_by = names.create_private_dns_namespace(**namespace | {"Vpc": account.network["Vpc"]})["OperationId"]
        place = names.get_operation(OperationId=made_by)["Operation"]["Targets"]["NAMESPACE"]
        registered = [p for each in stack.values() for p in each.of_type("AWS::ServiceDiscovery::Service").values()]
        for properties in registered:
            names.create_service(**properties | {"NamespaceId": place})
        self.assertEqual({s["Name"] for s in names.list_services()["Services"]}, {p["Name"] for p in registered})

        for each in ("base", "gateway"):
            for properties in stack[each].of_type("AWS::S3::BucketPolicy").values():
                boto3.client("s3").put_bucket_policy(Bucket=properties["Bucket"], Policy=json.dumps(properties["PolicyDocument"]))

    def test_the_use_of_the_sealing_key_is_refused_under_another_context(self) -> None:
        with mock_aws():
            kms = boto3.client("kms")
            key = kms.create_key()["KeyMetadata"]["KeyId"]
            context = {"app": "nsbridge", "v": "1", "model": stacks.MODEL, "tenant": "acme"}
            wrapped = kms.generate_data_key(KeyId=key, KeySpec="AES_256", EncryptionContext=context)["CiphertextBlob"]
            kms.decrypt(KeyId=key, CiphertextBlob=wrapped, EncryptionContext=context)
            with self.assertRaises(kms.exceptions.InvalidCiphertextException):
                kms.decrypt(KeyId=key, CiphertextBlob=wrapped, EncryptionContext=context | {"tenant": "other"})

    def test_a_type_that_moto_skips_is_seen(self) -> None:
        template = {
            "AWSTemplateFormatVersion": "2010-09-09",
            "Parameters": {},
            "Resources": {"Group": {"Type": "AWS::XRay::Group", "Properties": {"GroupName": "x"}}, "Topic": {"Type": "AWS::SNS::Topic"}},
            "Outputs": {},
        }
        with mock_aws(), unittest.mock.patch.dict(stacks.PARAMETERS, {"mutant": {}}):
            skipped, made = Account().create("mutant", template)
        self.assertEqual((skipped, set(made)), ({"AWS::XRay::Group"}, {"Topic"}))


if __name__ == "__main__":
    unittest.main()
