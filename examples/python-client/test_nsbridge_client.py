"""Tests of the client, without a broker.

    python -m unittest -v test_nsbridge_client

The known answers are those of the Rust crates. The other tests simulate a worker, and a broker that
reorders, drops, repeats, changes and splices frames.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import make_vectors as worker
import nsbridge_client as client
from nsbridge_client import (
    CANCEL, DATA, FINAL_ERROR, FINAL_OK, HEARTBEAT, MOVED, OPEN, PIECES, PLAIN, RESUME,
    Failed, Merge, Refused, RequestHead,
)

VECTORS = Path(__file__).resolve().parents[2] / "crates" / "crypto" / "vectors"
ID, ROOT, KEY = bytes([7]) * 16, bytes([1]) * 32, bytes(range(32))


def known(name: str) -> dict:
    return json.loads((VECTORS / name).read_text())


def token(number: int, text: str, **more) -> bytes:
    return worker.compact({"token": number, "text": text, **more})


WORDS = [token(i, f"w{i} ") for i in range(6)]


class Attempt:
    """Worker's stream, whose frames a test can reorder or change."""

    def __init__(self, attempt: int = 1, opened_at: int = 1000, root: bytes = ROOT,
                 fingerprint: str = "00" * 16, request_id: bytes = ID):
        self.root, self.chunks = root, 0
        self.sealer = worker.ReplySealer(root, request_id, attempt, os.urandom(32))
        body = {"opened_at_ms": opened_at, "fingerprint": fingerprint, "worker": "w", "new": 1}
        self.open = self.sealer.seal(OPEN, worker.compact(body))

    def data(self, first: int, pieces: list[bytes]) -> bytes:
        self.chunks += 1
        return self.sealer.seal(DATA, client.write_pieces(first, pieces), PIECES)

    def finish(self, words: list[bytes], **other) -> bytes:
        counts = {"chunks": self.chunks, "pieces": len(words), "bytes": sum(map(len, words))}
        return self.sealer.seal(FINAL_OK, worker.compact({**counts, **other}))


def forged(frame: bytes) -> bytes:
    """Forges a frame as an attacker without a key who can write to the reply queue."""
    return frame[:-1] + bytes([frame[-1] ^ 1])


class Replay:
    """Merge with its results."""

    def __init__(self) -> None:
        self.merge = Merge(ID, [ROOT])
        self.given: list[bytes] = []

    def feed(self, *frames: bytes, reply_to: str = "control") -> list[str]:
        """Returns the kinds of the events; keeps the caller's pieces in `given`."""
        self.events = [e for frame in frames for e in self.merge.feed(frame, reply_to)]
        for event in self.events:
            if event.kind == "restarted":
                del self.given[event.value :]
            elif event.kind == "pieces":
                self.given += event.value
        return [event.kind for event in self.events]


class KnownAnswers(unittest.TestCase):
    """Known answers: bytes of other implementations, made and read here."""

    def test_the_request_of_version_1_is_opened_and_sealed_again(self):
        v = known("wire-v1.json")
        frame, key = bytes.fromhex(v["request"]), bytes.fromhex(v["key"])
        head, content, root = worker.open_request(frame, key)
        self.assertEqual((head.model, head.tenant, head.key_id), ("llama-3.1-70b", "acme", "dev-1"))
        self.assertEqual(content, b'{"prompt":"hi"}')
        self.assertEqual(root.hex(), v["reply_root"])
        self.assertEqual(client.seal_request(key, frame[24:56], head, content), (frame, root))

    def test_the_reply_of_version_1_is_opened_and_sealed_again(self):
        v = known("wire-v1.json")
        root, chunks = bytes.fromhex(v["reply_root"]), [bytes.fromhex(c) for c in v["chunks"]]
        request_id = chunks[0][8:24]
        sealer = worker.ReplySealer(root, request_id, 1, bytes.fromhex(v["attempt_salt"]))
        contents = [b"", b"Hel", b"lo", b'{"chunks":2,"bytes":5}']
        kinds = [OPEN, DATA, DATA, FINAL_OK]
        self.assertEqual([sealer.seal(k, c) for k, c in zip(kinds, contents)], chunks)
        keys, stream_id = client.reply_keys(root, chunks[0][48:80], request_id, 1)
        self.assertEqual(client.reply_head(chunks[0]), (OPEN, request_id, stream_id, 0))
        self.assertEqual(client.strip(keys.open(0, 116, chunks[0])), (PLAIN, b""))
        stream = client.Stream(keys, (0, 1, 0, stream_id), root, None, None)
        for chunk, kind, content in zip(chunks[1:], kinds[1:], contents[1:]):
            stream.keep(client.reply_head(chunk), chunk)
            self.assertEqual(stream.turn(), (kind, PLAIN, content))

    def test_the_request_with_a_wrapped_key_on_disk_is_what_this_program_makes(self):
        v = known("wire-v1-kms.json")
        self.assertEqual(v, worker.kms_vectors())
        head, content, _ = worker.open_request(bytes.fromhex(v["request"]), bytes.fromhex(v["key"]))
        self.assertEqual((head.key_id, content.hex()), (v["key_id"], v["content"]))

    def test_the_additions_on_disk_are_what_this_program_makes(self):
        self.assertEqual(known("wire-v1-additions.json"), worker.vectors())

    def test_the_additions_read_back(self):
        v = known("wire-v1-additions.json")
        root, request_id = bytes.fromhex(v["reply_root"]), bytes.fromhex(v["request_id"])
        frames = [[bytes.fromhex(f["frame"]) for f in r["frames"]] for r in v["replies"]]
        merge = Merge(request_id, [root])
        events = [e for r in frames[:2] for f in r for e in merge.feed(f, "control")]
        self.assertEqual([e.kind for e in events],
                         ["opened", "pieces", "moved", "opened", "control", "pieces", "done"])
        resume = bytes.fromhex(v["controls"][1]["content"])
        self.assertEqual(events[4].value, (RESUME, resume, "control", root))
        self.assertEqual(client.piece_text(merge.pieces), "Hello.")
        merge = Merge(request_id, [root])
        kinds = [e.kind for f in frames[2] for e in merge.feed(f, "control")]
        self.assertEqual(kinds, ["opened", "control", "failed"])
        for c in v["controls"]:
            opened = worker.open_control(bytes.fromhex(c["frame"]), root)
            self.assertEqual(opened, (c["kind"], bytes.fromhex(c["content"])))
        self.assertEqual(
            client.error_hint(bytes.fromhex(v["hint"]["frame"])), (request_id, v["hint"]["code"])
        )


class Frames(unittest.TestCase):
    """Frames that were changed, cut or made for another request are refused."""

    def setUp(self):
        self.head = RequestHead(ID, 1, 2, "tale-7m", "acme", "dev")
        self.frame, self.root = client.seal_request(KEY, bytes(32), self.head, b'{"seed":1}')

    def check_every_change_is_refused(self, frame, read):
        for bit in range(len(frame) * 8):
            changed = bytearray(frame)
            changed[bit // 8] ^= 1 << bit % 8
            with self.assertRaises(Refused, msg=f"bit {bit}"):
                read(bytes(changed))
        for end in range(len(frame)):
            with self.assertRaises(Refused, msg=f"cut at {end}"):
                read(frame[:end])

    def check_no_change_gives_anything(self, frame, replay):
        """A changed kind, stream id or number may look like another frame, a repeat or a gap."""
        flips = [frame[:i] + bytes([frame[i] ^ 1 << b]) + frame[i + 1 :]
                 for i in range(len(frame)) for b in range(8)]
        for changed in flips + [frame[:end] for end in range(len(frame))]:
            self.assertEqual(replay.feed(changed), [])

    def test_every_bit_flip_and_every_cut_of_a_request_is_refused(self):
        self.check_every_change_is_refused(self.frame, lambda f: worker.open_request(f, KEY))

    def test_every_bit_flip_and_every_cut_of_a_control_frame_is_refused(self):
        frame = client.seal_control(ROOT, bytes(32), ID, CANCEL, b"")
        self.check_every_change_is_refused(frame, lambda f: worker.open_control(f, ROOT))

    def test_no_bit_flip_or_cut_of_a_reply_frame_gives_a_piece(self):
        attempt = Attempt()
        frame, replay = attempt.data(0, WORDS[:1]), Replay()
        self.check_no_change_gives_anything(attempt.open, Replay())
        replay.feed(attempt.open)
        self.check_no_change_gives_anything(frame, replay)
        self.assertEqual(replay.feed(frame), ["pieces"], "the true frame can still follow")

    def test_a_final_cannot_be_forged_from_data(self):
        attempt, replay = Attempt(), Replay()
        changed = bytearray(attempt.data(0, WORDS[:1]))
        changed[6] = FINAL_OK
        replay.feed(attempt.open)
        self.assertEqual(replay.feed(bytes(changed)), [])
        self.assertFalse(replay.merge.over)

    def test_a_frame_of_another_attempt_is_not_spliced_in(self):
        one, two, replay = Attempt(), Attempt(), Replay()
        replay.feed(one.open, two.open)
        disguised = bytearray(two.data(0, WORDS[:1]))
        disguised[24:40] = one.sealer.stream_id
        self.assertEqual(replay.feed(bytes(disguised)), [])

    def test_a_stream_for_another_sealing_is_refused(self):
        other, replay = Attempt(root=bytes(32)), Replay()
        self.assertEqual(replay.feed(other.open, other.data(0, WORDS)), [])
        self.assertEqual((replay.merge.streams, replay.merge.heard), ({}, 0))

    def test_an_open_that_commits_to_another_key_or_has_another_id_is_refused(self):
        """Both are additional data: these opens were sealed with them, and would decrypt."""
        for change in ("commitment", "id"):
            a = Attempt()
            a.sealer.seq = 0
            if change == "commitment":
                a.sealer.more = a.sealer.more[:36] + bytes(32)
            else:
                a.sealer.stream_id = bytes(16)
            self.assertEqual(Replay().feed(a.sealer.seal(OPEN, b"{}")), [], change)

    def test_unknown_versions_suites_flags_and_kinds_are_refused(self):
        attempt = Attempt()
        for at, value in ((4, 2), (5, 2), (6, 6), (7, 1)):
            changed = bytearray(attempt.open)
            changed[at] = value
            self.assertRaisesRegex(Refused, "not known", client.reply_head, bytes(changed))
            self.assertEqual(Replay().feed(bytes(changed)), [])

    def test_padding_that_does_not_fit_is_refused(self):
        whole = client.pad(PLAIN, b"x" * 59)
        self.assertEqual((len(whole), client.strip(whole)), (64, (PLAIN, b"x" * 59)))
        self.assertEqual(len(client.pad(PLAIN, b"x" * 60)), 128)
        loose = client.pad(PLAIN, b"")
        for broken in (whole[:4], whole[:63], b"\3" + whole[1:], loose[:-1] + b"\1", loose[:32]):
            self.assertRaises(Refused, client.strip, broken)

    def test_broken_piece_frames_are_refused(self):
        whole = client.write_pieces(3, [b"ab", b""])
        self.assertEqual(client.read_pieces(whole), (3, [b"ab", b""]))
        for broken in (whole[:3], whole[:9], whole + b"\0"):
            self.assertRaises(Refused, client.read_pieces, broken)

    def test_a_uuid7_has_its_time_version_and_variant(self):
        made = client.uuid7(1_700_000_000_000)
        self.assertEqual(int.from_bytes(made[:6], "big"), 1_700_000_000_000)
        self.assertEqual((made[6] >> 4, made[8] >> 6), (7, 2))


class Merging(unittest.TestCase):
    """Rules C1 to C5."""

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
        self.assertEqual(client.read_pieces(content[4 + length :]), (0, WORDS[:3]))
        self.assertEqual(self.replay.feed(b.data(3, WORDS[3:]), b.finish(WORDS), reply_to="b"),
                         ["pieces", "done", "control"])
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
        self.replay.feed(a.open, b.open, a.data(0, WORDS[:3]), b.data(0, WORDS[:2]), Attempt(3).open)
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
        self.assertEqual(self.replay.feed(a.data(5, WORDS[5:]), a.finish(WORDS))[-2:], ["done", "control"])
        self.assertEqual(self.replay.given, WORDS)

    def test_c1_after_many_killed_workers_the_next_is_still_heard(self):
        for number in range(1, 9):
            a = Attempt(number)
            self.replay.feed(a.open, a.data(0, WORDS[:2]))
        self.assertLessEqual(len(self.replay.merge.streams), client.MAX_STREAMS)
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
        self.assertEqual(len(merge.gone), client.MAX_GONE)
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
        for body in (b"", b"{", b"[]", b"{}", b"\xff", {**good, "opened_at_ms": "1"},
                     {**good, "worker": None}, {**good, "fingerprint": "no"}, {**good, "revision": "-"}):
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
        self.assertEqual(self.replay.merge.early, [], "it takes no place of what waits for its open")
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
        frames = [attempt.data(0, WORDS[:2]), attempt.sealer.seal(HEARTBEAT), attempt.data(2, WORDS[2:])]
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
        false += [frame[:48] for frame in frames] + [frames[0][:40] + bytes(7) + b"\t" + frames[0][48:]]
        self.check_each_piece_is_shown_once(*false, *frames, *false, a.open, what="the open last")
        a = Attempt()
        frames = self.reply(a)
        false = [forged(frame) for frame in frames] * 2
        self.check_each_piece_is_shown_once(a.open, *false, *frames[1:], *false, frames[0], what="a gap")

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
        for _ in range(2 * client.MAX_AHEAD):
            self.assertEqual(self.replay.feed(stranger.sealer.seal(HEARTBEAT)), [])
        self.assertEqual(len(merge.early), client.MAX_AHEAD)
        for size in (64 << 10, 100 << 10, 2 << 20):
            for _ in range(40):
                self.replay.feed(stranger.data(0, [bytes(size)]))
                self.assertLessEqual(sum(map(len, merge.early)), 1 << 20)
        a = Attempt()
        self.assertEqual(self.replay.feed(*self.reply(a), a.open), ["opened", "pieces", "pieces", "done"])

    def test_c2_an_open_leaves_the_early_frames_of_others(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(b.data(0, WORDS[:2]), a.data(0, WORDS[:1]), b.data(2, WORDS[2:]), b.finish(WORDS))
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
        beats = [a.sealer.seal(HEARTBEAT) for _ in range(client.MAX_AHEAD - 4)]
        a_reply = self.reply(a)
        self.check_each_piece_is_shown_once(*a_reply, *beats, a.open, what="256 frames")

    def test_c2_an_early_frame_that_is_repeated_takes_one_place(self):
        a = Attempt()
        frames = self.reply(a)
        repeats = frames[:1] * client.MAX_AHEAD
        self.check_each_piece_is_shown_once(*frames, *repeats, a.open, what="repeats")

    def test_c2_frames_that_nothing_can_come_of_do_not_wait_for_an_open(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(b.data(0, WORDS), a.open, a.data(0, WORDS), a.finish(WORDS), b.finish(WORDS))
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
        self.assertEqual(client.piece_text(self.replay.given), deep.decode())
        self.assertEqual(client.text_replay_key(deep), deep)

    def test_c2_a_frame_that_is_larger_than_the_room_for_early_ones_takes_none_of_it(self):
        a = Attempt()
        frames = self.reply(a)
        large = frames[0][:48] + bytes(client.MAX_EARLY_BYTES)
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
        beats = [a.sealer.seal(HEARTBEAT) for _ in range(client.MAX_AHEAD + 1)]
        self.replay.feed(a.open, *beats)
        self.assertEqual((merge.heard, merge.broken_end), (1 + client.MAX_AHEAD, False))
        self.replay.feed(a.finish(WORDS))
        self.assertEqual((merge.heard, merge.broken_end), (2 + client.MAX_AHEAD, True))

    def test_c2_a_stale_stream_is_read_for_its_end_alone(self):
        a = Attempt(2)
        self.replay.feed(a.open, a.data(3, WORDS[3:]))
        self.assertTrue(self.replay.merge.held)
        self.assertEqual(self.replay.feed(a.data(0, WORDS), a.sealer.seal(MOVED)), [])
        self.assertFalse(self.replay.merge.held)

    def test_c2_what_waits_for_its_turn_is_bounded(self):
        a = Attempt()
        late = a.data(0, WORDS[:1])
        early = [a.sealer.seal(HEARTBEAT) for _ in range(client.MAX_AHEAD + 1)]
        self.replay.feed(a.open, *early)
        stream = self.replay.merge.streams[a.sealer.stream_id]
        self.assertEqual(len(stream.ahead), client.MAX_AHEAD)
        self.assertEqual(self.replay.feed(late), ["pieces"], "the one whose turn it is has a place")

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
        self.assertEqual(self.replay.feed(a.open, a.data(1, WORDS[1:]), a.finish(WORDS)), ["opened"])

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
        self.assertEqual(self.replay.feed(b.open, b.data(0, WORDS), b.finish(WORDS))[-2:],
                         ["done", "control"])

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
        plain = a.sealer.seal(DATA, client.write_pieces(0, WORDS[:1]), PLAIN)
        self.assertEqual(self.replay.feed(a.open, plain, a.data(0, WORDS)), ["opened"])
        self.assertEqual(self.replay.merge.streams[a.sealer.stream_id].state, client.STALE)

    def test_c5_an_end_that_cannot_be_read_is_one_whose_counts_do_not_agree(self):
        counts = {"chunks": 0, "pieces": 0, "bytes": 0}
        failure = {"code": "poison", "message": "m"}
        bodies = [(FINAL_OK, worker.compact({**counts, **more})) for more in (
            {"chunks": None}, {"chunks": 0.0}, {"pieces": False}, {"finish_reason": 1}, {"usage": []},
            {"usage": {"input_tokens": "1"}})]
        bodies += [(FINAL_ERROR, worker.compact({**failure, **more})) for more in (
            {"code": ["poison"]}, {"message": None}, {"chunks": "1"})]
        bodies += [(kind, text) for kind in (FINAL_OK, FINAL_ERROR) for text in (b"", b"{", b"[1]", b"\xff")]
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
        self.assertEqual(self.replay.feed(a.open, a.sealer.seal(FINAL_ERROR, worker.compact(body))),
                         ["opened", "failed"])
        self.assertEqual(self.replay.events[1].value["code"], "not-known-yet")

    def test_c5_the_end_of_a_stale_stream_is_no_end(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, b.open, b.data(0, WORDS[:2]), a.data(0, [token(99, "x")]))
        body = {"code": "cancelled", "message": "m", "chunks": 1}
        self.assertEqual(self.replay.feed(a.sealer.seal(FINAL_ERROR, worker.compact(body))), [])

    def test_c5_a_moved_stream_leaves_the_rest_to_the_next(self):
        a, b = Attempt(1), Attempt(2)
        self.assertEqual(self.replay.feed(a.open, a.data(0, WORDS[:2]), a.sealer.seal(MOVED)),
                         ["opened", "pieces", "moved"])
        self.replay.feed(b.open)
        self.assertEqual(self.replay.feed(b.data(2, WORDS[2:]), b.finish(WORDS)), ["pieces", "done"])

    def test_a_hint_changes_nothing(self):
        a = Attempt()
        hint = b"NSBE\x01\x00\x00\x0b" + ID
        self.assertEqual(self.replay.feed(a.open, hint, a.data(0, WORDS)), ["opened", "hint", "pieces"])
        self.assertEqual(self.replay.feed(b"NSBE\x01\x00\x00\x0b" + bytes(16)), [])


class Patience(unittest.TestCase):
    """Rule C6, with a worker that seals frames and a simulated clock."""

    def setUp(self):
        head = RequestHead(ID, 1000, 61_000, "tale-7m", "acme", "dev")
        self.inquiry = client.Inquiry(KEY, head, b'{"seed":7}', now=0.0)
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
        self.assertEqual([self.due(t) for t in (14.9, 15, 16, 30)], [[], ["waiting"], [], ["waiting"]])
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
        events = [(t, e) for t in range(2, 1000) for e in self.inquiry.due(t) if e.kind == "enqueue"]
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
            worker.open_request(frame, KEY) for frame in self.copies)
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
        self.assertEqual([self.due(t) for t in (15.9, 16, 27.9, 28)], [[], ["enqueue"], ["waiting"], ["enqueue"]])
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
        events = [(t, e) for t in range(10, 200) for e in self.inquiry.due(t) if e.kind == "enqueue"]
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
            frame = client.seal_control(letter.root, bytes(32), ID, letter.kind, letter.content)
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


class Errors:
    """Exceptions of pika that the client handles."""

    class AMQPError(Exception):
        pass

    class UnroutableError(AMQPError):
        pass

    class NackError(AMQPError):
        pass

    class ChannelClosedByBroker(AMQPError):
        pass


class Broker:
    """Broker's end of a `Link`: one connection and one channel, with scripted failures."""

    def __init__(self):
        self.calls: list[str] = []
        self.arguments: list[tuple] = []
        self.fails: dict[str, list[Exception]] = {}  # by the name of the call, one per call

    def __getattr__(self, name):  # handles every call
        def call(*args, **options):
            self.calls.append(name)
            self.arguments.append(args)
            if self.fails.get(name):
                raise self.fails[name].pop(0)
            return self

        return call


class Wire(unittest.TestCase):
    """Link to RabbitMQ, and its recovery from a lost connection."""

    def link(self, **fails) -> client.Link:
        self.broker, link = Broker(), object.__new__(client.Link)
        self.broker.fails = fails
        link.pika = mock.Mock(exceptions=Errors, BlockingConnection=lambda _: self.broker)
        link.parameters, link.queue = mock.Mock(host="h", port=1), "nsbridge.reply.0"
        link.connection = link.channel = self.broker
        link.trouble, link.lost = Failed("gone"), False
        return link

    def test_a_reply_queue_that_is_there_is_subscribed_to_before_all_else(self):
        link = self.link()
        self.assertEqual((link.wait(0), link.trouble), (False, None))
        calls = [c for c in self.broker.calls if c in ("basic_consume", "queue_declare", "queue_bind")]
        self.assertEqual(calls, ["basic_consume", "queue_declare", "queue_bind"])

    def test_c6_a_lost_reply_queue_is_told_once_though_the_first_try_to_make_it_fails(self):
        for call in ("queue_declare", "queue_bind", "basic_consume"):
            link = self.link(basic_consume=[Errors.ChannelClosedByBroker()])
            self.broker.fails.setdefault(call, []).append(Errors.AMQPError())
            self.assertEqual([link.wait(0) for _ in range(3)], [False, True, False], call)
            link.trouble = Failed("gone again")
            self.assertFalse(link.wait(0))

    def test_a_bulk_request_goes_to_the_queue_of_bulk_requests(self):
        for bulk, queue in ((False, "nsbridge.m"), (True, "nsbridge.m.bulk")):
            link, head = self.link(), mock.Mock(id=ID, model="m", key_id="dev", expires_at_ms=0)
            self.assertTrue(link.publish_request(head, mock.Mock(frame=b"frame", again=0), bulk))
            self.assertEqual((self.broker.calls, self.broker.arguments),
                             (["basic_publish"], [("", queue, b"frame", mock.ANY)]))

    def test_a_control_frame_that_is_refused_is_not_sent_again(self):
        link = self.link(basic_publish=[Errors.NackError()])
        self.assertTrue(link.publish_control(b"", ID, "control"))
        link = self.link(basic_publish=[Errors.AMQPError()])
        self.assertFalse(link.publish_control(b"", ID, "control"), "it is, if the connection is lost")

    def test_a_frame_is_acked_after_use(self):
        link, order = self.link(), []
        link.take = lambda *message: order.append((message, list(self.broker.calls)))
        method = mock.Mock(delivery_tag=7)
        link._on_message(self.broker, method, mock.Mock(reply_to="r"), b"frame")
        self.assertEqual(order, [((b"frame", "r"), [])])
        self.assertEqual(self.broker.calls, ["basic_ack"])


class ScriptedLink:
    """Scripted broker and worker: one step each time the command waits."""

    def __init__(self, script, unconfirmed: int, clock):
        self.clock, self.refuses, self.at = clock, 0, []
        self.script, self.trouble, self.unconfirmed = script(self), None, unconfirmed
        self.sent: list[bytes] = []
        self.epochs: list[int] = []
        self.bulk: list[bool] = []
        self.controls: list[tuple[bytes, str]] = []

    def publish_request(self, head, copy, bulk=False) -> bool:
        self.sent.append(copy.frame)
        self.bulk.append(bulk)
        self.epochs.append(copy.again)
        self.at.append(self.clock())
        if self.refuses:
            self.refuses -= 1
            raise Failed("the queue is full")
        return len(self.sent) > self.unconfirmed

    def publish_control(self, frame, request_id, key) -> bool:
        self.controls.append((frame, key))
        return True

    def wait(self, seconds) -> bool:
        lost = next(self.script, None)
        if lost is None:
            self.script = None  # a further wait fails the test: it would never end
        return bool(lost)

    def close(self) -> None:
        pass


class Address(unittest.TestCase):
    def test_l5_another_machine_is_reached_over_tls_or_by_an_explicit_word(self):
        for here in ["amqp://localhost", "amqp://me:pw@127.8.8.8:99/%2f", "amqp://me:pw@[::1]:99/v",
                     "amqps://me:pw@mq.example/%2f?heartbeat=5"]:
            self.assertEqual(client.private(here), here)
        for there in ["rabbitmq", "10.0.0.7:5672", "[fe80::1]", "localhost.example"]:
            url = f"amqp://me:secret@{there}/%2f"
            with self.assertRaisesRegex(Failed, "use amqps://, or add .allow_plaintext=true") as told:
                client.private(url)
            self.assertNotIn("secret", str(told.exception))
            self.assertEqual(client.private(f"{url}?allow_plaintext=true"), url)
            more = client.private(f"{url}?heartbeat=5&allow_plaintext=true")
            self.assertEqual(more, f"{url}?heartbeat=5")


class Command(unittest.TestCase):
    """The command, with a scripted broker and worker in place of RabbitMQ."""

    def ask(self, script, unconfirmed: int = 0, options: tuple = ()) -> tuple[int | str, str, str]:
        """Returns the exit code or the error sentence, then stdout and stderr."""
        self.now = 0.0
        out, err = io.StringIO(), io.StringIO()
        ring = {"id": "dev", "state": "primary", "key": base64.b64encode(KEY).decode()}
        with tempfile.TemporaryDirectory() as folder:
            keyring = Path(folder) / "keys.json"
            keyring.touch(0o600)
            keyring.write_text(json.dumps({"schema": 1, "keys": [ring]}))
            args = client.arguments(["--url", "amqp://x", "--keyring", str(keyring), "--model", "m",
                                     "--tenant", "t", "--seed", "7", "--timeout", "60", *options, "a bear"])
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                ask = client.Ask(args, clock=lambda: self.now)
                self.link = ScriptedLink(script, unconfirmed, lambda: self.now)
                with mock.patch.object(client, "Link", lambda _: self.link):
                    try:
                        code = ask.run()
                    except Failed as failed:
                        code = str(failed)
        return code, out.getvalue(), err.getvalue()

    def attempt(self, copy: int) -> Attempt:
        head, _, root = worker.open_request(self.link.sent[copy], KEY)
        return Attempt(root=root, request_id=head.id)

    def second_copy_is_answered(self, link):
        """Steps of a script: the second copy is due, and a worker answers it."""
        self.now = 26.0
        yield False
        b = self.attempt(1)
        for frame in (b.open, b.data(0, WORDS), b.finish(WORDS)):
            link.take(frame, "b")
        yield False

    def test_c6_the_command_asks_again_and_shows_each_piece_once(self):
        def script(link):
            a = self.attempt(0)
            link.take(a.open, "a")
            link.take(a.data(0, WORDS[:2]), None)
            yield False
            link.trouble = Failed("gone")
            self.now = 20.0
            yield False
            link.trouble = None
            yield True
            yield from self.second_copy_is_answered(link)

        code, out, err = self.ask(script)
        self.assertEqual((code, out), (0, "w0 w1 w2 w3 w4 w5 \n"))
        self.assertIn("enqueues=2", err)
        self.assertEqual(self.link.epochs, [0, 1])
        (frame, key), = self.link.controls
        _, _, root = worker.open_request(self.link.sent[0], KEY)
        self.assertEqual((worker.open_control(frame, root), key), ((CANCEL, b""), "a"))

    def test_every_copy_of_a_bulk_request_is_bulk(self):
        def script(link):
            yield False
            yield from self.second_copy_is_answered(link)

        for options, bulk in (((), False), (("--bulk",), True)):
            code, _, _ = self.ask(script, unconfirmed=1, options=options)
            self.assertEqual((code, self.link.bulk), (0, [bulk, bulk]))

    def test_codes_and_reasons_that_are_not_known_are_read_as_the_protocol_says(self):
        for kind, body, said in (
            (FINAL_OK, {"finish_reason": "new"}, 'finish_reason="stop"'),
            (FINAL_OK, {"finish_reason": "stop_text"}, 'finish_reason="stop_text"'),
            (FINAL_ERROR, {"code": "new", "message": "m"}, "internal: m"),
            (FINAL_ERROR, {"code": "poison", "message": "m"}, "poison: m"),
        ):
            def script(link):
                a = self.attempt(0)
                counts = {"chunks": 0, "pieces": 0, "bytes": 0}
                link.take(a.open, "a")
                link.take(a.sealer.seal(kind, worker.compact({**counts, **body})), None)
                yield False

            code, _, err = self.ask(script)
            self.assertIn(said, err if kind == FINAL_OK else code)

    def test_each_hint_is_shown_once_whoever_repeats_it(self):
        def script(link):
            request_id = link.sent[0][8:24]
            for number in (10, 11, 10, 99, 10):
                link.take(b"NSBE\x01\x00" + number.to_bytes(2, "big") + request_id, None)
            yield False
            self.now = 60.0

        code, _, err = self.ask(script)
        self.assertEqual([line.split()[-1] for line in err.splitlines() if "hint" in line],
                         ["unknown-key", "wrong-key", "internal"])
        self.assertIn("hints: internal (not", code)

    def test_at_most_sixteen_hints_are_shown(self):
        def script(link):
            for number in range(1, len(client.CODES) + 1):
                link.take(b"NSBE\x01\x00" + number.to_bytes(2, "big") + link.sent[0][8:24], None)
            yield False
            self.now = 60.0

        _, _, err = self.ask(script)
        self.assertEqual(err.count("hint from"), 16)

    def test_c6_a_copy_that_is_refused_is_published_again_until_the_broker_takes_it(self):
        def script(link):
            yield True
            self.now = 6.0
            link.refuses = 3
            for _ in range(40):
                self.now += 0.1
                yield False
            self.assertEqual((len(link.sent), link.refuses), (5, 0))
            self.now = 60.0

        code, _, _ = self.ask(script)
        self.assertEqual(code, "no complete reply within 60 seconds")
        self.assertEqual(len(set(self.link.sent)), 2, "the same bytes each time")
        for pause, a, b in zip((0.2, 0.4, 0.8), self.link.at[1:], self.link.at[2:], strict=False):
            self.assertTrue(pause <= b - a < pause + 0.15, (pause, a, b))

    def test_text_that_is_no_unicode_is_shown_as_far_as_it_goes(self):
        text = client.piece_text([b'{"token":1,"text":"a\\ud800"}', b'"b"', b"\xff"])
        self.assertEqual(text.encode(), "a?b\ufffd".encode())

    def test_c6_a_publish_without_an_answer_is_repeated_with_the_same_bytes(self):
        def script(link):
            yield from (False, True, False)
            self.now = 60.0

        self.ask(script, unconfirmed=2)
        self.assertEqual((len(self.link.sent), len(set(self.link.sent))), (3, 1))

    def test_c6_no_time_counts_while_there_is_no_connection(self):
        def script(link):
            yield True
            link.trouble, self.now = Failed("gone"), 20.0
            yield False
            self.assertEqual(len(link.sent), 1)
            link.trouble = None
            yield True
            self.now = 25.0
            yield False
            yield False
            self.assertEqual(len(link.sent), 1)
            self.now = 60.0

        self.ask(script)

    def test_c6_at_the_deadline_all_copies_are_cancelled(self):
        def script(link):
            a = self.attempt(0)
            link.take(a.open, "a")
            yield True
            self.now = 6.0
            yield False
            yield False
            self.now = 60.0

        code, _, _ = self.ask(script)
        self.assertEqual(code, "no complete reply within 60 seconds")
        self.assertEqual([key for _, key in self.link.controls], ["a", "m"])
        for (frame, _), sent in zip(self.link.controls, self.link.sent, strict=True):
            _, _, root = worker.open_request(sent, KEY)
            self.assertEqual(worker.open_control(frame, root), (CANCEL, b""))


class Keyrings(unittest.TestCase):
    """Keyrings that are refused; no error shows a key."""

    def ring(self, **more) -> str:
        entry = {"id": "a", "state": "primary", "key": base64.b64encode(KEY).decode(), **more}
        return json.dumps({"schema": 1, "keys": [entry]})

    def test_the_primary_key_is_used_within_its_scope(self):
        ring = client.read_keyring(self.ring(models=["m"], tenants=["t"], check=client.check_value(KEY)))
        self.assertEqual(client.sealing_key(ring, "m", "t"), ("a", KEY))
        self.assertRaises(Failed, client.sealing_key, ring, "other", "t")
        self.assertRaises(Failed, client.sealing_key, ring, "m", "other")

    def test_a_master_gives_each_tenant_its_own_key(self):
        ring = client.read_keyring(self.ring(derived=True))
        self.assertEqual(client.sealing_key(ring, "m", "t")[1], client.tenant_key(KEY, "t", "m"))

    def test_a_broken_keyring_is_refused_without_its_key(self):
        secret = base64.b64encode(KEY).decode()
        for broken in ("{", '{"schema":2,"keys":[]}', self.ring(state="decrypt"), self.ring(key="*"),
                       self.ring(check="00" * 8)):
            with self.assertRaises(Failed) as refused:
                client.read_keyring(broken)
            self.assertNotIn(secret, str(refused.exception))

    def test_a_file_that_others_can_read_is_refused(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(self.ring())
            file.flush()
            os.chmod(file.name, 0o640)
            self.assertRaisesRegex(Failed, "chmod 600", client.load_keyring, file.name)
            os.chmod(file.name, 0o600)
            self.assertEqual(len(client.load_keyring(file.name)), 1)


if __name__ == "__main__":
    unittest.main()
