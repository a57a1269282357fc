"""Tests of copies, silences, errors and limits, with a scripted broker."""

from __future__ import annotations

import asyncio
import json

import worker
from nsbridge import (
    BadInput,
    Client,
    Deadline,
    EnqueuedAgain,
    Hint,
    Internal,
    InvalidRequest,
    Keyring,
    NoSuchModel,
    Piece,
    Poison,
    QueueFull,
    ReplyTooLarge,
    Restart,
    Restarted,
    Truncated,
    UnexpectedPiece,
    Waiting,
)
from nsbridge.broker import Answer
from nsbridge.constants import CANCEL, CODES, FINAL_ERROR, FINAL_OK, MAX_REPLY_BYTES
from nsbridge.errors import BY_CODE, BrokerError
from scripted import Scripted
from worker import KEY, WORDS, Attempt, token

TEXT = "w0 w1 w2 w3 w4 w5 "


class Copies(Scripted):
    """Rule C6: when a request is published again, and with which bytes."""

    def test_c6_a_client_asks_again_and_shows_each_piece_once(self):
        async def script():
            async with self.client() as client:
                reply = await client.text("m", "a bear", seed=7, timeout=60)
                a = self.broker.attempt(0)
                self.broker.take(a.open, a.data(0, WORDS[:2]), reply_to="a")
                self.broker.watcher.disconnected()
                await asyncio.sleep(20)
                self.broker.watcher.listening(True)
                await asyncio.sleep(7)
                self.broker.answer(1)
                self.assertEqual(await reply.read(), TEXT)
                self.assertEqual(reply.copies, 2)

        self.play(script())
        self.assertEqual([m.headers.get("nsb-epoch") for m in self.broker.sent], [None, 1])
        self.assertEqual(self.broker.opened_controls(), [("a", CANCEL, b"")])

    def test_every_copy_of_a_bulk_request_is_bulk(self):
        async def script(bulk: bool):
            self.setUp()
            async with self.client() as client:
                reply = await client.text("m", "a bear", bulk=bulk)
                self.broker.watcher.listening(True)
                await asyncio.sleep(7)
                self.broker.answer(1)
                await reply.collect()

        for bulk, queue in ((False, "nsbridge.m"), (True, "nsbridge.m.bulk")):
            self.play(script(bulk))
            self.assertEqual([m.key for m in self.broker.sent], [queue, queue])

    def test_c6_a_copy_that_is_refused_is_published_again_until_the_broker_takes_it(self):
        async def script():
            async with self.client() as client:
                reply = await client.text("m", "a bear", timeout=60)
                self.broker.answers.extend([Answer.REFUSED, Answer.RETURNED, Answer.REFUSED])
                self.broker.watcher.listening(True)
                await asyncio.sleep(8)
                with self.assertRaises(Deadline):
                    await reply.collect()

        self.play(script())
        bodies = [m.body for m in self.broker.sent]
        self.assertEqual(len(set(bodies[1:5])), 1, "these bytes each time")
        self.assertNotEqual(bodies[0], bodies[1])
        at = self.broker.at[1:5]
        pauses = [round(b - a, 3) for a, b in zip(at, at[1:])]
        self.assertEqual(pauses, [0.2, 0.4, 0.8])

    def test_c6_a_publish_without_an_answer_is_repeated_with_the_same_bytes(self):
        async def script():
            self.broker.answers.extend([BrokerError("gone"), BrokerError("gone")])
            async with self.client() as client:
                await client.text("m", "a bear")

        self.play(script())
        bodies = [m.body for m in self.broker.sent]
        self.assertEqual((len(bodies), len(set(bodies))), (3, 1))

    def test_c6_no_time_counts_while_there_is_no_connection(self):
        async def script():
            async with self.client() as client:
                _kept = await client.text("m", "a bear", timeout=60)
                watcher = self.broker.watcher
                watcher.listening(True)
                watcher.disconnected()
                await asyncio.sleep(20)
                self.assertEqual(len(self.broker.sent), 1)
                watcher.listening(False)
                await asyncio.sleep(5)
                self.assertEqual(len(self.broker.sent), 1)
                await asyncio.sleep(2)
                self.assertEqual(len(self.broker.sent), 2)

        self.play(script())

    def test_c6_no_time_counts_while_the_process_is_suspended(self):
        async def script():
            async with self.client() as client:
                _kept = await client.text("m", "a bear", timeout=200)
                self.broker.watcher.listening(True)
                await asyncio.sleep(3)
                asyncio.get_running_loop().now += 50  # no timer runs
                await asyncio.sleep(4)
                self.assertEqual(len(self.broker.sent), 1)
                await asyncio.sleep(4)
                self.assertEqual(len(self.broker.sent), 2)

        self.play(script())

    def test_c6_at_the_deadline_all_copies_are_cancelled(self):
        async def script():
            async with self.client() as client:
                reply = await client.text("m", "a bear", timeout=60)
                a = self.broker.attempt(0)
                self.broker.take(a.open, reply_to="a")
                self.broker.watcher.listening(True)
                with self.assertRaisesRegex(Deadline, "no complete reply in time, 0 pieces"):
                    await reply.collect()

        self.play(script())
        keys = [key for key, kind, _ in self.broker.opened_controls() if kind == CANCEL]
        self.assertEqual(keys, ["a", "m", "m", "m"], "the worker, and the copies that none opened")

    def test_a_missing_queue_and_a_full_one_are_errors_of_the_caller(self):
        async def script():
            async with self.client() as client:
                for answer, error in ((Answer.RETURNED, NoSuchModel), (Answer.REFUSED, QueueFull)):
                    self.broker.answers.append(answer)
                    with self.assertRaises(error) as told:
                        await client.text("m", "a bear")
                    self.assertEqual(told.exception.is_retryable, error is QueueFull)

        self.play(script())
        self.assertEqual((len(self.broker.sent), self.broker.controls), (2, []))


class Events(Scripted):
    """Events and errors that the caller receives."""

    def failing(self, kind: int, body: dict):
        """Lets the worker of the last copy end the reply."""
        a = self.broker.attempt(-1)
        counts = {"chunks": 0, "pieces": 0, "bytes": 0}
        self.broker.take(a.open, a.sealer.seal(kind, worker.compact({**counts, **body})))

    def test_codes_and_reasons_that_are_not_known_are_read_as_the_protocol_says(self):
        async def script():
            async with self.client() as client:
                for given, expected in (("new", "stop"), ("stop_text", "stop_text")):
                    reply = await client.text("m", "a bear")
                    self.failing(FINAL_OK, {"finish_reason": given})
                    self.assertEqual((await reply.collect()).summary.finish_reason, expected)
                for given, error in (
                    ("new", Internal),
                    ("poison", Poison),
                    ("bad-input", BadInput),
                ):
                    reply = await client.text("m", "a bear")
                    self.failing(FINAL_ERROR, {"code": given, "message": "m"})
                    with self.assertRaises(error) as told:
                        await reply.collect()
                    code = told.exception.code
                    self.assertEqual(str(told.exception), f"m ({code})")
                    self.assertIs(BY_CODE[code], error)

        self.play(script())

    def test_each_code_has_an_error_of_its_own(self):
        self.assertEqual(list(BY_CODE), CODES)
        self.assertEqual(len(set(BY_CODE.values())), len(CODES))

    def test_each_hint_is_told_once_and_at_most_sixteen_are(self):
        async def script():
            async with self.client() as client:
                reply = await client.text("m", "a bear", timeout=60)
                name = self.broker.sent[0].body[8:24]
                for number in (10, 11, 10, 99, 10, *range(1, 20)):
                    self.broker.take(b"NSBE\x01\x00" + number.to_bytes(2, "big") + name)
                events = []
                with self.assertRaises(Deadline) as late:
                    async for event in reply.events():
                        events.append(event)
                hints = [event.code for event in events if isinstance(event, Hint)]
                self.assertEqual(hints[:3], ["unknown-key", "wrong-key", "internal"])
                self.assertEqual((len(hints), len(set(hints))), (16, 16))
                self.assertEqual(late.exception.hint, hints[-1])
                self.assertIn("not authenticated", str(late.exception))

        self.play(script())

    def test_a_silence_is_told_and_a_new_copy_too(self):
        async def script():
            async with self.client() as client:
                reply = await client.text("m", "a bear", timeout=60)
                self.broker.watcher.listening(True)
                seen = []
                with self.assertRaises(Deadline):
                    async for event in reply.events():
                        seen.append(event)
                self.assertEqual(len([e for e in seen if isinstance(e, Waiting)]), 3)
                self.assertEqual(
                    [e.copies for e in seen if isinstance(e, EnqueuedAgain)], [2, 3, 4]
                )

        self.play(script())

    def test_a_gap_at_the_deadline_is_told(self):
        async def script():
            async with self.client() as client:
                reply = await client.text("m", "a bear", timeout=5)
                a = self.broker.attempt(0)
                lost = a.data(0, WORDS[:1])
                self.broker.take(a.open, a.data(1, WORDS[1:]))
                with self.assertRaises(Truncated):
                    await reply.collect()
                self.broker.take(lost)

        self.play(script())

    def test_a_restart_is_an_error_of_an_iteration_and_no_error_of_a_whole_reply(self):
        other = [WORDS[0], token(99, "x"), token(98, "y")]

        async def script():
            async with self.client() as client:
                for whole in (False, True):
                    reply = await client.text("m", "a bear")
                    a = self.broker.attempt(-1)
                    b = self.broker.attempt(-1, 2)
                    self.broker.take(a.open, a.data(0, WORDS[:3]))
                    again = [b.open, b.data(0, other), b.finish(other)]
                    if whole:
                        reading = asyncio.create_task(reply.read())
                        await asyncio.sleep(1)
                        self.broker.take(*again)
                        self.assertEqual(await reading, "w0 xy")
                        self.assertEqual(reply.restarts, 1)
                        continue
                    pieces = [(await reply.__anext__()).text for _ in range(3)]
                    self.broker.take(*again)
                    with self.assertRaises(Restarted) as restarted:
                        async for piece in reply:
                            pieces.append(piece.text)
                    self.assertEqual((restarted.exception.kept, len(pieces)), (1, 3))
                    del pieces[restarted.exception.kept :]
                    pieces += [piece.text async for piece in reply]
                    self.assertEqual(pieces, ["w0 ", "x", "y"])
                    self.assertEqual(
                        (reply.restarts, reply.finish_reason, reply.attempt), (1, "stop", 2)
                    )

        self.play(script())

    def test_a_reply_waits_for_its_caller_and_holds_up_no_other(self):
        async def script():
            async with self.client() as client:
                slow = await client.text("m", "a bear")
                other = await client.text("m", "a bear")
                a, words = self.broker.attempt(0), [token(1, "x")] * 100_000
                self.broker.take(a.open, reply_to="a")
                for first in range(0, len(words), 100):
                    self.broker.take(a.data(first, words[first : first + 100]))
                self.broker.answer(1)
                self.assertEqual(await other.read(), TEXT)
                self.broker.take(a.finish(words))
                pending = client.router.pending[self.broker.sent[0].body[8:24]]
                self.assertEqual(len(pending.inbox), 0, "what remains has no text")
                self.assertLessEqual(len(slow._pending.inbox), 3, "not a place for each piece")
                pieces = [piece.text async for piece in slow]
                self.assertEqual((len(pieces), set(pieces)), (100_000, {"x"}))
                self.assertEqual(slow.finish_reason, "stop")

        self.play(script())
        self.assertEqual(self.broker.opened_controls(), [])

    def test_a_reply_waits_for_a_caller_on_another_thread(self):
        words = [token(1, "x")] * 100_000

        async def answer():
            a = self.broker.attempt(0)
            self.broker.take(a.open, reply_to="a")
            for first in range(0, len(words), 100):
                self.broker.take(a.data(first, words[first : first + 100]))
            self.broker.take(a.finish(words))

        with Client(self.broker, Keyring.of_key("dev", KEY), tenant="t") as client:
            reply = client.text("m", "a bear")
            client.run(answer())
            self.assertEqual(len(reply._ready), 0)
            self.assertEqual(next(iter(reply)).text, "x")
            self.assertLessEqual(len(reply._ready), 1024, "the rest is not decoded yet")
            self.assertEqual(len(list(reply)), len(words) - 1)
            self.assertEqual(reply.finish_reason, "stop")

    def test_a_restart_that_the_caller_has_not_reached_is_not_seen(self):
        async def script(read: int, restarts: int):
            self.setUp()
            async with self.client() as client:
                reply = await client.text("m", "a bear")
                a, b, c = (self.broker.attempt(0, number) for number in (1, 2, 3))
                self.broker.take(a.open, a.data(0, WORDS[:4]))
                texts = [(await reply.__anext__()).text for _ in range(read)]
                other = [*WORDS[:2], token(9, "y"), token(9, "y")]
                self.broker.take(b.open, b.data(0, other))
                last = [WORDS[0], token(9, "z")]
                self.broker.take(c.open, c.data(0, last), c.finish(last))
                kept = []
                async for event in reply.events():
                    if isinstance(event, Piece):
                        texts.append(event.value.text)
                    elif isinstance(event, Restart):
                        kept.append(event.kept)
                        del texts[event.kept :]
                self.assertEqual((texts, len(kept)), (["w0 ", "z"], restarts))

        for read, restarts in [(0, 0), (1, 0), (2, 1), (3, 1)]:
            self.play(script(read, restarts))

    def test_a_reply_larger_than_any_may_be_fails_alone(self):
        async def script():
            async with self.client() as client:
                reply = await client.text("m", "a bear")
                a, piece = self.broker.attempt(0), token(1, "x" * 60_000)
                self.broker.take(a.open, reply_to="a")
                for first in range(200):
                    self.broker.take(a.data(first, [piece]))
                count = 0
                with self.assertRaises(ReplyTooLarge):
                    async for _ in reply:
                        count += 1
                self.assertEqual(count, MAX_REPLY_BYTES // (len(piece) + 4))

        self.play(script())
        self.assertEqual(self.broker.opened_controls(), [("a", CANCEL, b"")])

    def test_a_piece_of_another_type_cancels_the_request(self):
        async def script():
            async with self.client() as client:
                reply = await client.text("m", "a bear")
                a = self.broker.attempt(0)
                self.broker.take(a.open, a.data(0, [b'{"label":1}']), reply_to="a")
                with self.assertRaises(UnexpectedPiece):
                    await reply.collect()
                await asyncio.sleep(0)

        self.play(script())
        self.assertEqual(self.broker.opened_controls(), [("a", CANCEL, b"")])

    def test_nonsense_and_frames_of_unknown_requests_change_nothing(self):
        async def script():
            async with self.client() as client:
                reply = await client.text("m", "a bear")
                stranger = Attempt()
                self.broker.take(
                    b"",
                    b"NSBR",
                    stranger.open,
                    stranger.data(0, WORDS),
                    b"NSBE\x01\x00" + bytes(18),
                )
                self.broker.answer(0)
                self.assertEqual(await reply.read(), TEXT)

        self.play(script())

    def test_a_request_that_cannot_be_sealed_is_refused_before_it_is_published(self):
        async def script():
            async with self.client() as client:
                for wrong in (
                    {"seed": -1},
                    {"seed": 1 << 64},
                    {"timeout": 0},
                    {"timeout": 1501},
                    {"revision": "-"},
                    {"id": "no"},
                    {"temperature": float("nan")},
                    {"stop": object()},
                ):
                    with self.assertRaises(InvalidRequest, msg=str(wrong)) as told:
                        await client.text("m", "a bear", **wrong)
                    self.assertNotIn("a bear", str(told.exception))
                with self.assertRaises(InvalidRequest):
                    await client.text("m", "x" * (8 << 20))
                self.assertEqual(client.router.pending, {})
                names = "m.dead m.bulk m.retry.1s m.runs.0 reply reply.x control.x nsbridge.m - a/b"
                for name in [*names.split(), "", "m" * 101, "m\n"]:
                    with self.assertRaises(InvalidRequest, msg=name):
                        client.text(name, "a bear")
                for tenant in ("a\nb", "\x85", "t" * 256):
                    with self.assertRaises(InvalidRequest, msg=tenant):
                        client.text("m", "a bear", tenant=tenant)

        self.play(script())
        self.assertEqual(self.broker.sent, [])

    def test_a_replay_key_decides_which_pieces_are_equal(self):
        """Two workers give one label; the times differ. A key that raises ends its request."""

        def label(piece: bytes) -> bytes:
            return json.loads(piece)["label"].encode()

        async def script():
            async with self.client() as client:
                reply = await client.submit("m", {}, replay_key=label)
                one, two = ([worker.compact({"label": "a", "ms": ms})] for ms in (1, 2))
                a, b = self.broker.attempt(0), self.broker.attempt(0, 2)
                self.broker.take(a.open, a.data(0, one), b.open, b.data(0, two), b.finish(two))
                self.assertEqual((await reply.collect()).pieces, [{"label": "a", "ms": 1}])
                self.assertEqual(reply.restarts, 0)
                broken = await client.submit("m", {}, replay_key=label)
                a, b = self.broker.attempt(1), self.broker.attempt(1, 2)
                self.broker.take(a.open, a.data(0, [b"{}"]), b.open, b.data(0, [b"{}"]))
                with self.assertRaises(KeyError):
                    await broken.collect()

        self.play(script())

    def test_nothing_that_is_logged_by_default_shows_text_or_keys(self):
        async def script():
            async with self.client() as client:
                reply = await client.text("m", "a secret bear")
                a = self.broker.attempt(0, 2)
                self.broker.take(a.open, a.data(0, [token(1, "secret")]))
                pending = client.router.pending[self.broker.sent[0].body[8:24]]
                merge = pending.inquiry.merge
                stream = merge.newest
                shown = [
                    reply,
                    reply._request,
                    pending,
                    merge,
                    stream,
                    stream.keys,
                    pending.progress(),
                ]
                shown += [
                    reply.resume_point(),
                    *pending.inbox,
                    *merge.cancels(),
                    *(e.value for e in merge.cancels()),
                    *self.broker.sent,
                ]
                shown += [*self.broker.controls, pending.inquiry.key]
                for value in shown:
                    text = repr(value)
                    self.assertNotIn("secret", text)
                    self.assertNotIn(repr(merge.roots[0])[2:10], text, type(value))
                    self.assertNotIn(repr(KEY)[2:10], text)

        self.play(script())
