//! Progress bar in bytes on stderr.

use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

const TEMPLATE: &str = "{msg:8} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// Progress bar in bytes. Nothing is drawn if stderr is not a terminal.
#[derive(Clone, Debug)]
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(what: &'static str, hidden: bool) -> Self {
        let target =
            if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(0), target).with_message(what);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub(super) fn expect(&self, bytes: u64) {
        self.0.set_length(bytes);
        self.0.enable_steady_tick(Duration::from_millis(200));
    }

    pub(super) fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}

/// Formats a number of bytes for people.
pub(super) fn size(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}
