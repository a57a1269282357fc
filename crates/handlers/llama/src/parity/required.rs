//! Startup parity check: the worker serves only if its logits match a reference.

use std::path::Path;

use nsbridge_handler::Model as Files;

use super::Reference;
use crate::error::LoadError;
use crate::network::Model;
use crate::options::Options;

/// Limits of a reference. Beyond them, startup would take a noticeable part of the machine's
/// memory, and minutes.
const MOST_BYTES: u64 = 256 << 20;
const MOST_TOKENS: usize = 2048;

/// Default tolerance: the largest difference that passes.
const TOLERANCE: f32 = 1e-3;

/// Parity check that a worker's options require.
#[derive(Debug)]
pub(crate) struct Required<'a> {
    file: &'a str,
    tolerance: f32,
}

impl<'a> Required<'a> {
    /// Reads the options. Returns `None` if they require no check.
    ///
    /// # Errors
    ///
    /// Returns an error if the tolerance is invalid, or if it is set without a reference.
    pub(crate) fn new(options: &'a Options) -> Result<Option<Self>, LoadError> {
        let tolerance = options.parity_tolerance.unwrap_or(TOLERANCE);
        if !(tolerance.is_finite() && tolerance >= 0.0) {
            let found = tolerance.to_string();
            return Err(LoadError::unsupported(
                "the option parity_tolerance",
                found,
                "a number from 0 on",
            ));
        }
        match &options.parity_reference {
            Some(file) => Ok(Some(Self { file, tolerance })),
            None if options.parity_tolerance.is_some() => {
                Err(LoadError::unsupported("the option parity_reference", "absent", "a file"))
            }
            None => Ok(None),
        }
    }

    /// Runs the reference's tokens, before any request.
    ///
    /// # Errors
    ///
    /// Returns an error if the logits differ from the reference, or if the reference cannot be read
    /// or run.
    pub(crate) fn check(&self, model: &mut Model, files: &Files) -> Result<(), LoadError> {
        let file = self.file;
        let reference = self.read(files)?;
        let tokens = reference.tokens.len();
        if tokens > MOST_TOKENS {
            let found = format!("{tokens} long");
            let supported = format!("{MOST_TOKENS} tokens or fewer");
            return Err(LoadError::unsupported(format!("`tokens` in {file}"), found, supported));
        }
        let parity = reference.check_against(model).map_err(|error| {
            LoadError::Read(format!("the reference {file} cannot be run: {error}"))
        })?;
        // A NaN difference exceeds every tolerance.
        if parity.largest <= self.tolerance {
            return Ok(());
        }
        Err(LoadError::Differs {
            file: file.to_owned(),
            tolerance: self.tolerance,
            tokens,
            largest: parity.largest,
            after: parity.after,
            mismatches: parity.mismatches,
        })
    }

    /// Reads the reference from the model's own files, or from this machine if the path is
    /// absolute.
    fn read(&self, files: &Files) -> Result<Reference, LoadError> {
        let (file, path) = (self.file, Path::new(self.file));
        if !path.is_absolute() {
            return Reference::parse(file, &files.read(file).map_err(LoadError::read)?);
        }
        let size = std::fs::metadata(path).map_or(0, |file| file.len());
        if size > MOST_BYTES {
            let supported = format!("{MOST_BYTES} bytes or less");
            return Err(LoadError::unsupported(file, format!("{size} bytes large"), supported));
        }
        Reference::read(path)
    }
}

#[cfg(test)]
mod tests {
    use super::Required;
    use crate::options::Options;

    #[test]
    fn a_tolerance_that_is_none_or_of_nothing_is_refused() {
        let new = |file: Option<&str>, parity_tolerance| {
            let parity_reference = file.map(str::to_owned);
            let options = Options { parity_reference, parity_tolerance, ..Options::default() };
            let required = Required::new(&options).map_err(|error| error.to_string());
            required.map(|required| required.map(|required| required.tolerance))
        };
        assert_eq!(new(None, None), Ok(None));
        assert_eq!(new(Some("x"), None), Ok(Some(1e-3)));
        assert_eq!(new(Some("x"), Some(0.0)), Ok(Some(0.0)));
        for (file, tolerance) in [(Some("x"), -1.0), (Some("x"), f32::NAN), (None, 0.1)] {
            let error = new(file, Some(tolerance)).unwrap_err();
            assert!(error.contains("the option parity_"), "{error}");
        }
    }
}
