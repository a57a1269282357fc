"""Tests of rules C3 to C5: pieces of several attempts, and ends."""

from __future__ import annotations

import unittest

import worker
from nsbridge.constants import DATA, FINAL_ERROR, FINAL_OK, MOVED, PIECES, PLAIN
from nsbridge.frames import write_pieces
from nsbridge.stream import STALE
from worker import ID, WORDS, Attempt, Replay, token


class Merging(unittest.TestCase):
    """Rules C3 to C5."""

    def setUp(self):
        self.replay = Replay()

    def letters(self) -> list[tuple]:
        return [(e.value.kind, e.value.key) for e in self.replay.events if e.kind == "control"]

    def test_c3_an_attempt_that_starts_over_gives_each_piece_once(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, a.data(0, WORDS[:3]), b.open)
        again = [token(i, f"w{i} ", logprob=-0.5) for i in range(6)]  # not part of the replay key
        self.assertEqual(self.replay.feed(b.data(0, again[:2])), [])
        self.assertEqual(self.replay.feed(b.data(2, again[2:])), ["pieces"])
        self.assertEqual(self.replay.given, WORDS[:3] + again[3:])
        self.assertEqual(self.replay.feed(b.finish(again))[0], "done", "its own bytes count")

    def test_c3_a_stream_that_starts_past_the_pieces_is_stale(self):
        a = Attempt()
        self.assertEqual(
            self.replay.feed(a.open, a.data(1, WORDS[1:]), a.finish(WORDS)), ["opened"]
        )

    def test_c3_a_stream_that_leaves_pieces_out_is_stale(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, a.data(0, WORDS[:4]), b.open, b.data(0, WORDS[:1]))
        self.assertEqual(self.replay.feed(b.data(2, WORDS[2:])), [])
        self.assertEqual(self.replay.given, WORDS[:4])

    def test_c3_a_frame_without_sense_ends_its_stream_and_loses_nothing(self):
        a, b = Attempt(1), Attempt(2)
        one = a.data(0, WORDS[:1])
        nonsense = a.sealer.seal(DATA, b"\0\0", PIECES)
        self.assertEqual(self.replay.feed(a.open, nonsense, one), ["opened", "pieces"])
        self.assertEqual(self.replay.feed(a.data(1, WORDS[1:])), [], "it is stale")
        self.assertEqual(
            self.replay.feed(b.open, b.data(0, WORDS), b.finish(WORDS))[-2:], ["done", "control"]
        )

    def test_c4_a_disagreeing_later_attempt_restarts(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, a.data(0, WORDS[:4]), b.open)
        other = [WORDS[0], token(99, "x"), token(98, "y"), token(97, "z")]
        self.assertEqual(self.replay.feed(b.data(0, other)), ["restarted", "pieces"])
        self.assertEqual((self.replay.events[0].value, self.replay.given), (1, other))
        self.assertEqual(self.replay.feed(a.data(4, WORDS[4:])), [], "the first is stale")
        self.assertEqual(self.replay.feed(b.finish(other))[0], "done")

    def test_c4_a_disagreeing_earlier_attempt_is_stale(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, b.open, b.data(0, WORDS[:4]))
        self.assertEqual(self.replay.feed(a.data(0, [token(99, "x")])), [])
        self.assertEqual(self.replay.feed(a.finish([token(99, "x")])), [])
        self.assertEqual(self.replay.given, WORDS[:4])

    def test_c4_attempts_of_one_number_rank_by_when_they_opened(self):
        a, b = Attempt(1, opened_at=2000), Attempt(1, opened_at=1000)
        kinds = self.replay.feed(a.open, a.data(0, WORDS[:1]), b.open)
        self.assertEqual(kinds, ["opened", "pieces", "opened"])
        self.assertEqual(self.replay.feed(b.data(0, [token(99, "x")])), [])

    def test_c4_a_higher_attempt_that_has_not_spoken_is_not_silenced_by_others(self):
        a, b, c = Attempt(1), Attempt(2), Attempt(3)
        other = [WORDS[0], token(99, "x")]
        self.replay.feed(a.open, b.open, c.open, a.data(0, WORDS[:4]))
        self.assertEqual(self.replay.feed(b.data(0, other)), ["restarted", "pieces"])
        self.assertEqual(self.replay.feed(c.data(0, WORDS)), ["restarted", "pieces"])
        self.assertEqual(self.replay.feed(c.finish(WORDS))[0], "done")

    def test_c4_what_a_higher_attempt_agrees_with_stands(self):
        a, b, c = Attempt(1), Attempt(2), Attempt(3)
        self.replay.feed(a.open, b.open, c.open, a.data(0, WORDS[:4]), c.data(0, WORDS[:4]))
        self.assertEqual(self.replay.feed(b.data(0, [WORDS[0], token(99, "x")])), [])
        self.assertEqual(self.replay.given, WORDS[:4])

    def test_c4_a_stream_that_moved_agrees_with_nothing(self):
        a, b, c = Attempt(1), Attempt(2), Attempt(3)
        self.replay.feed(a.open, b.open, c.open, a.data(0, WORDS[:4]), c.data(0, WORDS[:4]))
        self.replay.feed(c.sealer.seal(MOVED))
        other = [WORDS[0], token(99, "x")]
        self.assertEqual(self.replay.feed(b.data(0, other)), ["restarted", "pieces"])

    def test_c3_a_data_frame_of_another_content_type_makes_its_stream_stale(self):
        a = Attempt()
        plain = a.sealer.seal(DATA, write_pieces(0, WORDS[:1]), PLAIN)
        self.assertEqual(self.replay.feed(a.open, plain, a.data(0, WORDS)), ["opened"])
        self.assertEqual(self.replay.merge.streams[a.sealer.stream_id].state, STALE)

    def test_c5_an_end_that_cannot_be_read_is_one_whose_counts_do_not_agree(self):
        counts = {"chunks": 0, "pieces": 0, "bytes": 0}
        failure = {"code": "poison", "message": "m"}
        bodies = [
            (FINAL_OK, worker.compact({**counts, **more}))
            for more in (
                {"chunks": None},
                {"chunks": 0.0},
                {"pieces": False},
                {"finish_reason": 1},
                {"usage": []},
                {"usage": {"input_tokens": "1"}},
            )
        ]
        bodies += [
            (FINAL_ERROR, worker.compact({**failure, **more}))
            for more in ({"code": ["poison"]}, {"message": None}, {"chunks": "1"})
        ]
        bodies += [
            (kind, text)
            for kind in (FINAL_OK, FINAL_ERROR)
            for text in (b"", b"{", b"[1]", b"\xff")
        ]
        for kind, body in bodies:
            a, replay = Attempt(), Replay()
            self.assertEqual(replay.feed(a.open, a.sealer.seal(kind, body)), ["opened"], body)
            self.assertTrue(replay.merge.broken_end)
            replay.merge.enqueued(bytes(32))
            self.assertFalse(replay.merge.broken_end, "until another comes")
        for kind, body in ((FINAL_OK, counts), (FINAL_ERROR, failure)):
            a, replay = Attempt(), Replay()
            replay.feed(a.open, a.sealer.seal(kind, worker.compact(body), PIECES))
            self.assertTrue(replay.merge.broken_end, "its content type does not fit its kind")

    def test_c6_the_highest_stream_that_ends_stale_is_a_broken_end_however_it_ends(self):
        failure = worker.compact({"code": "cancelled", "message": "m"})
        for fails in (False, True):
            a, b, replay = Attempt(1), Attempt(2), Replay()
            replay.feed(a.open, b.open, a.data(9, WORDS), b.data(9, WORDS))
            for attempt, broken in ((a, False), (b, True)):
                end = attempt.sealer.seal(FINAL_ERROR, failure) if fails else attempt.finish(WORDS)
                self.assertEqual((replay.feed(end), replay.merge.broken_end), ([], broken))

    def test_c4_an_end_that_does_not_fit_agrees_with_nothing(self):
        a, b, c = Attempt(1), Attempt(2), Attempt(3)
        other = [WORDS[0], token(99, "x")]
        self.replay.feed(a.open, b.open, c.open, a.data(0, WORDS[:4]), c.finish(WORDS, bytes=0))
        self.assertEqual(self.replay.feed(b.data(0, other)), ["restarted", "pieces"])

    def test_c6_the_holder_that_ended_stale_is_a_broken_end(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, a.data(0, WORDS[:1]), b.open, b.data(3, WORDS[3:]))
        self.assertEqual(self.replay.merge.broken_end, 0)
        self.replay.feed(b.finish(WORDS))
        self.assertEqual(self.replay.merge.broken_end, 1)

    def test_c6_a_broken_end_is_not_forgotten_with_a_stream_that_made_room(self):
        a, others = Attempt(9), [Attempt(number) for number in range(1, 5)]
        self.replay.feed(a.open, a.finish(WORDS, chunks=1), *(o.open for o in others))
        self.assertNotIn(a.sealer.stream_id, self.replay.merge.streams)
        self.assertEqual(self.replay.merge.broken_end, 1)

    def test_c6_a_stale_end_below_what_moved_is_none(self):
        a, others = Attempt(9), [Attempt(number) for number in range(1, 5)]
        self.replay.feed(a.open, a.sealer.seal(MOVED), *(o.open for o in others))
        self.replay.feed(others[3].data(3, WORDS[3:]), others[3].finish(WORDS))
        self.assertEqual(self.replay.merge.broken_end, 0)

    def test_c4_a_later_attempt_that_ends_sooner_restarts(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, a.data(0, WORDS[:4]), b.open, b.data(0, WORDS[:2]))
        self.assertEqual(self.replay.feed(b.finish(WORDS[:2]))[:2], ["restarted", "done"])
        self.assertEqual(self.replay.given, WORDS[:2])

    def test_c5_counts_that_do_not_agree_are_no_end(self):
        for wrong in ({"chunks": 2}, {"pieces": 3}, {"bytes": 1}, {"pieces": None}):
            a, b, replay = Attempt(1), Attempt(2), Replay()
            replay.feed(a.open, a.data(0, WORDS[:2]))
            self.assertEqual(replay.feed(a.finish(WORDS[:2], **wrong)), [])
            self.assertEqual(replay.merge.broken_end, 1)
            replay.feed(b.open, b.data(0, WORDS))
            self.assertEqual(replay.feed(b.finish(WORDS)), ["done"], "another may end it")

    def test_c5_a_resume_of_everything_may_be_followed_by_the_end(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, a.data(0, WORDS), b.open)
        self.assertEqual(self.replay.feed(b.finish(WORDS))[0], "done")

    def test_c5_a_failure_of_any_code_ends_the_request(self):
        a = Attempt()
        body = {"code": "not-known-yet", "message": "m", "chunks": 0}
        self.assertEqual(
            self.replay.feed(a.open, a.sealer.seal(FINAL_ERROR, worker.compact(body))),
            ["opened", "failed"],
        )
        self.assertEqual(self.replay.events[1].value["code"], "not-known-yet")

    def test_c5_the_end_of_a_stale_stream_is_no_end(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, b.open, b.data(0, WORDS[:2]), a.data(0, [token(99, "x")]))
        body = {"code": "cancelled", "message": "m", "chunks": 1}
        self.assertEqual(self.replay.feed(a.sealer.seal(FINAL_ERROR, worker.compact(body))), [])

    def test_c5_a_moved_stream_leaves_the_rest_to_the_next(self):
        a, b = Attempt(1), Attempt(2)
        self.assertEqual(
            self.replay.feed(a.open, a.data(0, WORDS[:2]), a.sealer.seal(MOVED)),
            ["opened", "pieces", "moved"],
        )
        self.replay.feed(b.open)
        self.assertEqual(
            self.replay.feed(b.data(2, WORDS[2:]), b.finish(WORDS)), ["pieces", "done"]
        )

    def test_a_hint_changes_nothing(self):
        a = Attempt()
        hint = b"NSBE\x01\x00\x00\x0b" + ID
        self.assertEqual(
            self.replay.feed(a.open, hint, a.data(0, WORDS)), ["opened", "hint", "pieces"]
        )
        self.assertEqual(self.replay.feed(b"NSBE\x01\x00\x00\x0b" + bytes(16)), [])
