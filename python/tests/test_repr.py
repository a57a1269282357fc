"""Tests of the representation of clients and replies, as a notebook or a log shows it."""

from __future__ import annotations

import unittest

from nsbridge import AsyncClient, Client, Keyring
from scripted import Scripted, ScriptedBroker
from worker import KEY


class Shown(Scripted):
    def test_a_client_shows_its_name_its_tenant_and_its_state(self):
        url = "amqp://me:canary@localhost/%2f"
        client = AsyncClient(url, Keyring.of_key("dev", KEY), tenant="t", name="api-1")
        shown = "<nsbridge.AsyncClient 'api-1', tenant 't', "
        self.assertEqual(repr(client), f"{shown}not connected>")

        async def script():
            async with self.client() as client:
                self.assertIn("'t', connected>", repr(client))
            self.assertIn("'t', closed>", repr(client))

        self.play(script())
        with Client(ScriptedBroker(), Keyring.of_key("dev", KEY)) as blocking:
            shown = "<nsbridge.Client 'nsbridge client', tenant 'default', connected>"
            self.assertEqual(repr(blocking), shown)

    def test_a_reply_shows_its_model_its_id_and_its_state(self):
        async def script():
            async with self.client() as client:
                reply = client.text("m", "canary")
                self.assertEqual(
                    repr(reply), "<nsbridge.AsyncReply of 'm', id None, not submitted>"
                )
                await reply
                self.assertEqual(
                    repr(reply), f"<nsbridge.AsyncReply of 'm', id {reply.id}, in progress>"
                )
                self.broker.answer(0)
                await reply.read()
                self.assertIn(f"{reply.finish_reason}>", repr(reply))
                cancelled = await client.text("m", "canary")
                await cancelled.cancel()
                self.assertIn("ended>", repr(cancelled))

        self.play(script())
        with Client(ScriptedBroker(), Keyring.of_key("dev", KEY)) as client:
            reply = client.text("m", "canary")
            shown = f"<nsbridge.Reply of 'm', id {reply.id}, in progress>"
            self.assertEqual(repr(reply), shown)
            reply.cancel()


if __name__ == "__main__":
    unittest.main()
