"""Tests of requests in steps, on a real RabbitMQ."""

from __future__ import annotations

import asyncio
import json
import math
import unittest

import make_vectors
from fake import Fake
from nsbridge import (
    AsyncClient,
    BadInput,
    Client,
    Closed,
    Deadline,
    Error,
    InvalidRequest,
    ResumePoint,
    UnexpectedPiece,
)
from nsbridge.combine import CutOff, Flow, answer, in_order, judged, retrieve, step_seed
from place import ROOT, Place, wait_until

BEAR = "Once a bear"


class Steps(unittest.TestCase):
    """Flows over a real writer, and a judge in Python."""

    @classmethod
    def setUpClass(cls):
        cls.place = Place()
        cls.addClassCleanup(cls.place.close)
        cls.writer = cls.place.worker()
        cls.judge = Fake(cls.place.url, f"{cls.place.model}-judge", str(cls.place.keys), cls.score)
        cls.addClassCleanup(cls.judge.close)

    @staticmethod
    def score(asked) -> list:
        """Scores a text by its length, in characters above 300."""
        return [{"long": min(1.0, max(0, len(asked["text"]) - 300) / 1000), "rude": 0.0}]

    def setUp(self):
        self.judge.requests.clear()

    def play(self, script, **options):
        async def run():
            async with AsyncClient(self.place.url, self.place.keys) as client:
                async with Flow(client, **options) as flow:
                    return await script(flow)

        return asyncio.run(run())

    def names(self) -> dict[str, str]:
        return {"judge": self.judge.model, "writer": self.place.model}

    def test_text_that_passes_the_judge_is_returned_in_parts(self):
        async def script(flow):
            parts = judged(flow, BEAR, **self.names(), limits={"long": 1}, every=50, max_tokens=40)
            return [part async for part in parts]

        parts = self.play(script, seed=7)
        seed = step_seed(7, 1)  # the judge has read the prompt
        with Client(self.place.url, self.place.keys) as client:
            text = client.text(self.place.model, BEAR, seed=seed, max_tokens=40).read()
        self.assertEqual("".join(parts), text)
        self.assertGreater(len(parts), 1)
        read = [request["input"]["text"] for request in self.judge.requests]
        self.assertEqual((read[0], read[-1]), (BEAR, text))

    def test_a_judge_cuts_the_writer_off(self):
        before, parts = self.writer.ended("cancelled"), []

        async def script(flow):
            text = judged(
                flow,
                BEAR,
                **self.names(),
                limits={"long": 0.1},
                every=100,
                max_tokens=900,
                ignore_eos=True,
            )
            async for part in text:
                parts.append(part)

        with self.assertRaises(CutOff) as cut:
            self.play(script)
        self.assertEqual((cut.exception.label, cut.exception.text), ("long", "".join(parts)))
        self.assertNotIn(f"{cut.exception.score:.3f}", str(cut.exception))
        self.assertLessEqual(len("".join(parts)), 400)
        wait_until("the cancel", lambda: self.writer.ended("cancelled") > before)

    def test_a_prompt_that_does_not_pass_is_never_written_about(self):
        before = self.writer.ended("ok") + self.writer.ended("cancelled")

        async def script(flow):
            text = judged(flow, "x" * 1000, **self.names(), limits={"long": 0.1})
            return [part async for part in text]

        self.assertRaises(CutOff, self.play, script)
        self.assertEqual(self.writer.ended("ok") + self.writer.ended("cancelled"), before)

    def test_a_label_without_a_score_lets_nothing_pass(self):
        async def script(flow):
            text = judged(flow, BEAR, **self.names(), limits={"rude": 1, "typo": 1})
            return [part async for part in text]

        self.assertRaisesRegex(UnexpectedPiece, "no score for `typo`", self.play, script)

    def test_a_limit_that_is_no_number_lets_nothing_pass(self):
        async def script(flow):
            text = judged(flow, BEAR, **self.names(), limits={"rude": math.nan})
            return [part async for part in text]

        self.assertRaises(CutOff, self.play, script)

    def test_all_steps_share_deadline_and_trace_and_each_has_its_own_seed(self):
        async def script(flow):
            async def item(part, text):
                await asyncio.sleep({"a": 0.2, "b": 0}[text])  # b runs before a
                return (await part.judge(self.judge.model, text)).scores["long"]

            await flow.judge(
                self.judge.model, "first", labels={"long": "a long text", "rude": None}
            )
            return await flow.map(["a", "b"], item)

        self.assertEqual(self.play(script, seed=7, timeout=60), [0, 0])
        asked = {request["input"]["text"]: request for request in self.judge.requests}
        labels = [{"label": "long", "description": "a long text"}, {"label": "rude"}]
        self.assertEqual(asked["first"]["input"]["labels"], labels)
        seeds = {name: request["seed"] for name, request in asked.items()}
        self.assertEqual(
            seeds,
            {
                "first": step_seed(7, 0),
                "a": step_seed(step_seed(7, 1), 0),
                "b": step_seed(step_seed(7, 2), 0),
            },
        )
        self.assertEqual(len({request["trace"] for request in asked.values()}), 1)
        ends = [request["head"].expires_at_ms for request in asked.values()]
        self.assertLess(max(ends) - min(ends), 100)

    def test_a_flow_ends_at_its_deadline(self):
        async def script(flow):
            await asyncio.sleep(0.3)
            await flow.judge(self.judge.model, "late")

        with self.assertRaises(Deadline):
            self.play(script, timeout=0.2)
        self.assertEqual(self.judge.requests, [])

    def test_leaving_a_flow_cancels_its_replies(self):
        before = self.writer.ended("cancelled")
        cancelled = lambda: self.writer.ended("cancelled") > before

        async def run():
            async with AsyncClient(self.place.url, self.place.keys) as client:
                async with Flow(client) as flow:
                    reply = await flow.text(self.place.model, BEAR, max_tokens=900, ignore_eos=True)
                    await reply.__anext__()
                loop = asyncio.get_running_loop()  # the client is open and the reply is held
                await loop.run_in_executor(None, wait_until, "the cancel", cancelled)

        asyncio.run(run())

    def test_leaving_a_flow_cancels_the_items_of_a_map_in_another_task(self):
        before = self.writer.ended("cancelled")
        cancelled = lambda: self.writer.ended("cancelled") > before

        async def run():
            async with AsyncClient(self.place.url, self.place.keys) as client:
                begun = asyncio.Event()

                async def item(part, prompt):
                    async with part.text(
                        self.place.model, prompt, max_tokens=900, ignore_eos=True
                    ) as reply:
                        async for _ in reply:
                            begun.set()

                async with Flow(client) as flow:
                    items = asyncio.ensure_future(flow.map([BEAR], item))
                    await begun.wait()
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(None, wait_until, "the cancel", cancelled)
                with self.assertRaises(Error):
                    await items
                with self.assertRaises(Closed):
                    await flow.judge(self.judge.model, "after the end")
                with self.assertRaises(Closed):
                    flow.text(self.place.model, BEAR)

        asyncio.run(run())
        self.assertEqual(self.judge.requests, [])

    def test_a_reply_of_a_flow_that_is_dropped_is_cancelled(self):
        before = self.writer.ended("cancelled")

        async def script(flow):
            reply = await flow.text(self.place.model, BEAR, max_tokens=900, ignore_eos=True)
            await reply.__anext__()
            del reply
            loop = asyncio.get_running_loop()
            cancelled = lambda: self.writer.ended("cancelled") > before
            await loop.run_in_executor(None, wait_until, "the cancel", cancelled)

        self.play(script)

    def test_a_flow_may_last_longer_than_one_request(self):
        async def script(flow):
            return await flow.judge(self.judge.model, "short")

        self.assertEqual(self.play(script, timeout=7200).scores["long"], 0.0)

    def test_the_first_error_of_a_map_cancels_the_other_items(self):
        before = self.writer.ended("cancelled")

        async def script(flow):
            begun = asyncio.Event()

            async def item(part, temperature):
                if temperature == "wrong":
                    await begun.wait()
                asked = {"prompt": BEAR, "max_tokens": 900, "ignore_eos": True}
                reply = await part.submit(self.place.model, {**asked, "temperature": temperature})
                await reply.__anext__()
                begun.set()
                return await reply.collect()

            await flow.map([0.7, "wrong"], item)

        self.assertRaises(BadInput, self.play, script)
        wait_until("the cancel", lambda: self.writer.ended("cancelled") > before)

    def test_a_blocking_program_runs_a_flow(self):
        with Client(self.place.url, self.place.keys) as client:

            async def count():
                async with Flow(client.aio, seed=7) as flow:
                    return await flow.map([1, 2, 3], lambda part, n: self.written(part, n))

            self.assertEqual(client.run(count()), [1, 2, 3])

    async def written(self, flow, tokens: int) -> int:
        result = await flow.text(self.place.model, BEAR, max_tokens=tokens).collect()
        return len(result.pieces)


class Retrieval(unittest.TestCase):
    """Passages from a worker of embeddings."""

    def test_an_answer_is_written_from_the_nearest_passages(self):
        place = Place()
        self.addCleanup(place.close)
        place.worker('task = "embed"')
        writer = Fake(
            place.url,
            f"{place.model}-w",
            str(place.keys),
            lambda asked: [{"token": 1, "text": asked["messages"][0]["content"]}],
        )
        self.addCleanup(writer.close)
        passages = ["A bear went to the sea.", "The price of iron rose.", "Once a bear was happy."]

        async def run():
            async with AsyncClient(place.url, place.keys) as client:
                single = await client.embed(place.model, passages[1])
                plain = await client.embed(place.model, passages, encoding_format="float")
                async with Flow(client) as flow:
                    found = await retrieve(
                        flow, passages[1], passages, embedder=place.model, count=2
                    )
                    made = await answer(
                        flow,
                        passages[1],
                        passages,
                        embedder=place.model,
                        writer=writer.model,
                        count=1,
                    )
                return single, plain, found, made

        single, plain, found, made = asyncio.run(run())
        for a, b in zip(single.vectors[0], plain.vectors[1]):
            self.assertTrue(math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-7))
        self.assertEqual((found[0].text, len(found)), (passages[1], 2))
        self.assertGreater(found[0].score, 0.999)
        self.assertEqual(made.text, f"Sources:\n[1] {passages[1]}\n\nQuestion: {passages[1]}")


class Points(unittest.TestCase):
    """States of requests that are not submitted yet."""

    def test_a_state_that_no_worker_accepts_is_refused(self):
        for wrong in ({"timeout": 3600}, {"timeout": 0}, {"seed": -1}, {"seed": 1 << 64}):
            self.assertRaises(InvalidRequest, ResumePoint.new, **wrong)
        self.assertEqual(ResumePoint.new(timeout=1500, seed=7).seed, 7)


class Seeds(unittest.TestCase):
    """Rule for the seeds of steps, which the Rust client has too."""

    def test_the_seeds_of_steps_are_those_of_the_vectors(self):
        path = ROOT / "crates" / "client" / "vectors" / "flow-v1.json"
        rows = json.loads(path.read_text())
        self.assertEqual(rows, make_vectors.flow_vectors())
        for row in rows:
            self.assertEqual(step_seed(row["seed"], row["number"]), row["step_seed"])


class InOrder(unittest.IsolatedAsyncioTestCase):
    """Concurrency of a map, without a broker."""

    async def test_no_more_than_the_allowed_steps_run_at_once_and_results_come_in_order(self):
        running, most = 0, 0

        async def step(item: int) -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001 * (item % 3))
            running -= 1
            return item

        self.assertEqual([r async for r in in_order(range(50), step, 4)], list(range(50)))
        self.assertEqual(most, 4)

    async def test_an_error_or_an_early_end_cancels_what_runs(self):
        cancelled = []

        async def step(item: int) -> int:
            try:
                await asyncio.sleep(1000 if item else 0)
            except asyncio.CancelledError:
                cancelled.append(item)
                raise
            return item

        results = in_order(range(3), step, 3)
        self.assertEqual(await results.__anext__(), 0)
        await results.aclose()
        self.assertEqual(cancelled, [1, 2])

        async def fail(item: int) -> int:
            if item == 2:
                raise LookupError
            return await step(item + 1)

        with self.assertRaises(LookupError):
            _ = [r async for r in in_order(range(3), fail, 3)]
        self.assertEqual(cancelled, [1, 2, 1, 2])

    async def test_a_concurrency_below_one_is_refused(self):
        with self.assertRaises(ValueError):
            _ = [r async for r in in_order([1], asyncio.sleep, 0)]


if __name__ == "__main__":
    unittest.main()
