"""Tests of keyrings."""

from __future__ import annotations

import base64
import json
import os
import tempfile
import unittest

from nsbridge.errors import KeyringError
from nsbridge.keyring import DataKey, load_keyring, read_keyring, sealing_key
from nsbridge.keys import check_value, tenant_key
from worker import KEY


class Keyrings(unittest.TestCase):
    """Keyrings that are refused; no error shows a key."""

    def ring(self, **more) -> str:
        entry = {"id": "a", "state": "primary", "key": base64.b64encode(KEY).decode(), **more}
        return json.dumps({"schema": 1, "keys": [entry]})

    def test_the_primary_key_is_used_within_its_scope(self):
        ring = read_keyring(self.ring(models=["m"], tenants=["t"], check=check_value(KEY)))
        self.assertEqual(sealing_key(ring, "m", "t"), DataKey("a", KEY))
        self.assertRaises(KeyringError, sealing_key, ring, "other", "t")
        self.assertRaises(KeyringError, sealing_key, ring, "m", "other")

    def test_a_master_gives_each_tenant_its_own_key(self):
        ring = read_keyring(self.ring(derived=True))
        self.assertEqual(sealing_key(ring, "m", "t").key, tenant_key(KEY, "t", "m"))

    def test_a_broken_keyring_is_refused_without_its_key(self):
        secret = base64.b64encode(KEY).decode()
        entry = json.loads(self.ring())["keys"][0]
        for broken in (
            "{",
            '{"schema":2,"keys":[]}',
            self.ring(state="decrypt"),
            self.ring(key="*"),
            self.ring(check="00" * 8),
            self.ring(unknown=1),
            json.dumps({"schema": 1, "keys": [entry, {**entry, "id": "b", "state": "other"}]}),
        ):
            with self.assertRaises(KeyringError) as refused:
                read_keyring(broken)
            self.assertNotIn(secret, str(refused.exception))

    def test_a_file_that_others_can_read_is_refused(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(self.ring())
            file.flush()
            os.chmod(file.name, 0o640)
            self.assertRaisesRegex(KeyringError, "chmod 600", load_keyring, file.name)
            os.chmod(file.name, 0o600)
            self.assertEqual(len(load_keyring(file.name)), 1)
