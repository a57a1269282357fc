//! Rules by which a byte-level vocabulary splits a text into words, by their names in GGUF.
//!
//! The rules are those of the models' own `tokenizer.json`. GGUF has a name for each of them.
//! llama.cpp approximates some, and never normalizes. `docs/language-models.md` lists the proof of each.

use serde_json::{Value, json};

/// Rules of one family of vocabularies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Splits {
    names: &'static [&'static str],
    steps: &'static [Step],
    /// True if texts are normalized to NFC.
    composed: bool,
    /// True if a word that is a token is not merged from its parts.
    pub(super) whole_words: bool,
    /// True if texts start with the start token where the metadata does not say so.
    pub(super) starts: bool,
}

/// One step of splitting. Each step splits the words of the step before it.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Each match of a regular expression is a word, and so is the text between matches.
    Regex(&'static str),
    /// Each digit is a word.
    Digits,
    /// The regular expression of GPT-2, before each byte becomes a character.
    Gpt2,
    /// Each byte becomes a character.
    Bytes,
}

/// Rules without normalization, whole words or a start token.
const PLAIN: Splits =
    Splits { names: &[], steps: &[Step::Gpt2], composed: false, whole_words: false, starts: false };

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Words of DeepSeek V3, after its digits and its Chinese and Japanese.
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// Words of DeepSeek's first models: letters with a case. Escaped are those that normalization to NFC
/// would replace by others.
const DEEPSEEK_LLM: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

const ALL: [Splits; 12] = [
    Splits { names: &["gpt-2"], ..PLAIN },
    Splits {
        names: &["smollm", "starcoder", "refact"],
        steps: &[Step::Digits, Step::Gpt2],
        ..PLAIN
    },
    Splits { names: &["command-r"], steps: &[Step::Digits, Step::Gpt2], composed: true, ..PLAIN },
    Splits { names: &["olmo"], composed: true, ..PLAIN },
    Splits {
        names: &["llama-bpe", "llama3", "llama-v3"],
        steps: &[Step::Regex(LLAMA3), Step::Bytes],
        whole_words: true,
        starts: true,
        ..PLAIN
    },
    Splits { names: &["dbrx"], steps: &[Step::Regex(LLAMA3), Step::Bytes], ..PLAIN },
    Splits {
        names: &["qwen2", "deepseek-r1-qwen"],
        steps: &[Step::Regex(QWEN2), Step::Bytes],
        composed: true,
        ..PLAIN
    },
    Splits {
        names: &["tekken"],
        steps: &[Step::Regex(TEKKEN), Step::Bytes],
        whole_words: true,
        starts: true,
        ..PLAIN
    },
    Splits { names: &["gpt-4o", "llama4"], steps: &[Step::Regex(GPT_4O), Step::Bytes], ..PLAIN },
    Splits {
        names: &["deepseek-llm"],
        steps: &[
            Step::Regex(r"[\r\n]"),
            Step::Regex(DEEPSEEK_LLM),
            Step::Regex(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            Step::Regex(r"\s+$"),
            Step::Regex(r"[一-龥ࠀ-一가-퟿]+"),
            Step::Digits,
            Step::Bytes,
        ],
        ..PLAIN
    },
    Splits {
        names: &["deepseek-coder"],
        steps: &[
            Step::Regex(r"[\r\n]"),
            Step::Regex(r"\s?\p{L}+"),
            Step::Regex(r"\s?\p{P}+"),
            Step::Regex(r"[一-龥ࠀ-一가-퟿]+"),
            Step::Digits,
            Step::Bytes,
        ],
        ..PLAIN
    },
    Splits {
        names: &["deepseek-v3"],
        steps: &[
            Step::Regex(r"\p{N}{1,3}"),
            Step::Regex(r"[一-龥぀-ゟ゠-ヿ]+"),
            Step::Regex(DEEPSEEK_V3),
            Step::Bytes,
        ],
        ..PLAIN
    },
];

impl Splits {
    /// Returns the rules with this name in GGUF.
    pub(super) fn named(name: &str) -> Option<Self> {
        ALL.into_iter().find(|splits| splits.names.contains(&name))
    }

    /// Returns the names of all rules.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        ALL.into_iter().flat_map(|splits| splits.names.iter().copied())
    }

    pub(super) fn normalizer(&self) -> Value {
        if self.composed { json!({ "type": "NFC" }) } else { Value::Null }
    }

    pub(super) fn pre_tokenizer(&self) -> Value {
        let steps: Vec<Value> = self.steps.iter().copied().map(Step::to_json).collect();
        json!({ "type": "Sequence", "pretokenizers": steps })
    }
}

impl Step {
    fn to_json(self) -> Value {
        let bytes = |regex: bool| {
            json!({
                "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": regex,
            })
        };
        match self {
            Self::Regex(regex) => json!({
                "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated",
                "invert": false,
            }),
            Self::Digits => json!({ "type": "Digits", "individual_digits": true }),
            Self::Gpt2 => bytes(true),
            Self::Bytes => bytes(false),
        }
    }
}
