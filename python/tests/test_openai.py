"""Tests of OpenAI's shapes, on a real RabbitMQ."""

from __future__ import annotations

import asyncio
import json
import unittest

from fake import Fake
from nsbridge import AsyncClient, Client, InvalidRequest
from nsbridge.openai import AsyncOpenAI, OpenAI
from nsbridge.tools import split
from place import Place

MESSAGES = [{"role": "user", "content": "Once a bear"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TIME = {"type": "function", "function": {"name": "time"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'


class Shapes(unittest.TestCase):
    """Chats and embeddings."""

    @classmethod
    def setUpClass(cls):
        cls.place = Place()
        cls.addClassCleanup(cls.place.close)
        cls.place.worker()
        cls.model = cls.place.model
        cls.fake = Fake(
            cls.place.url, f"{cls.model}-fake", str(cls.place.keys), lambda _: cls.answer
        )
        cls.addClassCleanup(cls.fake.close)
        cls.client = Client(cls.place.url, cls.place.keys)
        cls.addClassCleanup(cls.client.close)
        cls.api = OpenAI(cls.client)

    def create(self, **options):
        return self.api.chat.completions.create(
            model=self.model, messages=MESSAGES, seed=7, max_completion_tokens=20, **options
        )

    def test_a_chat_has_the_shape_and_the_text_of_its_chunks(self):
        whole = self.create()
        text = self.client.text(self.model, MESSAGES, seed=7, max_tokens=20).read()
        self.assertEqual(
            (whole.choices[0].message.content, whole.choices[0].finish_reason), (text, "length")
        )
        self.assertEqual(whole.usage.completion_tokens, 20)
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + 20)
        chunks = list(self.create(stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), text)
        self.assertEqual(
            (chunks[0].choices[0].delta.role, chunks[1].choices[0].delta.role), ("assistant", None)
        )
        self.assertEqual(
            (chunks[-1].choices[0].finish_reason, chunks[-1].usage), ("length", whole.usage)
        )

    def test_many_choices_are_told_apart(self):
        choices = self.create(n=3).choices
        texts = [
            self.client.text(self.model, MESSAGES, seed=7 + i, max_tokens=20).read()
            for i in range(3)
        ]
        self.assertEqual([choice.message.content for choice in choices], texts)
        streamed = ["", "", ""]
        for part in self.create(n=3, stream=True):
            for choice in part.choices:
                streamed[choice.index] += choice.delta.content or ""
        self.assertEqual(streamed, texts)

    def test_asyncio_has_the_same_shapes(self):
        async def run():
            async with AsyncClient(self.place.url, self.place.keys) as client:
                create = AsyncOpenAI(client).chat.completions.create
                options = {
                    "model": self.model,
                    "messages": MESSAGES,
                    "seed": 7,
                    "max_tokens": 20,
                    "stop": "\n",
                }
                whole = await create(**options)
                parts = [part async for part in await create(stream=True, **options)]
                return whole, parts

        whole, parts = asyncio.run(run())
        self.assertEqual(
            "".join(p.choices[0].delta.content or "" for p in parts),
            whole.choices[0].message.content,
        )

    def test_calls_of_tools_are_read_from_the_reply(self):
        type(self).answer = [{"token": 1, "text": f"I look. {CALL}{CALL}"}]
        made = self.api.chat.completions.create(
            model=self.fake.model, messages=MESSAGES, tools=[WEATHER]
        )
        choice = made.choices[0]
        self.assertEqual((choice.message.content, choice.finish_reason), ("I look.", "tool_calls"))
        first, second = choice.message.tool_calls
        self.assertEqual(
            (first.function.name, json.loads(first.function.arguments)),
            ("weather", {"city": "Bern"}),
        )
        self.assertNotEqual(first.id, second.id)
        self.assertEqual(self.fake.requests[-1]["input"]["tools"], [WEATHER])

    def test_a_forced_call_is_a_format(self):
        type(self).answer = [{"token": 1, "text": '{"name":"weather","arguments":{}}'}]
        choice = {"type": "function", "function": {"name": "weather"}}
        for forced, count in ((choice, 1), ("required", 2)):
            made = self.api.chat.completions.create(
                model=self.fake.model, messages=MESSAGES, tools=[WEATHER, TIME], tool_choice=forced
            )
            self.assertEqual(made.choices[0].message.tool_calls[0].function.arguments, "{}")
            schema = self.fake.requests[-1]["input"]["response_format"]["json_schema"]["schema"]
            self.assertEqual(len(schema.get("anyOf", [schema])), count)
        with self.assertRaises(InvalidRequest):
            self.api.chat.completions.create(
                model=self.fake.model, messages=MESSAGES, tools=[TIME], tool_choice=choice
            )

    def test_a_real_worker_obeys_a_forced_call(self):
        made = self.create(tools=[WEATHER, TIME], tool_choice="required", temperature=0)
        message = made.choices[0].message
        if made.choices[0].finish_reason == "length":  # the beginning of a call
            self.assertRegex(message.content, '^{"name":"(weather|time)')
        else:
            self.assertIn(message.tool_calls[0].function.name, ("weather", "time"))

    def test_embeddings_have_the_shape(self):
        type(self).answer = [
            {"index": 1, "embedding": [3, 4]},
            {"index": 0, "embedding": "AACAPwAAAEA="},
        ]
        made = self.api.embeddings.create(model=self.fake.model, input=["a", "b"], dimensions=2)
        self.assertEqual(
            [(d.index, d.embedding) for d in made.data], [(0, [1.0, 2.0]), (1, [3.0, 4.0])]
        )
        self.assertEqual(made.usage.prompt_tokens, 2)
        asked = {"input": ["a", "b"], "dimensions": 2, "encoding_format": "base64"}
        self.assertEqual(self.fake.requests[-1]["input"], asked)


class Calls(unittest.TestCase):
    def test_a_text_that_is_no_call_stays_text(self):
        for text in (
            "plain",
            "<tool_call>{broken}</tool_call>",
            '<tool_call>{"name":1}</tool_call>',
            '<tool_call>{"name":"a","arguments":[]}</tool_call>',
        ):
            self.assertEqual(split(text, False), (text, []))
        content, calls = split(f"{CALL[:-12]}", False)
        self.assertEqual((content, len(calls)), ("", 1), "without its end")


if __name__ == "__main__":
    unittest.main()
