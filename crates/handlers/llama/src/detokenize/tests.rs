//! Tests that no character is split, no stop sequence comes out, and no text is lost.

use super::{Stops, TextStream, byte_alphabet, byte_level, sentence_piece};

/// Pushes the text's bytes in runs of `size`. Returns the pieces, and true if a stop sequence was
/// met.
fn stream(text: &[u8], size: usize, stops: &[&str]) -> (Vec<String>, bool) {
    let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
    let mut stream = TextStream::new(Stops::new(&stops).unwrap().into());
    let mut pieces = Vec::new();
    let runs = text.chunks(size).count();
    for (index, run) in text.chunks(size).enumerate() {
        let (piece, met) = stream.push(run, index + 1 == runs);
        pieces.push(piece);
        if met {
            return (pieces, true);
        }
    }
    (pieces, false)
}

#[test]
fn characters_come_whole_however_they_are_cut() {
    let text = "灯台守は 🏮 を見た, naïve";
    for size in 1..8 {
        let (pieces, met) = stream(text.as_bytes(), size, &[]);
        assert_eq!((pieces.concat().as_str(), met), (text, false));
        assert!(!pieces.concat().contains('\u{fffd}'));
        assert_eq!(pieces.len(), text.len().div_ceil(size));
    }
    assert_eq!(stream("灯a".as_bytes(), 1, &[]).0, ["", "", "灯", "a"]);
}

#[test]
fn a_genuine_replacement_character_is_not_held_back() {
    assert_eq!(stream("\u{fffd}ab".as_bytes(), 3, &[]).0, ["\u{fffd}", "ab"]);
}

#[test]
fn bytes_that_are_no_character_are_replaced_and_what_is_cut_off_comes_at_the_end() {
    assert_eq!(stream(b"a\xffb", 1, &[]).0, ["a", "\u{fffd}", "b"]);
    assert_eq!(stream(b"a\xe7\x81", 1, &[]).0, ["a", "", "\u{fffd}"]);
    assert_eq!(stream(b"\xe7\x81a", 1, &[]).0, ["", "", "\u{fffd}a"]);
}

#[test]
fn a_stop_text_is_met_across_pieces_and_is_not_part_of_the_reply() {
    for size in 1..6 {
        let (pieces, met) = stream("one END two".as_bytes(), size, &["END"]);
        assert_eq!((pieces.concat().as_str(), met), ("one ", true));
    }
    let (pieces, met) = stream("終わり。次".as_bytes(), 2, &["。"]);
    assert_eq!((pieces.concat().as_str(), met), ("終わり", true));
}

#[test]
fn what_only_looked_like_a_stop_text_comes_out_at_once_or_at_the_end() {
    assert_eq!(stream(b"aENaEN", 1, &["END"]).0, ["a", "", "", "ENa", "", "EN"]);
    assert_eq!(stream(b"aab", 1, &["ab"]), (vec!["".into(), "a".into(), "".into()], true));
}

#[test]
fn the_stop_text_that_comes_first_counts() {
    let (pieces, met) = stream(b"abcdef", 6, &["ef", "cd", "cdef"]);
    assert_eq!((pieces.concat().as_str(), met), ("ab", true));
}

#[test]
fn vocabularies_spell_bytes_as_gpt_2_or_as_sentence_piece() {
    let alphabet = byte_alphabet();
    assert_eq!(alphabet.len(), 256);
    assert_eq!(&*byte_level("Ġaç", &alphabet), b" a\xe7");
    assert_eq!(&*byte_level("Ċ", &alphabet), b"\n");
    assert_eq!(&*sentence_piece("▁the"), b" the");
    assert_eq!(&*sentence_piece("<0xE7>"), b"\xe7");
}

#[test]
fn l4_an_id_far_beyond_the_model_is_refused_in_one_sentence() {
    let read = |id: u32| {
        let byte_level = serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
        let json = serde_json::json!({
            "version": "1.0", "added_tokens": [], "decoder": byte_level,
            "model": { "type": "BPE", "vocab": { "a": 0, "b": id }, "merges": [] }
        });
        let tokenizer = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
        super::TokenBytes::new(&tokenizer, &json, 100_000, "tokenizer.json")
    };
    assert_eq!(read(199_999).unwrap().len(), 200_000);
    for id in [200_000, 4_294_967_290, u32::MAX] {
        let error = read(id).unwrap_err().to_string();
        let words = ["tokenizer.json", "vocab_size", "200000", &id.to_string()];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}
