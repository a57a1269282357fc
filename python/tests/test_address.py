"""Tests of the URL of a broker."""

from __future__ import annotations

import unittest

from nsbridge.amqp import Amqp
from nsbridge.channel import private
from nsbridge.errors import BrokerError


class Address(unittest.TestCase):
    def test_the_connections_have_names(self):
        broker = Amqp("amqp://localhost", name="api-1")
        names = [each.current.client_properties for each in (broker.nodes, broker._publishing)]
        self.assertEqual(
            names, [{"connection_name": "api-1 replies"}, {"connection_name": "api-1 requests"}]
        )

    def test_the_nodes_of_a_cluster_have_an_address_each(self):
        broker = Amqp("amqps://me:p,w@a/%2f, amqps://me:pw@b:99/%2f\n")
        self.assertEqual(broker.where, "a:5671, b:99")
        firsts = {Amqp("amqp://[::1],amqp://localhost").nodes.current.host for _ in range(200)}
        self.assertEqual(firsts, {"::1", "localhost"})
        with self.assertRaisesRegex(BrokerError, "at b would be reached without TLS"):
            Amqp("amqps://a,amqp://b")

    def test_l5_another_machine_is_reached_over_tls_or_by_an_explicit_word(self):
        for here in [
            "amqp://localhost",
            "amqp://me:pw@127.8.8.8:99/%2f",
            "amqp://me:pw@[::1]:99/v",
            "amqps://me:pw@mq.example/%2f?heartbeat=5",
        ]:
            self.assertEqual(private(here), here)
        for there in ["rabbitmq", "10.0.0.7:5672", "[fe80::1]", "localhost.example"]:
            url = f"amqp://me:secret@{there}/%2f"
            with self.assertRaisesRegex(
                BrokerError, "use amqps://, or add .allow_plaintext=true"
            ) as told:
                private(url)
            self.assertNotIn("secret", str(told.exception))
            self.assertEqual(private(f"{url}?allow_plaintext=true"), url)
            more = private(f"{url}?heartbeat=5&allow_plaintext=true")
            self.assertEqual(more, f"{url}?heartbeat=5")
