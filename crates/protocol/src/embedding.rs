//! Input and output of models that make embeddings of texts.

use std::fmt;

use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::replay_key::ReplayKey;
use crate::text::TextInput;

/// Input of a model of embeddings, in the shape of OpenAI's interface.
///
/// A literal ends in `..EmbeddingInput::texts(..)`: minor versions add fields.
///
/// ```
/// use nsbridge_protocol::{EmbeddingInput, EmbeddingText};
///
/// let input: EmbeddingInput =
///     serde_json::from_str(r#"{"input":["a bear",[5,7]],"dimensions":256}"#)?;
/// let texts = [EmbeddingText::from("a bear"), EmbeddingText::Tokens(vec![5, 7])];
/// assert_eq!((input.input, input.dimensions), (texts.to_vec(), Some(256)));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingInput {
    /// Texts, each as text or as token ids. A single text, or the token ids of one, may stand
    /// without the list.
    #[serde(deserialize_with = "texts")]
    pub input: Vec<EmbeddingText>,
    /// Number of dimensions to keep; all if absent. The vector is cut after them and normalized
    /// again, as models trained by Matryoshka representation learning allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<u32>,
    /// Encoding of the vectors; numbers if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding_format: Option<EncodingFormat>,
    /// Priority among the tenant's own requests when a worker has more than it can run at once.
    ///
    /// A lower number goes first; 0 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

impl EmbeddingInput {
    /// Maximum number of texts, as in OpenAI's interface.
    pub const MOST_TEXTS: usize = 2048;

    /// Creates the input of these texts.
    pub fn texts<T: Into<EmbeddingText>>(texts: impl IntoIterator<Item = T>) -> Self {
        Self { input: texts.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

impl fmt::Debug for EmbeddingInput {
    /// Omits the user's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddingInput")
            .field("texts", &self.input.len())
            .field("dimensions", &self.dimensions)
            .finish_non_exhaustive()
    }
}

/// One text of an [`EmbeddingInput`].
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum EmbeddingText {
    /// Text, tokenized with the special tokens that the model's tokenizer adds.
    Text(String),
    /// Token ids, to which nothing is added.
    Tokens(Vec<u32>),
}

impl From<&str> for EmbeddingText {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for EmbeddingText {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<u32>> for EmbeddingText {
    fn from(tokens: Vec<u32>) -> Self {
        Self::Tokens(tokens)
    }
}

impl fmt::Debug for EmbeddingText {
    /// Omits the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.debug_struct("Text").field("bytes", &text.len()).finish(),
            Self::Tokens(tokens) => f.debug_struct("Tokens").field("len", &tokens.len()).finish(),
        }
    }
}

/// Encoding of the vectors of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EncodingFormat {
    /// List of numbers.
    #[default]
    Float,
    /// Base64 of the numbers as f32, each as four bytes, the least significant first.
    Base64,
}

/// Vector of one text, the only piece about it. The pieces come in the order of the texts.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EmbeddingPiece {
    /// Index of the text in the input.
    pub index: u32,
    /// Vector.
    pub embedding: Embedding,
}

impl EmbeddingPiece {
    /// Creates the piece about the text with this index.
    pub const fn new(index: u32, embedding: Embedding) -> Self {
        Self { index, embedding }
    }
}

impl fmt::Debug for EmbeddingPiece {
    /// Omits the vector, because it tells about the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddingPiece").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Whole pieces are compared: two vectors of one text are the same to the bit on CPUs.
impl ReplayKey for EmbeddingPiece {}

/// Vector in one of the two encodings.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Embedding {
    /// Numbers, for [`EncodingFormat::Float`].
    Floats(Vec<f32>),
    /// Text, for [`EncodingFormat::Base64`].
    Base64(String),
}

impl fmt::Debug for Embedding {
    /// Omits the numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Floats(_) => "Floats",
            Self::Base64(_) => "Base64",
        })
    }
}

/// Deserializes `input`: a text, token ids, or a list of texts and lists of token ids.
fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<EmbeddingText>, D::Error> {
    let all = deserializer.deserialize_any(Texts);
    all.map_err(|error| D::Error::custom(format_args!("`input`: {error}")))
}

struct Texts;

impl<'de> Visitor<'de> for Texts {
    type Value = Vec<EmbeddingText>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = EmbeddingInput::MOST_TEXTS;
        write!(f, "a text, token ids, or a list of at most {most} texts or lists of token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(vec![text.into()])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let (mut texts, mut ids) = (Vec::new(), Vec::new());
        while let Some(element) = elements.next_element()? {
            match element {
                Element::Id(id) if texts.is_empty() => ids.push(id),
                Element::Text(text) if ids.is_empty() => texts.push(text),
                _ => return Err(A::Error::custom("token ids and texts stand in one list")),
            }
            if texts.len() > EmbeddingInput::MOST_TEXTS {
                return Err(A::Error::invalid_length(texts.len(), &self));
            }
            if ids.len() > TextInput::MOST_PROMPT_TOKENS {
                return Err(too_many_ids());
            }
        }
        let alone = (!ids.is_empty()).then_some(EmbeddingText::Tokens(ids));
        Ok(texts.into_iter().chain(alone).collect())
    }
}

/// Element of a list: a text, or a token of the only text.
enum Element {
    Id(u32),
    Text(EmbeddingText),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneElement)
    }
}

struct OneElement;

impl<'de> Visitor<'de> for OneElement {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a token id or a list of token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Text(text.into()))
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
        u32::try_from(id).map(Element::Id).map_err(|_| E::custom("a token id is too large"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Element, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = elements.next_element()? {
            if ids.len() == TextInput::MOST_PROMPT_TOKENS {
                return Err(too_many_ids());
            }
            ids.push(id);
        }
        Ok(Element::Text(EmbeddingText::Tokens(ids)))
    }
}

fn too_many_ids<E: Error>() -> E {
    E::custom(format_args!("at most {} token ids", TextInput::MOST_PROMPT_TOKENS))
}

#[cfg(test)]
mod tests {
    use super::{Embedding, EmbeddingInput, EmbeddingPiece, EmbeddingText};

    fn read(input: &str) -> Result<Vec<EmbeddingText>, serde_json::Error> {
        serde_json::from_str::<EmbeddingInput>(&format!(r#"{{"input":{input}}}"#))
            .map(|read| read.input)
    }

    #[test]
    fn an_input_is_a_text_or_token_ids_or_a_list_of_such() {
        let (text, ids) = (EmbeddingText::from("a"), EmbeddingText::Tokens(vec![1, 2]));
        assert_eq!(read(r#""a""#).unwrap(), std::slice::from_ref(&text));
        assert_eq!(read("[1,2]").unwrap(), std::slice::from_ref(&ids));
        assert_eq!(read(r#"["a",[1,2]]"#).unwrap(), [text, ids]);
        assert_eq!(read("[]").unwrap(), []);
        assert_eq!(read("[[]]").unwrap(), [EmbeddingText::Tokens(vec![])]);
    }

    #[test]
    fn an_input_of_another_form_is_refused_in_words_that_do_not_quote_it() {
        for input in [r#"["canary",1]"#, r#"[1,"canary"]"#, "[1.5]", "[-1]", "{}", "[[[1]]]"] {
            let why = read(input).unwrap_err().to_string();
            assert!(why.contains("`input`") && !why.contains("canary"), "{why}");
        }
        for json in [r#"{"prompt":"a"}"#, r#"{"input":"a","encoding_format":"int8"}"#, "{}"] {
            assert!(serde_json::from_str::<EmbeddingInput>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_list_beyond_its_bound_is_refused() {
        let list = |each: &str, count| format!("[{}]", vec![each; count].join(","));
        assert!(read(&list("\"\"", 2048)).is_ok());
        assert!(read(&list("\"\"", 2049)).unwrap_err().to_string().contains("2048"));
        let ids = list("1", (1 << 20) + 1);
        for input in [ids.clone(), format!("[{ids}]")] {
            assert!(read(&input).unwrap_err().to_string().contains("1048576"));
        }
    }

    #[test]
    fn pieces_are_written_as_openai_writes_vectors() {
        let piece = |embedding| EmbeddingPiece { index: 3, embedding };
        for (embedding, json) in [
            (Embedding::Floats(vec![0.5, -1.0]), r#"{"index":3,"embedding":[0.5,-1.0]}"#),
            (Embedding::Base64("AAAAPw==".into()), r#"{"index":3,"embedding":"AAAAPw=="}"#),
        ] {
            assert_eq!(serde_json::to_string(&piece(embedding.clone())).unwrap(), json);
            assert_eq!(serde_json::from_str::<EmbeddingPiece>(json).unwrap(), piece(embedding));
        }
    }

    #[test]
    fn debug_shows_nothing_of_the_user() {
        let input = EmbeddingInput::texts(["canary"]);
        let vector = Embedding::Floats(vec![4711.0]);
        let shown = format!("{input:?} {:?} {vector:?}", input.input);
        assert!(!shown.contains("canary") && !shown.contains("4711"), "{shown}");
    }
}
