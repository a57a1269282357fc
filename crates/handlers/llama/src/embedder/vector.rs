//! Vectors as a request wants them: number of dimensions, length and encoding.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nsbridge_handler::{Embedding, EmbeddingInput, EncodingFormat, Error, Result};

use crate::limits::{FLOAT_BYTES, PIECE_BYTES, REPLY_BYTES};

/// Bytes of a piece beside its vector.
const FRAME: usize = 64;

/// Form of the vectors of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    dimensions: usize,
    is_base64: bool,
    normalize: bool,
}

impl Form {
    /// Reads the form from a request to a model with vectors of `width` dimensions.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such form, or if the vectors of all texts do not fit into a
    /// reply.
    pub(super) fn new(input: &EmbeddingInput, width: usize, normalize: bool) -> Result<Self> {
        let dimensions = input.dimensions.map_or(width, |wanted| wanted as usize);
        if dimensions == 0 || dimensions > width {
            return Err(Error::bad_input(format!("`dimensions` must be from 1 to {width}")));
        }
        let is_base64 = match input.encoding_format.unwrap_or_default() {
            EncodingFormat::Float => false,
            EncodingFormat::Base64 => true,
            other => {
                return Err(Error::bad_input(format!("`encoding_format` {other:?} is unknown")));
            }
        };
        let form = Self { dimensions, is_base64, normalize };
        let (texts, bytes) = (input.input.len(), form.bytes());
        if bytes > PIECE_BYTES {
            let most = (PIECE_BYTES - FRAME) / FLOAT_BYTES;
            return Err(Error::bad_input(if is_base64 {
                format!(
                    "a vector of {dimensions} dimensions is too large for a piece: ask for fewer `dimensions`"
                )
            } else {
                format!(
                    "`encoding_format` must be base64 for more than {most} dimensions, or \
                     `dimensions` fewer"
                )
            }));
        }
        let most = (REPLY_BYTES / bytes).min(EmbeddingInput::MOST_TEXTS);
        if texts == 0 || texts > most {
            return Err(Error::bad_input(format!(
                "`input` has {texts} texts, and 1 to {most} are possible with {dimensions} \
                 dimensions in this encoding"
            )));
        }
        Ok(form)
    }

    /// Returns the bytes of a piece, an estimate from above.
    fn bytes(self) -> usize {
        FRAME
            + if self.is_base64 {
                (self.dimensions * 4).div_ceil(3) * 4
            } else {
                self.dimensions * FLOAT_BYTES
            }
    }

    /// Cuts a vector, normalizes what is left, and encodes it.
    pub(super) fn encode(self, mut vector: Vec<f32>) -> Embedding {
        vector.truncate(self.dimensions);
        if self.normalize {
            normalize(&mut vector);
        }
        if !self.is_base64 {
            return Embedding::Floats(vector);
        }
        let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
        Embedding::Base64(STANDARD.encode(bytes))
    }
}

/// Scales a vector to length 1. A vector of zeros stays.
fn normalize(vector: &mut [f32]) {
    let square: f64 = vector.iter().map(|number| f64::from(*number).powi(2)).sum();
    let length = square.sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|number| *number = (f64::from(*number) / length) as f32);
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_handler::{Embedding, EmbeddingInput, EncodingFormat};

    use super::Form;

    fn input(texts: usize, dimensions: Option<u32>, base64: bool) -> EmbeddingInput {
        let encoding_format = base64.then_some(EncodingFormat::Base64);
        let texts = EmbeddingInput::texts(vec!["a"; texts]);
        EmbeddingInput { dimensions, encoding_format, ..texts }
    }

    #[test]
    fn a_vector_is_cut_and_then_normalized() {
        let form = |dimensions, normalize| Form::new(&input(1, dimensions, false), 3, normalize);
        let vector = || vec![3.0, 4.0, 12.0];
        let made = |dimensions, normalize| form(dimensions, normalize).unwrap().encode(vector());
        assert_eq!(made(Some(2), true), Embedding::Floats(vec![0.6, 0.8]));
        assert_eq!(made(Some(2), false), Embedding::Floats(vec![3.0, 4.0]));
        assert_eq!(made(None, true), Embedding::Floats(vec![3.0 / 13.0, 4.0 / 13.0, 12.0 / 13.0]));
        let zeros = form(None, true).unwrap().encode(vec![0.0; 3]);
        assert_eq!(zeros, Embedding::Floats(vec![0.0; 3]));
        for dimensions in [0, 4] {
            let why = form(Some(dimensions), true).unwrap_err().to_string();
            assert!(why.contains("`dimensions` must be from 1 to 3"), "{why}");
        }
    }

    #[test]
    fn base64_has_the_bytes_of_each_number_the_least_significant_first() {
        let form = Form::new(&input(1, None, true), 2, false).unwrap();
        assert_eq!(form.encode(vec![0.5, -1.0]), Embedding::Base64("AAAAPwAAgL8=".to_owned()));
    }

    #[test]
    fn vectors_that_do_not_fit_into_a_reply_are_refused_before_they_are_made() {
        let refused =
            |texts, width, base64| match Form::new(&input(texts, None, base64), width, true) {
                Ok(_) => String::new(),
                Err(error) => error.to_string(),
            };
        assert_eq!(refused(128, 4096, false), "");
        assert_eq!(refused(300, 4096, true), "");
        assert_eq!(refused(2048, 256, false), "");
        assert!(refused(200, 4096, false).contains("`input` has 200 texts, and 1 to "));
        assert!(refused(0, 256, false).contains("`input` has 0 texts"));
        assert!(refused(1, 8192, false).contains("`encoding_format` must be base64"));
        assert_eq!(refused(1, 8192, true), "");
        assert!(refused(1, 1 << 20, true).contains("`dimensions`"));
    }
}
