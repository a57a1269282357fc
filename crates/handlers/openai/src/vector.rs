//! Vectors as a request wants them: number of dimensions and encoding.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nsbridge_handler::{Embedding, EmbeddingInput, EmbeddingText, EncodingFormat, Error, Result};

/// Maximum bytes of the pieces of a reply, as in the protocol.
const REPLY_BYTES: usize = 8 << 20;

/// Maximum bytes of one piece, as in the protocol.
const PIECE_BYTES: usize = 64 << 10;

/// Bytes of a number as JSON.
const FLOAT_BYTES: usize = 15;

/// Bytes of a piece beside its vector.
const FRAME_BYTES: usize = 64;

/// Form of the vectors of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    dimensions: usize,
    is_base64: bool,
}

impl Form {
    /// Reads the form from a request to a model with vectors of `width` dimensions.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such form, or if the vectors do not fit into a reply.
    pub(crate) fn new(input: &EmbeddingInput, width: usize) -> Result<Self> {
        let dimensions = input.dimensions.map_or(width, |wanted| wanted as usize);
        let is_base64 = input.encoding_format == Some(EncodingFormat::Base64);
        let form = Self { dimensions, is_base64 };
        let (texts, bytes) = (input.input.len(), form.bytes());
        let most = REPLY_BYTES / bytes;
        let empty =
            |text: &EmbeddingText| matches!(text, EmbeddingText::Tokens(ids) if ids.is_empty());
        let why = if dimensions == 0 || dimensions > width {
            format!("`dimensions` must be from 1 to {width}")
        } else if bytes > PIECE_BYTES {
            format!(
                "a vector of {dimensions} dimensions is too large for a piece: ask for fewer `dimensions`, or \
                 for the `encoding_format` base64"
            )
        } else if texts == 0 || texts > most {
            format!(
                "`input` has {texts} texts, and 1 to {most} are possible with {dimensions} dimensions in this \
                 encoding"
            )
        } else if input.input.iter().any(empty) {
            "`input` has a text without tokens".to_owned()
        } else {
            return Ok(form);
        };
        Err(Error::bad_input(why))
    }

    /// Returns the bytes of a piece, an estimate from above.
    fn bytes(self) -> usize {
        let vector = match self.is_base64 {
            true => (self.dimensions * 4).div_ceil(3) * 4,
            false => self.dimensions * FLOAT_BYTES,
        };
        FRAME_BYTES + vector
    }

    /// Cuts a vector, scales what is left to the length that the vector had, and encodes it.
    pub(crate) fn encode(self, mut vector: Vec<f32>) -> Embedding {
        if self.dimensions < vector.len() {
            let whole = length(&vector);
            vector.truncate(self.dimensions);
            let left = length(&vector);
            if left > 0.0 {
                let scaled =
                    |number: &mut f32| *number = (f64::from(*number) * whole / left) as f32;
                vector.iter_mut().for_each(scaled);
            }
        }
        if !self.is_base64 {
            return Embedding::Floats(vector);
        }
        let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
        Embedding::Base64(STANDARD.encode(bytes))
    }
}

fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use nsbridge_handler::{Embedding, EmbeddingInput, EmbeddingText, EncodingFormat};

    use super::Form;

    fn input(texts: usize, dimensions: Option<u32>, base64: bool) -> EmbeddingInput {
        let encoding_format = base64.then_some(EncodingFormat::Base64);
        let texts = EmbeddingInput::texts(vec!["a"; texts]);
        EmbeddingInput { dimensions, encoding_format, ..texts }
    }

    #[test]
    fn a_vector_that_is_cut_keeps_its_length() {
        let made = |dimensions, vector: [f32; 3]| {
            Form::new(&input(1, dimensions, false), 3).unwrap().encode(vector.to_vec())
        };
        assert_eq!(made(None, [3.0, 4.0, 12.0]), Embedding::Floats(vec![3.0, 4.0, 12.0]));
        assert_eq!(made(Some(2), [3.0, 4.0, 12.0]), Embedding::Floats(vec![7.8, 10.4]));
        assert_eq!(made(Some(2), [0.0, 0.0, 1.0]), Embedding::Floats(vec![0.0, 0.0]));
    }

    #[test]
    fn base64_has_the_bytes_of_each_number_the_least_significant_first() {
        let form = Form::new(&input(1, None, true), 2).unwrap();
        assert_eq!(form.encode(vec![0.5, -1.0]), Embedding::Base64("AAAAPwAAgL8=".to_owned()));
    }

    #[test]
    fn what_has_no_form_is_refused_before_the_server_is_asked() {
        let none = EmbeddingInput::texts([EmbeddingText::Tokens(Vec::new())]);
        for (input, width, says) in [
            (input(1, Some(0), false), 3, "`dimensions` must be from 1 to 3"),
            (input(1, Some(4), false), 3, "`dimensions` must be from 1 to 3"),
            (input(1, None, false), 5000, "5000 dimensions is too large for a piece"),
            (input(1, None, true), 20_000, "20000 dimensions is too large for a piece"),
            (input(0, None, false), 3, "`input` has 0 texts, and 1 to"),
            (input(200, None, false), 4096, "`input` has 200 texts, and 1 to 136 are possible"),
            (none, 3, "`input` has a text without tokens"),
        ] {
            let why = Form::new(&input, width).unwrap_err().to_string();
            assert!(why.contains(says), "{why}");
        }
        assert!(Form::new(&input(1, None, true), 5000).is_ok());
    }
}
