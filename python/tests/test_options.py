"""Tests of the options of a request for text, before it is sent."""

from __future__ import annotations

import math
import unittest

from nsbridge import InvalidRequest
from nsbridge.options import TAKES, TextOptions
from nsbridge.text import text_input
from scripted import Scripted

COUNT = "a whole number of at least 0"
FROM_ZERO = "a number of at least 0"


class Options(Scripted):
    def test_each_option_is_checked(self):
        self.assertEqual(set(TAKES), set(TextOptions.__annotations__))

    def test_what_cannot_be_right_is_refused_before_it_is_sent(self):
        async def script():
            async with self.client() as client:
                for name, value, takes in (
                    ("max_tokens", -3, f"{COUNT}, not -3"),
                    ("max_tokens", 4.0, f"{COUNT}, not 4.0"),
                    ("max_tokens", "40", f"{COUNT}, not a value of type str"),
                    ("top_k", True, f"{COUNT}, not True"),
                    ("n", 0, "a whole number of at least 1, not 0"),
                    ("temperature", -1, f"{FROM_ZERO}, not -1"),
                    ("temperature", math.nan, f"{FROM_ZERO}, not nan"),
                    ("frequency_penalty", math.inf, "a number, not inf"),
                    ("priority", 0.5, "a whole number, not 0.5"),
                    ("echo", 1, "True or False, not 1"),
                    ("stop", "canary", "a list of texts, not a value of type str"),
                    ("stop", [1], "a list of texts, not a value of type list"),
                    ("stop_token_ids", [-1], "a list of token ids, not a value of type list"),
                    ("bad_token_sequences", [3], "a list of lists of token ids, not a value of"),
                    ("logit_bias", {7: "canary"}, "a dict of numbers, not a value of type dict"),
                    ("tools", {}, "a list of dicts, not a value of type dict"),
                    ("response_format", "canary", "a dict, not a value of type str"),
                    ("reasoning_effort", 3, "a text, not 3"),
                ):
                    with self.subTest(name, value=value):
                        with self.assertRaises(InvalidRequest) as told:
                            await client.text("m", "canary", **{name: value})
                        said = str(told.exception)
                        self.assertEqual(said[: len(name) + 9], f"`{name}` takes ")
                        self.assertIn(takes, said)
                        self.assertNotIn("canary", said)
                for wrong in ({"seed": "7"}, {"seed": True}, {"timeout": "3"}):
                    with self.subTest(wrong), self.assertRaises(InvalidRequest):
                        await client.text("m", "canary", **wrong)

        self.play(script())
        self.assertEqual(self.broker.sent, [])

    def test_an_unknown_name_is_told_with_the_one_that_was_meant(self):
        for name, advice in (
            ("max_tokns", "did you mean `max_tokens`?"),
            ("timeot", "did you mean `timeout`?"),
            ("user", "`submit` sends inputs with other fields"),
        ):
            with self.assertRaises(InvalidRequest) as told:
                text_input("a bear", **{name: 3})
            said = f"`{name}` is no option of a request for text: {advice}"
            self.assertEqual(str(told.exception), said)

    def test_what_may_be_right_is_sent_as_it_is(self):
        given = {
            "max_tokens": 0,
            "temperature": 0,
            "top_p": 1,
            "frequency_penalty": -2,
            "priority": -5,
            "stop": ("a", ""),
            "logit_bias": {7: -100, "8": 0.5},
            "bad_token_sequences": [[1, 2], (3,)],
            "tools": [],
            "echo": False,
        }
        self.assertEqual(text_input("a", **given, top_k=None), {"prompt": "a", **given})


if __name__ == "__main__":
    unittest.main()
