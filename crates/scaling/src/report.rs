//! Reports of simulations: a table in Markdown, and plots in SVG.
//!
//! Each plot is a file of its own with a white background, so it is readable on pages of any color. Axes have units.

mod axis;
mod frontier;
mod series;
mod svg;
mod table;
#[cfg(test)]
mod tests;

use crate::simulate::Outcome;

pub use self::frontier::frontier;
pub use self::series::series;
pub use self::table::table;

/// Run that a report shows.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Name of the policy.
    pub name: &'a str,
    /// Result of the policy.
    pub outcome: &'a Outcome,
}
