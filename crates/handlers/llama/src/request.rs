//! What a request asks for, with the defaults filled in and nonsense refused.

use nsbridge_handler::{Error, Result, TextInput};

use crate::config::Advice;
use crate::{Options, Sampling};

/// How one reply is to be made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) sampling: Sampling,
    /// The most tokens to make, before the model's room is looked at.
    pub(crate) max_tokens: usize,
    pub(crate) stops: Vec<String>,
}

impl Asked {
    /// The request's own values, else the worker's options, else the model authors' advice.
    ///
    /// # Errors
    ///
    /// A sentence that names the first field that cannot be.
    pub(crate) fn new(input: &TextInput, options: &Options, advice: &Advice) -> Result<Self> {
        let sampling = Sampling {
            temperature: input
                .temperature
                .or(options.temperature)
                .or(advice.temperature)
                .unwrap_or(1.0),
            top_k: input.top_k.or(options.top_k).or(advice.top_k).unwrap_or(0),
            top_p: input.top_p.or(options.top_p).or(advice.top_p).unwrap_or(1.0),
            repetition_penalty: input
                .repetition_penalty
                .or(options.repetition_penalty)
                .or(advice.repetition_penalty)
                .unwrap_or(1.0),
        };
        refuse_nonsense(&sampling)?;
        if input.max_tokens == Some(0) {
            return Err(Error::bad_input("`max_tokens` must be at least 1"));
        }
        if input.stop.iter().any(String::is_empty) {
            return Err(Error::bad_input("`stop` must not contain an empty text"));
        }
        let tokens = |limit: Option<u32>| limit.map_or(usize::MAX, |limit| limit as usize);
        Ok(Self {
            sampling,
            max_tokens: tokens(input.max_tokens).min(tokens(options.max_tokens)),
            stops: input.stop.clone(),
        })
    }
}

fn refuse_nonsense(sampling: &Sampling) -> Result<()> {
    let Sampling { temperature, top_p, repetition_penalty, .. } = *sampling;
    let refuse = |rule: &str| Err(Error::bad_input(rule));
    if !(temperature.is_finite() && temperature >= 0.0) {
        return refuse("`temperature` must be a number from 0 on");
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return refuse("`top_p` must be above 0 and at most 1");
    }
    if !(repetition_penalty.is_finite() && repetition_penalty > 0.0) {
        return refuse("`repetition_penalty` must be a number above 0");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nsbridge_handler::{Error, TextInput};

    use super::{Advice, Asked, Options};

    fn ask(input: &TextInput) -> Result<Asked, Error> {
        let options = Options { max_tokens: Some(50), top_k: Some(40), ..Options::default() };
        let advice = Advice { top_k: Some(5), temperature: Some(0.6), ..Advice::default() };
        Asked::new(input, &options, &advice)
    }

    #[track_caller]
    fn check_refused(input: &TextInput, field: &str) {
        match ask(input) {
            Err(Error::BadInput(why)) => assert!(why.contains(&format!("`{field}`")), "{why}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_goes_before_the_options_and_they_before_the_advice() {
        let asked = ask(&TextInput::default()).unwrap();
        assert_eq!((asked.sampling.temperature, asked.sampling.top_k), (0.6, 40));
        let input = TextInput { top_k: Some(7), temperature: Some(0.0), ..TextInput::default() };
        let asked = ask(&input).unwrap();
        assert_eq!((asked.sampling.temperature, asked.sampling.top_k), (0.0, 7));
    }

    #[test]
    fn the_options_cap_the_tokens_of_a_reply() {
        let limit = |max_tokens| ask(&TextInput { max_tokens, ..TextInput::default() }).unwrap();
        assert_eq!(limit(None).max_tokens, 50);
        assert_eq!(limit(Some(20)).max_tokens, 20);
        assert_eq!(limit(Some(70)).max_tokens, 50);
    }

    #[test]
    fn nonsense_is_refused_by_its_field() {
        let plain = TextInput::default;
        for temperature in [f32::NAN, f32::INFINITY, -0.1] {
            let input = TextInput { temperature: Some(temperature), ..plain() };
            check_refused(&input, "temperature");
        }
        for top_p in [f32::NAN, 0.0, -1.0, 1.1] {
            check_refused(&TextInput { top_p: Some(top_p), ..plain() }, "top_p");
        }
        for penalty in [f32::NAN, 0.0, f32::INFINITY] {
            let input = TextInput { repetition_penalty: Some(penalty), ..plain() };
            check_refused(&input, "repetition_penalty");
        }
        check_refused(&TextInput { max_tokens: Some(0), ..plain() }, "max_tokens");
        check_refused(&TextInput { stop: vec![String::new()], ..plain() }, "stop");
    }
}
