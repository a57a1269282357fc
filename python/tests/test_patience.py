"""Tests of rule C6, with a simulated clock."""

from __future__ import annotations

import unittest

import worker
from nsbridge.constants import CANCEL, HEARTBEAT, MOVED, RESUME
from nsbridge.frames import RequestHead, seal_control
from nsbridge.inquiry import Inquiry
from nsbridge.keyring import DataKey
from worker import ID, KEY, WORDS, Attempt, token


class Patience(unittest.TestCase):
    """Rule C6, with a worker that seals frames and a simulated clock."""

    def setUp(self):
        head = RequestHead(ID, 1000, 61_000, "tale-7m", "acme", "dev")
        self.inquiry = Inquiry(DataKey("dev", KEY), head, b'{"seed":7}', now=0.0)
        self.copies = [self.inquiry.seal().frame]

    def worker(self, copy: int = 0, attempt: int = 1, **more) -> Attempt:
        """Returns the worker of this copy; it knows only the bytes of the copy."""
        head, self.content, root = worker.open_request(self.copies[copy], KEY)
        return Attempt(attempt, root=root, **more)

    def feed(self, now: float, *frames: bytes, reply_to: str = "control") -> list:
        return [e for f in frames for e in self.inquiry.feed(f, reply_to, now)]

    def due(self, now: float) -> list[str]:
        events = self.inquiry.due(now)
        self.copies += [e.value.frame for e in events if e.kind == "enqueue"]
        return [e.kind for e in events]

    def test_c6_silence_is_told_and_is_no_error(self):
        self.assertEqual(
            [self.due(t) for t in (14.9, 15, 16, 30)], [[], ["waiting"], [], ["waiting"]]
        )
        a = self.worker()
        self.feed(31, a.open)
        self.assertEqual((self.due(45.9), self.due(46)), ([], ["waiting"]))
        self.assertFalse(self.inquiry.merge.over)

    def test_c6_silence_alone_is_no_reason_to_ask_again(self):
        a = self.worker()
        self.feed(1, a.open, a.data(0, WORDS[:2]))
        self.assertNotIn("enqueue", [k for t in range(2, 60) for k in self.due(t)])

    def test_c6_a_request_that_was_opened_is_not_left_alone_for_ever(self):
        a = self.worker()
        self.feed(1, a.open, a.data(0, WORDS[:2]))
        self.inquiry.listening = 20  # after a lost connection
        events = [
            (t, e) for t in range(2, 1000) for e in self.inquiry.due(t) if e.kind == "enqueue"
        ]
        self.assertEqual([t for t, _ in events], [110])

    def test_c6_what_nobody_opened_and_what_moved_wait_for_their_turn(self):
        self.assertNotIn("enqueue", self.due(500))
        a, b = self.worker(), self.worker(attempt=2)  # one is killed, one drains
        self.feed(501, a.open, b.open, b.sealer.seal(MOVED))
        self.assertNotIn("enqueue", self.due(1000))

    def test_c6_what_moved_last_waits_for_its_turn_though_it_made_room(self):
        a = self.worker(attempt=9)
        self.feed(1, a.open, a.sealer.seal(MOVED))
        for attempt in range(1, 5):  # killed workers, whose opens come late
            self.feed(1, self.worker(attempt=attempt).open)
        self.assertNotIn("enqueue", self.due(500))

    def test_c2_frames_that_come_before_their_open_wait_for_it(self):
        a = self.worker()
        self.assertEqual(self.feed(1, a.data(0, WORDS), a.finish(WORDS)), [])
        self.assertEqual([e.kind for e in self.feed(2, a.open)], ["opened", "pieces", "done"])

    def test_c6_after_a_lost_reply_queue_the_same_request_is_sealed_again(self):
        a = self.worker()
        self.feed(1, a.open, a.data(0, WORDS[:2]))
        self.inquiry.queue_lost(10)
        self.assertEqual((self.due(15.9), self.due(16)), ([], ["waiting", "enqueue"]))
        (one, content, root), (two, again, other) = (
            worker.open_request(frame, KEY) for frame in self.copies
        )
        self.assertEqual((one, content), (two, again), "same id, seed and expires_at")
        self.assertNotEqual(self.copies[0][24:56], self.copies[1][24:56], "another salt")
        self.assertNotEqual(root, other)

    def test_c6_a_reply_that_goes_on_is_not_asked_for_again(self):
        a = self.worker()
        self.feed(1, a.open, a.data(0, WORDS[:2]))
        self.inquiry.queue_lost(10)
        self.feed(11, a.sealer.seal(HEARTBEAT))
        self.assertNotIn("enqueue", self.due(40))

    def test_c6_frames_after_a_hole_are_heard_once_and_their_end_is_asked_for_again(self):
        a = self.worker()
        self.feed(1, a.open)
        a.data(0, WORDS[:1])  # lost with the reply queue
        self.inquiry.queue_lost(10)
        for second in range(10, 16):
            kept = a.data(1, WORDS[1:2])
            self.feed(second, kept)
        self.assertNotIn("enqueue", [k for t in range(16, 30) for k in self.due(t)])
        self.inquiry.queue_lost(30)
        for second in range(30, 36):
            self.feed(second, a.open, kept)
        self.assertIn("enqueue", self.due(36), "what is repeated is no sign of life")

    def test_c6_a_broken_end_is_asked_for_again_until_something_is_heard(self):
        a = self.worker()
        self.feed(10, a.open, a.finish(WORDS))
        self.assertEqual(
            [self.due(t) for t in (15.9, 16, 27.9, 28)], [[], ["enqueue"], ["waiting"], ["enqueue"]]
        )
        self.feed(29, self.worker(1).open)
        self.assertNotIn("enqueue", [k for t in range(30, 900) for k in self.due(t)])

    def test_c6_a_copy_after_silence_doubles_the_waits_after_it(self):
        self.feed(0, self.worker().open)
        self.assertIn("enqueue", self.due(90))
        self.inquiry.queue_lost(90)
        self.assertEqual((self.due(101.9), self.due(102)), ([], ["enqueue"]))

    def test_c6_all_waits_count_from_when_replies_can_be_heard_again(self):
        self.inquiry.queue_lost(10)
        self.inquiry.listening = 12
        self.assertNotIn("enqueue", self.due(17.9))
        self.assertIn("enqueue", self.due(18))

    def test_c6_a_final_with_a_gap_is_waited_for_and_then_asked_for_again(self):
        a = self.worker()
        lost = a.data(0, WORDS[:1])
        self.feed(10, a.open)
        self.feed(20, a.finish(WORDS[:1]))
        self.assertEqual((self.due(25.9), self.due(26), self.due(34)), ([], ["enqueue"], []))
        self.assertEqual([e.kind for e in self.feed(35, lost)], ["pieces", "done", "control"])

    def test_c6_a_final_whose_counts_do_not_agree_is_asked_for_again(self):
        a = self.worker()
        self.feed(10, a.open)
        self.feed(20, a.finish(WORDS))
        self.assertEqual((self.due(25.9), self.due(26)), ([], ["enqueue"]))

    def test_c6_a_gap_before_the_final_is_waited_for(self):
        a = self.worker()
        late, beat = a.data(0, WORDS[:1]), a.sealer.seal(HEARTBEAT)
        self.feed(10, a.open, beat)
        self.assertNotIn("enqueue", [k for t in range(11, 60) for k in self.due(t)])
        self.assertEqual([e.kind for e in self.feed(60, late)], ["pieces"])

    def test_c6_a_request_is_enqueued_at_most_three_times_more_at_growing_distances(self):
        self.inquiry.queue_lost(10)
        events = [
            (t, e) for t in range(10, 200) for e in self.inquiry.due(t) if e.kind == "enqueue"
        ]
        self.assertEqual([t for t, _ in events], [16, 28, 52])
        self.assertEqual([e.value.again for _, e in events], [1, 2, 3])

    def test_c6_a_request_that_is_over_waits_for_nothing(self):
        a = self.worker()
        self.feed(1, a.open, a.data(0, WORDS), a.finish(WORDS))
        self.inquiry.queue_lost(2)
        self.assertEqual(self.due(60), [])

    def again(self) -> tuple[Attempt, Attempt]:
        """Opens the streams of both copies and feeds two pieces of the first."""
        a = self.worker()
        self.feed(1, a.open, a.data(0, WORDS[:2]), reply_to="a")
        self.inquiry.queue_lost(2)
        self.due(8)
        b = self.worker(1, opened_at=500)
        self.feed(8, b.open, reply_to="b")
        return a, b

    def test_c6_both_copies_give_each_piece_once(self):
        a, b = self.again()
        events = self.feed(9, b.data(0, WORDS[:4]), a.data(2, WORDS[2:]), b.data(4, WORDS[4:]))
        self.assertEqual([p for e in events for p in e.value], WORDS[2:])
        self.assertEqual(self.feed(10, b.finish(WORDS), reply_to="b")[0].kind, "done")

    def test_c6_the_later_enqueue_outranks_whatever_its_attempt_and_time(self):
        _, b = self.again()
        late = self.worker(0, attempt=9, opened_at=9000)
        events = self.feed(9, late.open, b.data(0, [token(99, "x")]), late.data(0, WORDS[:1]))
        self.assertEqual([e.kind for e in events], ["opened", "control", "restarted", "pieces"])

    def test_c6_the_worker_of_a_later_copy_is_sent_what_is_there(self):
        self.again()
        b = self.worker(1, attempt=1 << 16 | 1)
        letter = self.feed(9, b.open, reply_to="b")[1].value
        self.assertEqual((letter.kind, letter.key, letter.root), (RESUME, "b", b.root))

    def test_c6_each_control_frame_is_sealed_for_the_copy_that_its_worker_took(self):
        a, b = self.again()
        resume = self.feed(9, self.worker(0, attempt=2).open, reply_to="c")[1].value
        self.inquiry.merge.over = True
        cancels = [e.value for e in self.inquiry.merge.cancels()]
        self.assertEqual([c.key for c in cancels], ["a", "b", "c"])
        for letter, copy in [(resume, 0), *zip(cancels, (0, 1, 0))]:
            _, _, root = worker.open_request(self.copies[copy], KEY)
            frame = seal_control(letter.root, bytes(32), ID, letter.kind, letter.content)
            self.assertEqual(worker.open_control(frame, root), (letter.kind, letter.content))

    def test_c6_a_copy_that_nobody_opened_is_cancelled_too(self):
        a = self.worker()
        self.inquiry.queue_lost(2)
        self.due(8)
        events = self.feed(8, a.open, a.data(0, WORDS), a.finish(WORDS))
        self.assertEqual(events[-1].value, (CANCEL, b"", None, self.inquiry.merge.roots[1]))
        b = self.worker(1)
        self.assertEqual(self.feed(9, b.open, reply_to="b")[0].value.root, b.root)

    def test_c6_an_open_of_another_request_fits_no_enqueue(self):
        self.again()
        self.assertEqual(self.feed(9, Attempt(root=bytes(32)).open), [])
        self.assertEqual(len(self.inquiry.merge.streams), 2)
