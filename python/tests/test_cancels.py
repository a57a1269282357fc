"""Tests of cancels, of reattached requests and of traces, with a scripted broker."""

from __future__ import annotations

import asyncio
import gc
import json
import time

import worker
from nsbridge import Closed, Deadline, Restart, Restarted, ResumePoint
from nsbridge.constants import CANCEL, RESUME
from nsbridge.frames import read_pieces
from scripted import Scripted
from worker import KEY, WORDS, token

TEXT = "w0 w1 w2 w3 w4 w5 "


class Cancels(Scripted):
    """Ends that the caller decides."""

    def check(self, leave):
        """Checks that `leave`, called with an open reply, cancels its worker."""

        async def script():
            async with self.client() as client:
                reply = await client.text("m", "a bear")
                a = self.broker.attempt(0)
                self.broker.take(a.open, a.data(0, WORDS[:2]), reply_to="a")
                holder = [reply]
                del reply
                await leave(holder)
                for _ in range(5):
                    await asyncio.sleep(0)
                self.assertEqual(self.broker.opened_controls(), [("a", CANCEL, b"")])
                late = self.broker.attempt(0, 2)
                self.broker.take(late.open, late.open, reply_to="b")
                await asyncio.sleep(0.1)
                self.assertEqual(self.broker.opened_controls()[1:], [("b", CANCEL, b"")], "once")

        self.setUp()
        self.play(script())

    def test_every_way_to_leave_a_reply_cancels_it(self):
        async def cancel(holder):
            await holder[0].cancel()
            self.assertEqual([piece async for piece in holder[0]], [])

        async def context(holder):
            async with holder[0] as reply:
                async for _ in reply:
                    break

        async def drop(holder):
            async for _ in holder.pop():
                break
            gc.collect()

        async def task(holder):
            work = asyncio.create_task(holder.pop().collect())
            await asyncio.sleep(0.1)
            work.cancel()
            await asyncio.wait([work])
            del work
            gc.collect()

        for leave in (cancel, context, drop, task):
            self.check(leave)

    def test_a_cancel_returns_after_the_worker_was_told_or_after_five_seconds(self):
        async def script():
            async with self.client() as client:
                for delay, told, took in ((1, 1, 1), (100, 1, 5)):
                    reply = await client.text("m", "a bear")
                    self.broker.delay = delay
                    start = asyncio.get_running_loop().time()
                    await reply.cancel()
                    self.assertEqual(len(self.broker.controls), told)
                    self.assertAlmostEqual(asyncio.get_running_loop().time() - start, took)
                self.broker.delay = 0

        self.play(script())

    def test_a_finished_reply_is_not_cancelled(self):
        async def script():
            async with self.client() as client:
                async with client.text("m", "a bear") as reply:
                    self.broker.answer(0)
                    self.assertEqual(await reply.read(), TEXT)
                gc.collect()
                await asyncio.sleep(1)

        self.play(script())
        self.assertEqual(self.broker.controls, [])

    def test_closing_the_client_cancels_what_runs_and_refuses_what_follows(self):
        async def script():
            client = await self.client().connect()
            reply = await client.text("m", "a bear")
            await client.close()
            with self.assertRaises(Closed):
                await reply.collect()
            with self.assertRaises(Closed):
                await client.text("m", "a bear")

        self.play(script())
        self.assertEqual(self.broker.opened_controls(), [("m", CANCEL, b"")])
        self.assertTrue(self.broker.closed)

    def test_ended_requests_keep_no_text_and_are_forgotten_at_their_deadlines(self):
        async def script():
            async with self.client() as client:
                reply = await client.text("m", "a bear", timeout=60)
                self.broker.answer(0)
                await reply.collect()
                (tomb,) = client.router.pending.values()
                self.assertEqual((tomb.last, len(tomb.inbox), tomb.inquiry.content), (None, 0, b""))
                self.assertEqual(tomb.inquiry.merge.pieces, [])
                await asyncio.sleep(59)
                self.assertEqual(len(client.router.pending), 1)
                await asyncio.sleep(2)
                self.assertEqual(client.router.pending, {})

        self.play(script())


class Reattach(Scripted):
    """Requests that another client continues."""

    def test_another_client_continues_after_the_pieces_that_were_stored(self):
        async def script():
            async with self.client() as client:
                reply = await client.text("m", "a bear", seed=7)
                a = self.broker.attempt(0)
                self.broker.take(a.open, a.data(0, WORDS[:2]))
                self.assertEqual([str(await reply.__anext__()) for _ in range(2)], ["w0 ", "w1 "])
                stored = reply.resume_point().to_json()
            point = ResumePoint.from_json(stored)
            self.assertEqual((point.seed, point.clients, point.pieces), (7, 1, WORDS[:2]))
            async with self.client() as client:
                reply = await client.reattach("m", {"prompt": "a bear"}, point)
                b = self.broker.attempt(1, 1 << 16 | 1)
                self.broker.take(b.open, reply_to="b")
                self.broker.take(b.data(2, WORDS[2:]), b.finish(WORDS))
                result = await reply.collect()
                self.assertEqual(
                    [piece["text"] for piece in result.pieces], ["w2 ", "w3 ", "w4 ", "w5 "]
                )
                self.assertEqual(reply.resume_point().clients, 2)

        self.play(script())
        first, again = (worker.open_request(m.body, KEY) for m in self.broker.sent)
        self.assertEqual((first[0], first[1]), (again[0], again[1]), "id, times, seed and input")
        self.assertEqual(self.broker.sent[1].headers["nsb-epoch"], 1)
        key, kind, content = self.broker.opened_controls()[-1]
        length = int.from_bytes(content[:4], "big")
        self.assertEqual(json.loads(content[4 : 4 + length]), {"fingerprint": "00" * 16, "n": 2})
        self.assertEqual(
            (key, kind, read_pieces(content[4 + length :])), ("b", RESUME, (0, WORDS[:2]))
        )

    def test_a_request_that_was_fixed_before_it_was_sent_keeps_its_id_seed_and_times(self):
        fixed = ResumePoint.new(timeout=60, seed=7)
        self.assertEqual(fixed.expires_at_ms - fixed.created_at_ms, 60_000)
        self.assertNotEqual(fixed.id, ResumePoint.new().id)
        self.assertNotEqual(ResumePoint.new().seed, ResumePoint.new().seed)

        async def script():
            for _ in range(2):  # the second process knows no more than the first
                async with self.client() as client:
                    reply = await client.reattach(
                        "m", {"prompt": "a bear"}, ResumePoint.from_json(fixed.to_json())
                    )
                    self.assertEqual((reply.id, reply.seed), (fixed.id, 7))

        self.play(script())
        first, again = (worker.open_request(m.body, KEY) for m in self.broker.sent)
        self.assertEqual((first[0], first[1]), (again[0], again[1]), "id, times, seed and input")
        head = first[0]
        self.assertEqual(
            (head.created_at_ms, head.expires_at_ms), (fixed.created_at_ms, fixed.expires_at_ms)
        )
        self.assertNotEqual(self.broker.sent[0].body, self.broker.sent[1].body, "another salt")

    def test_a_stream_that_differs_from_stored_pieces_outranks_them(self):
        async def script():
            point = ResumePoint(
                "018bcfe5-6800-7000-8000-000000000001", 7, *self.times(), pieces=WORDS[:2]
            )
            async with self.client() as client:
                for whole in (False, True):
                    reply = await client.reattach("m", {}, point)
                    a = self.broker.attempt(-1)
                    self.broker.take(a.open, a.data(0, [token(99, "x")]))
                    if whole:
                        with self.assertRaises(Restarted):
                            await reply.collect()
                    else:
                        events = reply.events()
                        self.assertEqual((await events.__anext__()).attempt, 1)
                        self.assertEqual(await events.__anext__(), Restart(0))

        self.play(script())

    def times(self) -> tuple[int, int]:
        now = int(time.time() * 1000)
        return now, now + 60_000

    def test_a_request_that_has_expired_is_not_continued(self):
        async def script():
            async with self.client() as client:
                with self.assertRaises(Deadline):
                    client.reattach(
                        "m", {}, ResumePoint("018bcfe5-6800-7000-8000-000000000001", 7, 1, 2)
                    )

        self.play(script())
        self.assertEqual(self.broker.sent, [])


class Traces(Scripted):
    def test_a_request_has_a_span_and_a_later_attempt_learns_of_the_earlier(self):
        span = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
        attempt = "00-" + "1" * 32 + "-" + "3" * 16 + "-01"

        async def script():
            async with self.client() as client:
                _kept = (
                    await client.text("m", "a bear", trace=span),
                    await client.text("m", "a bear"),
                )
                a, b = self.broker.attempt(0), self.broker.attempt(0, 2)
                self.broker.watcher.take(a.open, "a", attempt)
                self.broker.watcher.take(b.open, "b", None)
                await asyncio.sleep(0.1)

        self.play(script())
        self.assertEqual(self.broker.sent[0].headers["traceparent"], span)
        self.assertRegex(
            self.broker.sent[1].headers["traceparent"], "^00-[0-9a-f]{32}-[0-9a-f]{16}-00$"
        )
        self.assertEqual(self.broker.controls[0].headers, {"nsb-traceparent-before": attempt})
