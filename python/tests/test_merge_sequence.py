"""Tests of rule C2: early, late, repeated and forged frames."""

from __future__ import annotations

import unittest

from nsbridge.constants import FINAL_OK, HEARTBEAT, MAX_AHEAD, MAX_EARLY_BYTES, MOVED
from nsbridge.merge import Merge, text_replay_key
from worker import ID, ROOT, WORDS, Attempt, Replay, forged


class Sequence(unittest.TestCase):
    """Rule C2."""

    def setUp(self):
        self.replay = Replay()

    def letters(self) -> list[tuple]:
        return [(e.value.kind, e.value.key) for e in self.replay.events if e.kind == "control"]

    def test_c2_heartbeats_and_repeats_give_nothing(self):
        a = Attempt()
        beat, one, two = a.sealer.seal(HEARTBEAT), a.data(0, WORDS[:2]), a.data(2, WORDS[2:3])
        kinds = self.replay.feed(a.open, beat, beat, one, one, a.open, two, a.finish(WORDS[:3]))
        self.assertEqual(kinds, ["opened", "pieces", "pieces", "done"])
        self.assertEqual(self.replay.given, WORDS[:3])

    def test_c2_a_late_frame_is_a_gap_until_it_comes(self):
        a = Attempt()
        one, two, end = a.data(0, WORDS[:1]), a.data(1, WORDS[1:2]), a.finish(WORDS[:2])
        self.assertEqual(self.replay.feed(a.open, two, end), ["opened"])
        self.assertTrue(self.replay.merge.streams[a.sealer.stream_id].gap)
        self.assertEqual(self.replay.feed(one), ["pieces", "pieces", "done"], "kept for their turn")
        self.assertEqual(self.replay.feed(two, end), [])

    def test_c2_a_forged_early_frame_takes_no_place_and_makes_no_gap(self):
        a = Attempt()
        one, two = a.data(0, WORDS[:1]), a.data(1, WORDS[1:2])
        false = forged(two)
        self.replay.feed(a.open)
        self.assertEqual(self.replay.feed(false), [])
        self.assertFalse(self.replay.merge.streams[a.sealer.stream_id].gap)
        self.replay.feed(two, false)
        self.replay.feed(one)
        self.assertEqual(self.replay.given, WORDS[:2])

    def reply(self, attempt: Attempt) -> list[bytes]:
        """Returns the frames after an open: data, heartbeat, data, end."""
        frames = [
            attempt.data(0, WORDS[:2]),
            attempt.sealer.seal(HEARTBEAT),
            attempt.data(2, WORDS[2:]),
        ]
        return [*frames, attempt.finish(WORDS)]

    def check_each_piece_is_shown_once(self, *frames: bytes, what: object):
        """Checks that the caller gets each piece once, whatever forged frames come too."""
        self.replay = Replay()
        kinds = self.replay.feed(*frames)
        self.assertEqual(kinds, ["opened", "pieces", "pieces", "done"], what)
        self.assertEqual(self.replay.given, WORDS, what)

    def test_c2_a_forged_frame_among_early_ones_takes_nothing_away(self):
        for turn in (1, -1):  # in the order of sending, and reversed
            for at in range(5):
                for of in range(4):
                    a = Attempt()
                    frames = self.reply(a)
                    false = forged(frames[of])
                    early = frames[::turn]
                    early.insert(at, false)
                    what = f"number {of + 1} forged, at {at}, {turn}"
                    self.check_each_piece_is_shown_once(*early, a.open, what=what)

    def test_c2_forged_frames_of_each_number_ahead_of_the_true_ones_take_no_place(self):
        a = Attempt()
        frames = self.reply(a)
        false = [forged(frame) for frame in frames]
        false += [frame[:6] + bytes([FINAL_OK]) + frame[7:] for frame in frames[:3]]
        false += [frame[:48] for frame in frames] + [
            frames[0][:40] + bytes(7) + b"\t" + frames[0][48:]
        ]
        self.check_each_piece_is_shown_once(*false, *frames, *false, a.open, what="the open last")
        a = Attempt()
        frames = self.reply(a)
        false = [forged(frame) for frame in frames] * 2
        self.check_each_piece_is_shown_once(
            a.open, *false, *frames[1:], *false, frames[0], what="a gap"
        )

    def test_c2_a_forged_frame_among_those_ahead_of_their_turn_takes_nothing_away(self):
        for turn in (1, -1):
            for at in range(4):
                for of in range(4):
                    a = Attempt()
                    first, *frames = self.reply(a)
                    false = forged([first, *frames][of])
                    ahead = frames[::turn]
                    ahead.insert(at, false)
                    what = f"number {of + 1} forged, at {at}, {turn}"
                    self.check_each_piece_is_shown_once(a.open, *ahead, first, what=what)

    def test_c2_a_forged_open_takes_no_early_frames_along(self):
        a = Attempt()
        other = Attempt().open
        as_if = other[:24] + a.open[24:40] + other[40:]  # another stream's frame, this one's id
        early = [forged(a.open), *self.reply(a), forged(a.open), as_if, a.open[:100]]
        self.check_each_piece_is_shown_once(*early, a.open, what="forged opens")

    def test_c2_what_waits_for_an_open_is_bounded(self):
        stranger, merge = Attempt(root=bytes(32)), self.replay.merge
        for _ in range(2 * MAX_AHEAD):
            self.assertEqual(self.replay.feed(stranger.sealer.seal(HEARTBEAT)), [])
        self.assertEqual(len(merge.early), MAX_AHEAD)
        for size in (64 << 10, 100 << 10, 2 << 20):
            for _ in range(40):
                self.replay.feed(stranger.data(0, [bytes(size)]))
                self.assertLessEqual(sum(map(len, merge.early)), 1 << 20)
        a = Attempt()
        self.assertEqual(
            self.replay.feed(*self.reply(a), a.open), ["opened", "pieces", "pieces", "done"]
        )

    def test_c2_an_open_leaves_the_early_frames_of_others(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(
            b.data(0, WORDS[:2]), a.data(0, WORDS[:1]), b.data(2, WORDS[2:]), b.finish(WORDS)
        )
        self.assertEqual(self.replay.feed(a.open), ["opened", "pieces"])
        self.assertEqual(self.replay.feed(b.open)[2:5], ["pieces", "pieces", "done"])
        self.assertEqual(self.replay.given, WORDS)

    def test_c2_early_frames_of_a_cancelled_request_are_dropped(self):
        a = Attempt()
        self.replay.feed(a.data(0, WORDS))
        self.replay.merge.over = True
        self.assertEqual(self.replay.feed(a.open), ["control"])
        self.assertEqual(self.replay.merge.early, [])

    def test_c2_nothing_of_a_stale_stream_waits_for_its_turn(self):
        a, stale = Attempt(), Attempt(2)
        self.replay.feed(a.open, stale.open, stale.data(3, WORDS[3:]))
        stale.sealer.seq += 1
        self.replay.feed(stale.data(3, WORDS[3:]), stale.finish(WORDS))
        self.assertFalse(self.replay.merge.streams[stale.sealer.stream_id].gap)

    def test_c2_a_full_window_of_early_frames_is_read(self):
        a = Attempt()
        beats = [a.sealer.seal(HEARTBEAT) for _ in range(MAX_AHEAD - 4)]
        a_reply = self.reply(a)
        self.check_each_piece_is_shown_once(*a_reply, *beats, a.open, what="256 frames")

    def test_c2_an_early_frame_that_is_repeated_takes_one_place(self):
        a = Attempt()
        frames = self.reply(a)
        repeats = frames[:1] * MAX_AHEAD
        self.check_each_piece_is_shown_once(*frames, *repeats, a.open, what="repeats")

    def test_c2_frames_that_nothing_can_come_of_do_not_wait_for_an_open(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(
            b.data(0, WORDS), a.open, a.data(0, WORDS), a.finish(WORDS), b.finish(WORDS)
        )
        self.assertEqual(self.replay.merge.early, [])
        self.assertEqual(self.replay.feed(b.open), ["control"])

    def test_what_came_of_a_frame_outlives_what_fails_after_it(self):
        a, b, broken = Attempt(1), Attempt(2), False

        def replay_key(piece: bytes) -> bytes:
            if broken:
                raise LookupError
            return piece

        merge = self.replay.merge = Merge(ID, [ROOT], replay_key)
        self.replay.feed(a.open, a.data(0, WORDS[:1]), b.data(0, WORDS[:3]))
        broken = True
        self.assertRaises(LookupError, self.replay.feed, b.open)
        broken = False
        kinds = self.replay.feed(a.data(1, WORDS[1:2]), reply_to="a")
        self.assertEqual(kinds, ["opened", "control", "pieces"])
        self.assertEqual(self.replay.feed(b.data(3, WORDS[3:])), [], "a part of it was not read")
        self.replay.feed(a.data(2, WORDS[2:]), a.finish(WORDS))
        self.assertEqual((self.replay.given, merge.over), (WORDS, True))

    def test_json_that_is_nested_too_deep_is_nonsense_like_any_other(self):
        a, b, deep = Attempt(1), Attempt(2), b"[" * 60_000
        early = a.data(0, WORDS[:1]), a.sealer.seal(FINAL_OK, deep)
        self.assertEqual(self.replay.feed(*early, a.open), ["opened", "pieces"])
        self.assertEqual(self.replay.merge.broken_end, 1)
        frames = b.data(0, [deep]), b.open
        self.assertEqual(self.replay.feed(*frames)[:2], ["opened", "control"])
        self.assertEqual(self.replay.given, [deep])
        self.assertEqual(text_replay_key(deep), deep)

    def test_c2_a_frame_that_is_larger_than_the_room_for_early_ones_takes_none_of_it(self):
        a = Attempt()
        frames = self.reply(a)
        large = frames[0][:48] + bytes(MAX_EARLY_BYTES)
        self.check_each_piece_is_shown_once(*frames, large, a.open, what="a large one")

    def test_c2_what_follows_the_end_of_a_stream_takes_no_room(self):
        a = Attempt()
        data, end = a.data(0, WORDS[:1]), a.sealer.seal(MOVED)
        self.replay.feed(a.open, data, end)
        merge = self.replay.merge
        heard = merge.heard
        self.assertEqual(self.replay.feed(data, end, a.open, a.data(1, WORDS[1:])), [])
        self.assertEqual((merge.heard, merge.early, len(merge.streams)), (heard, [], 1))

    def test_c2_a_repeated_frame_is_no_sign_of_life(self):
        a = Attempt()
        read, _lost, kept = (a.data(i, WORDS[i : i + 1]) for i in range(3))
        self.replay.feed(a.open, read, kept)
        self.assertEqual(self.replay.merge.heard, 3)
        self.replay.feed(a.open, read, kept)
        self.assertEqual(self.replay.merge.heard, 3)

    def test_c2_the_end_has_a_place_though_no_other_frame_has(self):
        a, merge = Attempt(), self.replay.merge
        a.data(0, WORDS[:1])  # lost
        beats = [a.sealer.seal(HEARTBEAT) for _ in range(MAX_AHEAD + 1)]
        self.replay.feed(a.open, *beats)
        self.assertEqual((merge.heard, merge.broken_end), (1 + MAX_AHEAD, False))
        self.replay.feed(a.finish(WORDS))
        self.assertEqual((merge.heard, merge.broken_end), (2 + MAX_AHEAD, True))

    def test_c2_a_stale_stream_is_read_for_its_end_alone(self):
        a = Attempt(2)
        self.replay.feed(a.open, a.data(3, WORDS[3:]))
        self.assertTrue(self.replay.merge.held)
        self.assertEqual(self.replay.feed(a.data(0, WORDS), a.sealer.seal(MOVED)), [])
        self.assertFalse(self.replay.merge.held)

    def test_c2_what_waits_for_its_turn_is_bounded(self):
        a = Attempt()
        late = a.data(0, WORDS[:1])
        early = [a.sealer.seal(HEARTBEAT) for _ in range(MAX_AHEAD + 1)]
        self.replay.feed(a.open, *early)
        stream = self.replay.merge.streams[a.sealer.stream_id]
        self.assertEqual(len(stream.ahead), MAX_AHEAD)
        self.assertEqual(self.replay.feed(late), ["pieces"], "the one whose turn it is has a place")
