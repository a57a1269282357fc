"""Tests of keys and frames: known answers, and frames that were changed."""

from __future__ import annotations

import json
import unittest
from pathlib import Path

import make_vectors
import worker
from nsbridge.constants import CANCEL, DATA, FINAL_OK, OPEN, PLAIN, RESUME
from nsbridge.frames import (
    RequestHead,
    error_hint,
    pad,
    read_pieces,
    reply_head,
    seal_control,
    seal_request,
    strip,
    uuid7,
    write_pieces,
)
from nsbridge.keys import Refused, reply_keys
from nsbridge.merge import Merge
from nsbridge.stream import Stream
from nsbridge.text import TextPiece
from worker import ID, KEY, ROOT, WORDS, Attempt, Replay

VECTORS = Path(__file__).resolve().parents[2] / "crates" / "crypto" / "vectors"


def known(name: str) -> dict:
    return json.loads((VECTORS / name).read_text())


class KnownAnswers(unittest.TestCase):
    """Known answers: bytes of other implementations, made and read here."""

    def test_the_request_of_version_1_is_opened_and_sealed_again(self):
        v = known("wire-v1.json")
        frame, key = bytes.fromhex(v["request"]), bytes.fromhex(v["key"])
        head, content, root = worker.open_request(frame, key)
        self.assertEqual((head.model, head.tenant, head.key_id), ("llama-3.1-70b", "acme", "dev-1"))
        self.assertEqual(content, b'{"prompt":"hi"}')
        self.assertEqual(root.hex(), v["reply_root"])
        self.assertEqual(seal_request(key, frame[24:56], head, content), (frame, root))

    def test_the_reply_of_version_1_is_opened_and_sealed_again(self):
        v = known("wire-v1.json")
        root, chunks = bytes.fromhex(v["reply_root"]), [bytes.fromhex(c) for c in v["chunks"]]
        request_id = chunks[0][8:24]
        sealer = worker.ReplySealer(root, request_id, 1, bytes.fromhex(v["attempt_salt"]))
        contents = [b"", b"Hel", b"lo", b'{"chunks":2,"bytes":5}']
        kinds = [OPEN, DATA, DATA, FINAL_OK]
        self.assertEqual([sealer.seal(k, c) for k, c in zip(kinds, contents)], chunks)
        keys, stream_id = reply_keys(root, chunks[0][48:80], request_id, 1)
        self.assertEqual(reply_head(chunks[0]), (OPEN, request_id, stream_id, 0))
        self.assertEqual(strip(keys.open(0, 116, chunks[0])), (PLAIN, b""))
        stream = Stream(keys, (0, 1, 0, stream_id), root, None, None)
        for chunk, kind, content in zip(chunks[1:], kinds[1:], contents[1:]):
            stream.keep(reply_head(chunk), chunk)
            self.assertEqual(stream.turn(), (kind, PLAIN, content))

    def test_the_request_with_a_wrapped_key_on_disk_is_what_this_program_makes(self):
        v = known("wire-v1-kms.json")
        self.assertEqual(v, make_vectors.kms_vectors())
        head, content, _ = worker.open_request(bytes.fromhex(v["request"]), bytes.fromhex(v["key"]))
        self.assertEqual((head.key_id, content.hex()), (v["key_id"], v["content"]))

    def test_the_additions_on_disk_are_what_this_program_makes(self):
        self.assertEqual(known("wire-v1-additions.json"), make_vectors.vectors())

    def test_the_additions_read_back(self):
        v = known("wire-v1-additions.json")
        root, request_id = bytes.fromhex(v["reply_root"]), bytes.fromhex(v["request_id"])
        frames = [[bytes.fromhex(f["frame"]) for f in r["frames"]] for r in v["replies"]]
        merge = Merge(request_id, [root])
        events = [e for r in frames[:2] for f in r for e in merge.feed(f, "control")]
        self.assertEqual(
            [e.kind for e in events],
            ["opened", "pieces", "moved", "opened", "control", "pieces", "done"],
        )
        resume = bytes.fromhex(v["controls"][1]["content"])
        self.assertEqual(events[4].value, (RESUME, resume, "control", root))
        self.assertEqual("".join(str(TextPiece.read(p)) for p in merge.pieces), "Hello.")
        merge = Merge(request_id, [root])
        kinds = [e.kind for f in frames[2] for e in merge.feed(f, "control")]
        self.assertEqual(kinds, ["opened", "control", "failed"])
        for c in v["controls"]:
            opened = worker.open_control(bytes.fromhex(c["frame"]), root)
            self.assertEqual(opened, (c["kind"], bytes.fromhex(c["content"])))
        self.assertEqual(
            error_hint(bytes.fromhex(v["hint"]["frame"])), (request_id, v["hint"]["code"])
        )


class Frames(unittest.TestCase):
    """Frames that were changed, cut or made for another request are refused."""

    def setUp(self):
        self.head = RequestHead(ID, 1, 2, "tale-7m", "acme", "dev")
        self.frame, self.root = seal_request(KEY, bytes(32), self.head, b'{"seed":1}')

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
        flips = [
            frame[:i] + bytes([frame[i] ^ 1 << b]) + frame[i + 1 :]
            for i in range(len(frame))
            for b in range(8)
        ]
        for changed in flips + [frame[:end] for end in range(len(frame))]:
            self.assertEqual(replay.feed(changed), [])

    def test_every_bit_flip_and_every_cut_of_a_request_is_refused(self):
        self.check_every_change_is_refused(self.frame, lambda f: worker.open_request(f, KEY))

    def test_every_bit_flip_and_every_cut_of_a_control_frame_is_refused(self):
        frame = seal_control(ROOT, bytes(32), ID, CANCEL, b"")
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
            self.assertRaisesRegex(Refused, "not known", reply_head, bytes(changed))
            self.assertEqual(Replay().feed(bytes(changed)), [])

    def test_padding_that_does_not_fit_is_refused(self):
        whole = pad(PLAIN, b"x" * 59)
        self.assertEqual((len(whole), strip(whole)), (64, (PLAIN, b"x" * 59)))
        self.assertEqual(len(pad(PLAIN, b"x" * 60)), 128)
        loose = pad(PLAIN, b"")
        for broken in (whole[:4], whole[:63], b"\3" + whole[1:], loose[:-1] + b"\1", loose[:32]):
            self.assertRaises(Refused, strip, broken)

    def test_broken_piece_frames_are_refused(self):
        whole = write_pieces(3, [b"ab", b""])
        self.assertEqual(read_pieces(whole), (3, [b"ab", b""]))
        for broken in (whole[:3], whole[:9], whole + b"\0"):
            self.assertRaises(Refused, read_pieces, broken)

    def test_a_uuid7_has_its_time_version_and_variant(self):
        made = uuid7(1_700_000_000_000)
        self.assertEqual(int.from_bytes(made[:6], "big"), 1_700_000_000_000)
        self.assertEqual((made[6] >> 4, made[8] >> 6), (7, 2))
