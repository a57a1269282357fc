"""Tests of the arguments of `python -m nsbridge`."""

from __future__ import annotations

import contextlib
import io
import unittest
from unittest import mock

from nsbridge.__main__ import arguments

URL, KEYRING = "NSBRIDGE_BROKER__URL", "NSBRIDGE_KEYS__KEYRING"


class Command(unittest.TestCase):
    def parsed(self, *more: str, **environment: str) -> tuple[str, str, str]:
        """Returns the URL, the keyring and the tenant of a command."""
        with mock.patch.dict("os.environ", environment, clear=True):
            args = arguments(["--model", "m", *more, "Once a bear"])
        return args.url, args.keyring, args.tenant

    def test_the_defaults_are_those_of_the_command_in_rust(self):
        self.assertEqual(self.parsed(), ("amqp://localhost", "keys.json", "default"))

    def test_the_environment_is_read_and_an_argument_overrides_it(self):
        environment = {URL: "amqp://a", KEYRING: "b.json"}
        self.assertEqual(self.parsed(**environment), ("amqp://a", "b.json", "default"))
        for broker in ("--broker", "--url"):
            told = self.parsed(
                broker, "amqp://c", "--keyring", "d.json", "--tenant", "t", **environment
            )
            self.assertEqual(told, ("amqp://c", "d.json", "t"))

    def test_the_help_shows_no_password_of_the_environment(self):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), self.assertRaises(SystemExit):
            self.parsed("--help", **{URL: "amqp://me:canary@host"})
        self.assertIn(URL, said.getvalue())
        self.assertNotIn("canary", said.getvalue())


if __name__ == "__main__":
    unittest.main()
