"""What a client must get right, checked without a broker.

    python -m unittest -v test_nsbridge_client

The known answers are the ones that the Rust crates reproduce; the rest plays a worker and a
broker that reorders, drops, repeats, changes and splices.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
import unittest
from pathlib import Path

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
    """A worker's stream, with its frames at hand for mischief."""

    def __init__(self, attempt: int = 1, opened_at: int = 1000, root: bytes = ROOT):
        self.sealer = worker.ReplySealer(root, ID, attempt, os.urandom(32))
        self.chunks = 0
        body = {"opened_at_ms": opened_at, "fingerprint": "00" * 16, "worker": "w", "new": 1}
        self.open = self.sealer.seal(OPEN, worker.compact(body))

    def data(self, first: int, pieces: list[bytes]) -> bytes:
        self.chunks += 1
        return self.sealer.seal(DATA, client.write_pieces(first, pieces), PIECES)

    def finish(self, words: list[bytes], **other) -> bytes:
        counts = {"chunks": self.chunks, "pieces": len(words), "bytes": sum(map(len, words))}
        return self.sealer.seal(FINAL_OK, worker.compact({**counts, **other}))


class Replay:
    """A merge, and what came of it."""

    def __init__(self) -> None:
        self.merge = Merge(ID, ROOT)
        self.given: list[bytes] = []

    def feed(self, *frames: bytes, reply_to: str = "control") -> list[str]:
        """The kinds of the events; what the caller is given is kept in `given`."""
        self.events = [e for frame in frames for e in self.merge.feed(frame, reply_to)]
        for event in self.events:
            if event.kind == "restarted":
                del self.given[event.value :]
            elif event.kind == "pieces":
                self.given += event.value
        return [event.kind for event in self.events]


class KnownAnswers(unittest.TestCase):
    """The bytes that other implementations make, made and read here."""

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
        merge = Merge(request_id, root)
        merge.feed(chunks[0])
        stream = merge.streams[client.reply_head(chunks[0]).stream_id]
        for chunk, content in zip(chunks[1:], contents[1:]):
            self.assertEqual(stream.read(client.reply_head(chunk), chunk), (PLAIN, content))

    def test_the_additions_on_disk_are_what_this_program_makes(self):
        self.assertEqual(known("wire-v1-additions.json"), worker.vectors())

    def test_the_additions_read_back(self):
        v = known("wire-v1-additions.json")
        root, request_id = bytes.fromhex(v["reply_root"]), bytes.fromhex(v["request_id"])
        frames = [[bytes.fromhex(f["frame"]) for f in r["frames"]] for r in v["replies"]]
        merge = Merge(request_id, root)
        kinds = [e.kind for r in frames[:2] for f in r for e in merge.feed(f, "control")]
        self.assertEqual(kinds, ["opened", "pieces", "moved", "opened", "control", "pieces", "done"])
        self.assertEqual(client.piece_text(merge.pieces), "Hello.")
        merge = Merge(request_id, root)
        kinds = [e.kind for f in frames[2] for e in merge.feed(f, "control")]
        self.assertEqual(kinds, ["opened", "failed"])
        for c in v["controls"]:
            opened = worker.open_control(bytes.fromhex(c["frame"]), root)
            self.assertEqual(opened, (c["kind"], bytes.fromhex(c["content"])))
        self.assertEqual(
            client.error_hint(bytes.fromhex(v["hint"]["frame"])), (request_id, v["hint"]["code"])
        )


class Frames(unittest.TestCase):
    """Nothing that was changed, cut or made for another comes out."""

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
        """A changed kind, stream id or number may read as another's frame, a repeat or a gap."""
        flips = [frame[:i] + bytes([frame[i] ^ 1 << b]) + frame[i + 1 :]
                 for i in range(len(frame)) for b in range(8)]
        for changed in flips + [frame[:end] for end in range(len(frame))]:
            try:
                self.assertEqual(replay.feed(changed), [])
            except Refused:
                pass

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
        forged = bytearray(attempt.data(0, WORDS[:1]))
        forged[6] = FINAL_OK
        replay.feed(attempt.open)
        self.assertRaises(Refused, replay.feed, bytes(forged))

    def test_a_frame_of_another_attempt_is_not_spliced_in(self):
        one, two, replay = Attempt(), Attempt(), Replay()
        replay.feed(one.open, two.open)
        disguised = bytearray(two.data(0, WORDS[:1]))
        disguised[24:40] = one.sealer.stream_id
        self.assertRaises(Refused, replay.feed, bytes(disguised))

    def test_a_stream_for_another_sealing_is_refused(self):
        other = Attempt(root=bytes(32)).open
        self.assertRaisesRegex(Refused, "another key", Replay().feed, other)

    def test_unknown_versions_suites_flags_and_kinds_are_refused(self):
        attempt = Attempt()
        for at, value in ((4, 2), (5, 2), (6, 6), (7, 1)):
            changed = bytearray(attempt.open)
            changed[at] = value
            self.assertRaisesRegex(Refused, "not known", Replay().feed, bytes(changed))

    def test_padding_that_does_not_fit_is_refused(self):
        whole = client.pad(PLAIN, b"x" * 59)
        self.assertEqual((len(whole), client.strip(whole)), (64, (PLAIN, b"x" * 59)))
        self.assertEqual(len(client.pad(PLAIN, b"x" * 60)), 128)
        for broken in (whole[:4], whole[:63], b"\3" + whole[1:]):
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

    def test_one_attempt_in_order_with_heartbeats_and_repeats(self):
        a = Attempt()
        beat, one, two = a.sealer.seal(HEARTBEAT), a.data(0, WORDS[:2]), a.data(2, WORDS[2:3])
        kinds = self.replay.feed(a.open, beat, beat, one, one, a.open, two, a.finish(WORDS[:3]))
        self.assertEqual(kinds, ["opened", "pieces", "pieces", "done"])
        self.assertEqual(self.replay.given, WORDS[:3])

    def test_a_late_frame_is_a_gap_until_it_comes(self):
        a = Attempt()
        one, two, end = a.data(0, WORDS[:1]), a.data(1, WORDS[1:2]), a.finish(WORDS[:2])
        self.assertEqual(self.replay.feed(a.open, two, end), ["opened"])
        self.assertTrue(next(iter(self.replay.merge.streams.values())).gap)
        self.assertEqual(self.replay.feed(one), ["pieces", "pieces", "done"], "kept for their turn")
        self.assertEqual(self.replay.feed(two, end), [])

    def test_a_second_attempt_is_sent_what_is_there_and_goes_on(self):
        a, b = Attempt(1), Attempt(2, opened_at=2000)
        self.replay.feed(a.open, a.data(0, WORDS[:3]))
        self.assertEqual(self.replay.feed(b.open, reply_to="b"), ["opened", "control"])
        kind, content, key = self.replay.events[1].value
        length = int.from_bytes(content[:4], "big")
        self.assertEqual(json.loads(content[4 : 4 + length]), {"fingerprint": "00" * 16, "n": 3})
        self.assertEqual((kind, key), (RESUME, "b"))
        self.assertEqual(client.read_pieces(content[4 + length :]), (0, WORDS[:3]))
        self.assertEqual(self.replay.feed(b.data(3, WORDS[3:]), b.finish(WORDS), reply_to="b"),
                         ["pieces", "done", "control"])
        self.assertEqual(self.replay.given, WORDS)
        self.assertEqual(self.replay.events[2].value[0], CANCEL, "the first may still run")

    def test_an_attempt_that_starts_over_gives_each_piece_once(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, a.data(0, WORDS[:3]), b.open)
        again = [token(i, f"w{i} ", logprob=-0.5) for i in range(6)]  # no part of the seam
        self.assertEqual(self.replay.feed(b.data(0, again[:2])), [])
        self.assertEqual(self.replay.feed(b.data(2, again[2:])), ["pieces"])
        self.assertEqual(self.replay.given, WORDS[:3] + again[3:])
        self.assertEqual(self.replay.feed(b.finish(again))[0], "done", "its own bytes count")

    def test_two_live_attempts_interleave(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, b.open, a.data(0, WORDS[:2]), b.data(0, WORDS[:4]))
        self.replay.feed(a.data(2, WORDS[2:5]), b.data(4, WORDS[4:]))
        self.assertEqual(self.replay.feed(a.data(5, WORDS[5:]), a.finish(WORDS))[-2:], ["done", "control"])
        self.assertEqual(self.replay.given, WORDS)

    def test_a_disagreeing_later_attempt_restarts(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, a.data(0, WORDS[:4]), b.open)
        other = [WORDS[0], token(99, "x"), token(98, "y"), token(97, "z")]
        self.assertEqual(self.replay.feed(b.data(0, other)), ["restarted", "pieces"])
        self.assertEqual((self.replay.events[0].value, self.replay.given), (1, other))
        self.assertEqual(self.replay.feed(a.data(4, WORDS[4:])), [], "the first is stale")
        self.assertEqual(self.replay.feed(b.finish(other))[0], "done")

    def test_a_disagreeing_earlier_attempt_is_stale(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, b.open, b.data(0, WORDS[:4]))
        self.assertEqual(self.replay.feed(a.data(0, [token(99, "x")])), [])
        self.assertEqual(self.replay.feed(a.finish([token(99, "x")])), [])
        self.assertEqual(self.replay.given, WORDS[:4])

    def test_attempts_of_one_number_rank_by_when_they_opened(self):
        a, b = Attempt(1, opened_at=2000), Attempt(1, opened_at=1000)
        kinds = self.replay.feed(a.open, a.data(0, WORDS[:1]), b.open)
        self.assertEqual(kinds, ["opened", "pieces", "opened"], "a first attempt waits for nothing")
        self.assertEqual(self.replay.feed(b.data(0, [token(99, "x")])), [])

    def test_a_later_attempt_that_ends_sooner_restarts(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, a.data(0, WORDS[:4]), b.open, b.data(0, WORDS[:2]))
        self.assertEqual(self.replay.feed(b.finish(WORDS[:2]))[:2], ["restarted", "done"])
        self.assertEqual(self.replay.given, WORDS[:2])

    def test_a_stream_that_starts_past_the_pieces_is_stale(self):
        a = Attempt()
        self.assertEqual(self.replay.feed(a.open, a.data(1, WORDS[1:]), a.finish(WORDS)), ["opened"])

    def test_after_many_killed_workers_the_next_is_still_heard(self):
        for number in range(1, 9):
            a = Attempt(number)
            self.replay.feed(a.open, a.data(0, WORDS[:2]))
        self.assertLessEqual(len(self.replay.merge.streams), client.MAX_STREAMS)
        self.assertEqual(self.replay.feed(a.finish(WORDS[:2]))[0], "done")

    def test_counts_that_do_not_agree_are_a_failure(self):
        for wrong in ({"chunks": 2}, {"pieces": 3}, {"bytes": 1}, {"pieces": None}):
            a, replay = Attempt(), Replay()
            replay.feed(a.open, a.data(0, WORDS[:2]))
            self.assertEqual(replay.feed(a.finish(WORDS[:2], **wrong)), ["failed"])

    def test_a_resume_of_everything_may_be_followed_by_the_end(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, a.data(0, WORDS), b.open)
        self.assertEqual(self.replay.feed(b.finish(WORDS))[0], "done")

    def test_an_open_after_the_end_is_answered_by_a_cancel(self):
        a, b = Attempt(1), Attempt(2)
        self.replay.feed(a.open, a.data(0, WORDS), a.finish(WORDS))
        self.assertEqual(self.replay.feed(b.open, reply_to="b"), ["control"])
        self.assertEqual(self.replay.events[0].value, (CANCEL, b"", "b"))

    def test_a_failure_of_any_code_ends_the_request(self):
        a = Attempt()
        body = {"code": "not-known-yet", "message": "m", "chunks": 0}
        self.assertEqual(self.replay.feed(a.open, a.sealer.seal(FINAL_ERROR, worker.compact(body))),
                         ["opened", "failed"])
        self.assertEqual(self.replay.events[1].value["code"], "not-known-yet")

    def test_a_hint_changes_nothing(self):
        a = Attempt()
        hint = b"NSBE\x01\x00\x00\x0b" + ID
        self.assertEqual(self.replay.feed(a.open, hint, a.data(0, WORDS)), ["opened", "hint", "pieces"])
        self.assertEqual(self.replay.feed(b"NSBE\x01\x00\x00\x0b" + bytes(16)), [])

    def test_a_moved_stream_leaves_the_rest_to_the_next(self):
        a, b = Attempt(1), Attempt(2)
        self.assertEqual(self.replay.feed(a.open, a.data(0, WORDS[:2]), a.sealer.seal(MOVED)),
                         ["opened", "pieces", "moved"])
        self.replay.feed(b.open)
        self.assertEqual(self.replay.feed(b.data(2, WORDS[2:]), b.finish(WORDS)), ["pieces", "done"])


class Keyrings(unittest.TestCase):
    """What is refused, and that no refusal shows a key."""

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
