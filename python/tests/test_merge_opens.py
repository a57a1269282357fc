"""Tests of rule C1: opens, and the attempts that a client follows."""

from __future__ import annotations

import json
import unittest

import worker
from nsbridge.constants import CANCEL, MAX_GONE, MAX_STREAMS, MOVED, OPEN, PIECES, RESUME
from nsbridge.frames import read_pieces
from worker import ROOT, WORDS, Attempt, Replay, token


class Opens(unittest.TestCase):
    """Rule C1."""

    def setUp(self):
        self.replay = Replay()

    def letters(self) -> list[tuple]:
        return [(e.value.kind, e.value.key) for e in self.replay.events if e.kind == "control"]

    def test_c1_a_second_attempt_is_sent_what_is_there_and_goes_on(self):
        a, b = Attempt(1), Attempt(2, opened_at=2000)
        self.replay.feed(a.open, a.data(0, WORDS[:3]))
        self.assertEqual(self.replay.feed(b.open, reply_to="b"), ["opened", "control"])
        kind, content, key, root = self.replay.events[1].value
        length = int.from_bytes(content[:4], "big")
        self.assertEqual(json.loads(content[4 : 4 + length]), {"fingerprint": "00" * 16, "n": 3})
        self.assertEqual((kind, key, root), (RESUME, "b", ROOT))
        self.assertEqual(read_pieces(content[4 + length :]), (0, WORDS[:3]))
        self.assertEqual(
            self.replay.feed(b.data(3, WORDS[3:]), b.finish(WORDS), reply_to="b"),
            ["pieces", "done", "control"],
        )
        self.assertEqual(self.replay.given, WORDS)
        self.assertEqual(self.letters(), [(CANCEL, "control")], "the first may still run")

    def test_c1_a_first_attempt_is_sent_nothing(self):
        a = Attempt(1)
        self.replay.feed(a.open, a.data(0, WORDS[:3]))
        self.assertEqual(self.replay.feed(Attempt(1).open), ["opened"], "it waits for nothing")

    def test_c1_an_attempt_after_the_first_is_told_what_is_here_though_it_is_nothing(self):
        for number in (2, 1 << 16 | 1):
            self.assertEqual(self.replay.feed(Attempt(number).open), ["opened", "control"])
            header = b'{"fingerprint":null,"n":0}'
            resume = len(header).to_bytes(4, "big") + header + bytes(4)
            self.assertEqual(self.replay.events[1].value, (RESUME, resume, "control", ROOT))

    def test_c1_a_resume_names_the_arithmetic_that_made_the_last_piece(self):
        a, b = Attempt(1), Attempt(2, fingerprint="11" * 16)
        self.replay.feed(
            a.open, b.open, a.data(0, WORDS[:3]), b.data(0, WORDS[:2]), Attempt(3).open
        )
        self.assertIn(b'"00000000', self.replay.events[-1].value.content, "b only agreed")
        self.replay.feed(b.data(2, WORDS[2:4]), Attempt(4).open)
        self.assertIn(b'"11111111', self.replay.events[-1].value.content)

    def test_c3_an_attempt_that_goes_on_from_another_workers_pieces_is_not_believed(self):
        a, b, c = Attempt(1), Attempt(2, fingerprint="11" * 16), Attempt(3)
        other = [token(i, f"v{i} ") for i in range(6)]
        self.replay.feed(a.open, b.open, a.data(0, WORDS[:3]), b.data(0, other[:3]), c.open)
        self.assertEqual(self.replay.feed(c.data(3, WORDS[3:])), [], "an older resume was repeated")
        self.replay.feed(b.data(3, other[3:]), b.finish(other))
        self.assertEqual(self.replay.merge.pieces, other)

    def test_c1_an_open_after_the_end_is_answered_by_a_cancel(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, a.data(0, WORDS), a.finish(WORDS))
        self.assertEqual(self.replay.feed(b.open, reply_to="b"), ["control"])
        self.assertEqual(self.replay.events[0].value, (CANCEL, b"", "b", ROOT))

    def test_c1_two_live_attempts_interleave(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, b.open, a.data(0, WORDS[:2]), b.data(0, WORDS[:4]))
        self.replay.feed(a.data(2, WORDS[2:5]), b.data(4, WORDS[4:]))
        self.assertEqual(
            self.replay.feed(a.data(5, WORDS[5:]), a.finish(WORDS))[-2:], ["done", "control"]
        )
        self.assertEqual(self.replay.given, WORDS)

    def test_c1_after_many_killed_workers_the_next_is_still_heard(self):
        for number in range(1, 9):
            a = Attempt(number)
            self.replay.feed(a.open, a.data(0, WORDS[:2]))
        self.assertLessEqual(len(self.replay.merge.streams), MAX_STREAMS)
        self.assertEqual(self.replay.feed(a.finish(WORDS[:2]))[0], "done")

    def test_c1_a_fifth_stream_takes_the_place_of_the_least(self):
        attempts = [Attempt(number) for number in (1, 2, 3, 4, 5, 6)]
        self.replay.feed(*(a.open for a in attempts[:4]), attempts[3].sealer.seal(MOVED))
        for a in attempts[4:]:
            self.replay.feed(a.open)
        followed = [s.rank[1] for s in self.replay.merge.streams.values()]
        self.assertEqual(followed, [2, 3, 5, 6], "first what has ended, then the lowest rank")

    def test_c1_a_fifth_stream_takes_the_place_of_a_stale_one_and_never_its_own(self):
        attempts = [Attempt(number) for number in (2, 3, 4, 5)]
        self.replay.feed(*(a.open for a in attempts), attempts[3].data(3, WORDS[3:]))
        self.replay.feed(Attempt(6).open, Attempt(1).open)
        followed = [s.rank[1] for s in self.replay.merge.streams.values()]
        self.assertEqual(followed, [3, 4, 6, 1])

    def test_c1_a_bounded_number_of_streams_and_workers_is_remembered(self):
        for number in range(1, 101):
            self.replay.feed(Attempt(number).open, reply_to=f"w{number}")
        merge = self.replay.merge
        self.assertEqual(len(merge.gone), MAX_GONE)
        self.assertEqual([e.value.key for e in merge.cancels()], [f"w{n}" for n in range(93, 101)])

    def test_c1_a_worker_whose_stream_ended_takes_no_place_of_one_that_runs(self):
        self.replay.feed(Attempt(1).open, reply_to="first")
        for number in range(2, 20):
            a = Attempt(number)
            self.replay.feed(a.open, a.sealer.seal(MOVED))
        self.assertEqual([e.value.key for e in self.replay.merge.cancels()], ["first"])

    def test_c1_a_repeated_frame_tells_nothing_of_where_its_worker_is(self):
        a = Attempt()
        data = a.data(0, WORDS[:1])
        self.replay.feed(a.open, reply_to="w")
        self.replay.feed(data, data, a.open, Attempt(root=bytes(32)).open, reply_to="x")
        self.assertEqual([e.value.key for e in self.replay.merge.cancels()], ["w"])

    def test_c1_an_open_that_cannot_be_read_is_dropped_and_a_late_one_is_cancelled(self):
        good = {"opened_at_ms": 1, "worker": "w"}
        for body in (
            b"",
            b"{",
            b"[]",
            b"{}",
            b"\xff",
            {**good, "opened_at_ms": "1"},
            {**good, "worker": None},
            {**good, "fingerprint": "no"},
            {**good, "revision": "-"},
        ):
            a, replay = Attempt(2), Replay()
            a.sealer.seq = 0
            frame = a.sealer.seal(OPEN, body if isinstance(body, bytes) else worker.compact(body))
            self.assertEqual(replay.feed(frame), [], body)
            merge = replay.merge
            self.assertEqual((merge.heard, merge.streams, merge.answered), (0, {}, set()))
            merge.over = True
            self.assertEqual(replay.feed(frame), ["control"])
            self.assertEqual(replay.feed(frame), [], "it was told")
        a = Attempt(2)
        a.sealer.seq = 0
        other_type = a.sealer.seal(OPEN, worker.compact(good), PIECES)
        self.assertEqual(self.replay.feed(other_type), [])
        self.replay.merge.over = True
        self.assertEqual(self.replay.feed(other_type), [])

    def test_c1_a_stream_that_made_room_is_not_followed_any_more(self):
        first, *others = [Attempt(number) for number in range(1, 6)]
        self.replay.feed(first.open, first.data(0, WORDS[:2]), reply_to="first")
        self.replay.feed(*(a.open for a in others))
        self.assertEqual(self.replay.feed(first.data(2, WORDS[2:3]), first.open, reply_to="x"), [])
        self.assertEqual(
            self.replay.merge.early, [], "it takes no place of what waits for its open"
        )
        followed = [s.rank[1] for s in self.replay.merge.streams.values()]
        self.assertEqual(followed, [2, 3, 4, 5], "its open sent again changes nothing")
        last = others[-1]
        self.replay.feed(last.data(2, WORDS[2:]), last.finish(WORDS))
        self.assertEqual(self.replay.given, WORDS)
        self.assertIn((CANCEL, "first"), self.letters(), "it may still run")

    def test_c1_an_open_that_names_no_queue_is_answered_to_all_of_the_model(self):
        a, b, c = Attempt(1), Attempt(2), Attempt(3)
        self.replay.feed(a.open, a.data(0, WORDS[:2]))
        self.replay.feed(b.open, reply_to=None)
        self.assertEqual(self.letters(), [(RESUME, None)])
        self.replay.feed(a.data(2, WORDS[2:]), a.finish(WORDS))
        self.assertEqual(self.letters(), [(CANCEL, None)])
        self.replay.feed(c.open, reply_to=None)
        self.assertEqual(self.letters(), [(CANCEL, None)])

    def test_c1_whatever_a_late_open_says_it_is_answered_by_a_cancel(self):
        a, b = Attempt(1), Attempt(2)
        b.sealer.seq = 0
        self.replay.feed(a.open, a.data(0, WORDS), a.finish(WORDS))
        self.assertEqual(self.replay.feed(b.sealer.seal(OPEN, b"nonsense")), ["control"])
