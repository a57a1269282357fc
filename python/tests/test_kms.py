"""Tests of keys of AWS KMS, against a moto server and a real worker.

`NSBRIDGE_TEST_MOTO` names a Python that has moto.
"""

from __future__ import annotations

import subprocess
import unittest

import boto3
from botocore.config import Config

import nsbridge
from nsbridge.kms import KEPT_FOR_S, SEALINGS, KmsKeys, KmsUnavailable
from place import Place, free_port, named, wait_until

AWS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "eu-central-1"}
ALIAS = "alias/nsbridge"


class Kms(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        port = free_port()
        command = [
            named("NSBRIDGE_TEST_MOTO"),
            "-m",
            "moto.server",
            "-H",
            "127.0.0.1",
            "-p",
            str(port),
        ]
        moto = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cls.addClassCleanup(moto.wait)
        cls.addClassCleanup(moto.kill)
        cls.url = f"http://127.0.0.1:{port}"
        cls.kms = boto3.client(
            "kms",
            endpoint_url=cls.url,
            region_name="eu-central-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        cls.addClassCleanup(cls.kms.close)

        def answers() -> bool:
            try:
                cls.kms.list_keys()
            except Exception:
                return False
            return True

        wait_until("moto's start", answers)
        key = cls.kms.create_key()["KeyMetadata"]["KeyId"]
        cls.kms.create_alias(AliasName=ALIAS, TargetKeyId=key)

    def test_a_worker_opens_what_a_key_of_kms_sealed(self):
        place = Place()
        self.addCleanup(place.close)
        place.worker(**AWS, AWS_ENDPOINT_URL_KMS=self.url, NSBRIDGE_KEYS__KMS_KEYS=f'["{ALIAS}"]')
        options = {"seed": 7, "max_tokens": 20}
        with nsbridge.Client(place.url, place.keys) as client:
            expected = client.text(place.model, "Once a bear", **options).read()
        with nsbridge.Client(place.url, KmsKeys(ALIAS, self.kms), tenant="acme") as client:
            self.assertEqual(client.text(place.model, "Once a bear", **options).read(), expected)
            with self.assertRaises(nsbridge.KeyringError):
                other = nsbridge.Client(place.url, KmsKeys("alias/absent", self.kms))
                self.addCleanup(other.close)
                other.text(place.model, "Once a bear")

    def test_a_data_key_is_used_for_five_minutes_and_ten_thousand_requests(self):
        now = 0.0
        keys = KmsKeys(ALIAS, self.kms, clock=lambda: now)
        first = keys.data_key("m", "t")
        self.assertEqual((len(first.key), first.id), (32, ALIAS))
        self.assertNotEqual(keys.data_key("m", "u").wrapped, first.wrapped, "another tenant")
        now = KEPT_FOR_S - 1
        self.assertEqual(keys.data_key("m", "t"), first)
        now = KEPT_FOR_S
        second = keys.data_key("m", "t")
        self.assertNotEqual(second, first)
        for _ in range(SEALINGS - 1):
            self.assertEqual(keys.data_key("m", "t"), second)
        self.assertNotEqual(keys.data_key("m", "t"), second)

    def test_a_service_that_does_not_answer_is_no_refusal(self):
        config = Config(retries={"total_max_attempts": 1}, connect_timeout=1)
        absent = boto3.client(
            "kms",
            endpoint_url="http://127.0.0.1:1",
            region_name="eu-central-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=config,
        )
        with self.assertRaises(KmsUnavailable) as told:
            KmsKeys(ALIAS, absent).data_key("m", "t")
        self.assertTrue(told.exception.is_retryable)
        absent.close()
        self.assertNotIsInstance(self.refusal("alias/absent"), KmsUnavailable)

    def refusal(self, key: str) -> Exception:
        with self.assertRaises(nsbridge.KeyringError) as told:
            KmsKeys(key, self.kms).data_key("m", "t")
        return told.exception


if __name__ == "__main__":
    unittest.main()
