"""Tests of both clients against real workers on a real RabbitMQ."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
import unittest

import pika

import nsbridge
from nsbridge import AsyncClient, Client
from place import Place, wait_until

STORY = {"seed": 7, "max_tokens": 60}
LONG = {"seed": 7, "max_tokens": 900, "ignore_eos": True}
BEAR = "Once a bear"

INTERRUPTED = """
import sys, nsbridge
url, keys, model = sys.argv[1:]
client = nsbridge.Client(url, keys)
for token in client.text(model, "Once a bear", seed=7, max_tokens=900, ignore_eos=True):
    print("token", flush=True)
"""

CAUGHT = """
import sys, time, nsbridge
url, keys, model = sys.argv[1:]
client = nsbridge.Client(url, keys)
reply = client.text(model, "Once a bear", seed=7, max_tokens=900, ignore_eos=True)
next(reply)
print("token", flush=True)
try:
    list(reply)  # an interrupt of the program's own code would not concern the reply
except KeyboardInterrupt:
    print("caught", flush=True)
    time.sleep(60)  # the client stays open, and the reply is held
"""

STORED = """
import sys, time, nsbridge
url, keys, model = sys.argv[1:]
client = nsbridge.Client(url, keys)
reply = client.text(model, "Once a bear", seed=7, max_tokens=60)
read = [next(reply) for _ in range(5)]
print(reply.resume_point().to_json(), flush=True)
time.sleep(60)
"""


class OneWorker(unittest.TestCase):
    """Requests to one worker."""

    @classmethod
    def setUpClass(cls):
        cls.place = Place()
        cls.addClassCleanup(cls.place.close)
        cls.worker = cls.place.worker()
        cls.model = cls.place.model

    def client(self) -> Client:
        client = Client(self.place.url, self.place.keys)
        self.addCleanup(client.close)
        return client

    def story(self) -> str:
        """Returns the story that `nsbridge ask` prints."""
        place = self.place
        asked = place.nsbridge(
            "ask",
            "--model",
            place.model,
            "--broker",
            place.url,
            "--keyring",
            str(place.keys),
            "--seed",
            "7",
            "--max-tokens",
            "60",
            BEAR,
        )
        return asked.splitlines()[0]

    def test_both_clients_read_the_story_of_the_rust_client(self):
        story = self.story()
        with self.client() as client:
            reply = client.text(self.model, BEAR, **STORY)
            pieces = list(reply)
            self.assertEqual("".join(map(str, pieces)).strip(), story.strip())
            self.assertEqual((len(pieces), reply.usage.output_tokens), (60, 60))
            self.assertEqual((reply.finish_reason, reply.seed, reply.attempt), ("length", 7, 1))

        async def read() -> str:
            async with AsyncClient(self.place.url, self.place.keys) as client:
                async with client.text(self.model, BEAR, **STORY) as reply:
                    return "".join([str(piece) async for piece in reply])

        self.assertEqual(asyncio.run(read()).strip(), story.strip())

    def test_a_blocking_client_works_inside_of_a_running_event_loop(self):
        async def cell() -> str:
            return self.client().text(self.model, BEAR, **STORY).read()

        self.assertEqual(asyncio.run(cell()).strip(), self.story().strip())

    def test_threads_share_a_client(self):
        client, texts = self.client(), {}

        def ask(seed: int) -> None:
            texts[seed] = client.text(self.model, BEAR, seed=seed, max_tokens=40).read()

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(texts), 12)
        for seed, text in texts.items():
            alone = client.text(self.model, BEAR, seed=seed, max_tokens=40).read()
            self.assertEqual(text, alone)

    def cancelled(self, happens) -> None:
        """Checks that the worker's run is cancelled by what happens."""
        before = self.worker.ended("cancelled")
        happens()
        wait_until("the cancel", lambda: self.worker.ended("cancelled") > before)

    def test_each_way_to_leave_a_reply_cancels_the_workers_run(self):
        client, kept = self.client(), []

        def cancel():
            reply = client.text(self.model, BEAR, **LONG)
            next(reply)
            reply.cancel()
            self.assertEqual(list(reply), [])

        def context():
            with client.text(self.model, BEAR, **LONG) as reply:
                next(reply)
            kept.append(reply)

        def loop():
            for _ in client.text(self.model, BEAR, **LONG):
                break

        def closed():
            other = self.client()
            reply = other.text(self.model, BEAR, **LONG)
            next(reply)
            other.close()
            with self.assertRaises(nsbridge.Closed):
                list(reply)

        def interrupted():
            process = self.place.python(INTERRUPTED)
            self.assertEqual(process.stdout.readline(), "token\n")
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
            self.assertIn("KeyboardInterrupt", said)

        for leave in (cancel, context, loop, closed, interrupted):
            with self.subTest(leave.__name__):
                self.cancelled(leave)

    def test_an_interrupt_that_the_program_catches_cancels_the_workers_run(self):
        process = self.place.python(CAUGHT)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)

        def interrupt():
            self.assertEqual(process.stdout.readline(), "token\n")
            time.sleep(0.1)  # until the program reads the reply again
            process.send_signal(signal.SIGINT)
            wait_until("the interrupt", lambda: process.stdout.readline() == "caught\n")

        self.cancelled(interrupt)

    def test_a_cancelled_task_cancels_the_workers_run(self):
        async def script():
            async with AsyncClient(self.place.url, self.place.keys) as client:

                async def read():
                    async with client.text(self.model, BEAR, **LONG) as reply:
                        await reply.__anext__()
                        begun.set()
                        await reply.collect()

                begun = asyncio.Event()
                task = asyncio.create_task(read())
                await begun.wait()
                task.cancel()
                await asyncio.wait([task])
                self.assertTrue(task.cancelled())

        self.cancelled(lambda: asyncio.run(script()))

    def test_bad_input_is_an_error_with_a_code(self):
        with self.assertRaises(nsbridge.BadInput) as told:
            self.client().submit(self.model, {"prompt": BEAR, "temperture": 1}).read()
        self.assertEqual((told.exception.code, told.exception.is_retryable), ("bad-input", False))

    def test_another_key_opens_nothing_and_the_worker_hints_at_it(self):
        other = nsbridge.Keyring.of_key("other", bytes(32))
        with Client(self.place.url, other) as client:
            with self.assertRaises(nsbridge.Deadline) as told:
                client.text(self.model, BEAR, timeout=3).read()
        self.assertEqual(told.exception.hint, "unknown-key")

    def test_a_model_without_a_queue_is_an_error_at_once(self):
        with self.assertRaisesRegex(nsbridge.NoSuchModel, "no queue for the model absent"):
            self.client().text("absent", BEAR)

    def test_a_broker_that_cannot_be_reached_is_an_error_without_its_password(self):
        user, _, rest = self.place.url.partition("@")
        for url, why in (
            ("amqp://me:secret@127.0.0.1:1/%2f", "refused"),
            (f"amqp://me:secret@{rest}", "user or the password"),
            (f"{user}@{rest.split('/')[0]}/none", "none|virtual host"),
        ):
            with self.assertRaisesRegex(nsbridge.BrokerError, why) as told:
                Client(url, self.place.keys)
            self.assertNotIn("secret", str(told.exception))

    def test_another_process_continues_a_reply(self):
        process = self.place.python(STORED)
        point = nsbridge.ResumePoint.from_json(process.stdout.readline())
        process.kill()
        process.communicate()
        self.assertEqual(len(point.pieces) >= 5, True)
        client = self.client()
        asked = {"prompt": BEAR, "max_tokens": 60}
        again = client.reattach(self.model, asked, point, read=nsbridge.TextPiece.read)
        rest = list(again)
        head = [json.loads(piece)["text"] for piece in point.pieces]
        text = "".join(head) + "".join(map(str, rest))
        self.assertEqual(text, client.text(self.model, BEAR, **STORY).read())

    def test_a_process_that_ends_without_closing_leaves_no_queue(self):
        process = self.place.python(
            "import sys, nsbridge\n"
            "client = nsbridge.Client(sys.argv[1], sys.argv[2])\n"
            "print(client.aio.reply_queue)\n"
        )
        out, said = process.communicate(timeout=60)
        self.assertEqual((process.returncode, said), (0, ""))
        connection = pika.BlockingConnection(pika.URLParameters(self.place.url))
        with self.assertRaises(pika.exceptions.ChannelClosedByBroker):
            connection.channel().queue_declare(out.strip(), passive=True)
        connection.close()

    def test_a_batch_is_answered_in_order(self):
        client = self.client()
        inputs = [{"prompt": BEAR, "max_tokens": length} for length in (30, 1, 20, 2, 10)]
        results = list(client.batch(self.model, inputs, concurrency=3, seed=7))
        self.assertEqual([len(result.pieces) for result in results], [30, 1, 20, 2, 10])

    def test_the_command_prints_the_story_and_its_facts(self):
        command = [
            "--url",
            self.place.url,
            "--keyring",
            str(self.place.keys),
            "--model",
            self.model,
            "--tenant",
            "t",
            "--seed",
            "7",
            "--max-tokens",
            "60",
            BEAR,
        ]
        process = self.place.python(
            "import sys; from nsbridge.__main__ import main; sys.exit(main(sys.argv[4:]))", *command
        )
        out, said = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out.strip()), (0, self.story().strip()))
        self.assertIn('finish_reason="length"', said)

    def test_an_interrupt_of_the_command_cancels_the_workers_run(self):
        program = "import sys; from nsbridge.__main__ import main; sys.exit(main(sys.argv[4:]))"
        command = ["--url", self.place.url, "--keyring", str(self.place.keys), "--tenant", "t"]
        command += ["--model", self.model, "--max-tokens", "900", "--seed", "8", BEAR]

        def interrupt():
            process = self.place.python(program, *command)
            self.assertTrue(process.stdout.read(1))
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
            self.assertEqual((process.returncode, said.strip()), (130, "cancelled"))

        self.cancelled(interrupt)


class ManyWorkers(unittest.TestCase):
    """Requests whose workers come and go."""

    def setUp(self):
        self.place = Place()
        self.addCleanup(self.place.close)
        self.client = None

    def whole(self, client: Client) -> str:
        return client.text(self.place.model, BEAR, **LONG).read()

    def test_a_killed_worker_is_replaced_without_a_seam(self):
        workers = {worker.name: worker for worker in (self.place.worker(), self.place.worker())}
        with Client(self.place.url, self.place.keys) as client:
            expected, text, opened = self.whole(client), "", []
            for event in client.text(self.place.model, BEAR, **LONG).events():
                if isinstance(event, nsbridge.Opened):
                    opened.append(event)
                elif isinstance(event, nsbridge.Piece):
                    text += str(event.value)
                    if len(opened) == 1 and len(text) > 40:
                        workers[opened[0].worker].kill()
                        opened.append(None)
                self.assertNotIsInstance(event, nsbridge.Restart)
            self.assertEqual(text, expected)
            self.assertEqual([opened[0].attempt, opened[2].attempt], [1, 2])
            self.assertNotEqual(opened[0].worker, opened[2].worker)

    def test_a_request_without_a_worker_ends_at_its_time_limit(self):
        self.place.worker().stop()
        with Client(self.place.url, self.place.keys) as client:
            with self.assertRaises(nsbridge.Deadline) as told:
                client.text(self.place.model, BEAR, timeout=1).read()
            self.assertEqual((told.exception.pieces, told.exception.is_retryable), (0, True))


if __name__ == "__main__":
    unittest.main()
