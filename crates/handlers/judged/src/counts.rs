//! Counters of judged and refused texts, by category and phase and without any text.

use std::sync::atomic::{AtomicU64, Ordering};

use nsbridge_handler::Measure;

use crate::judge::Category;

/// Phase of a request in which a text is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The prompt, before the handler.
    Before,
    /// The reply.
    After,
}

impl Phase {
    const ALL: [Self; 2] = [Self::Before, Self::After];

    fn as_str(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

/// Counts of one phase.
#[derive(Debug)]
struct OfPhase {
    judged: AtomicU64,
    /// Number of refused texts by category.
    refused: Vec<AtomicU64>,
}

/// Counts since the start of the worker.
#[derive(Debug)]
pub(crate) struct Counts {
    names: Vec<String>,
    phases: [OfPhase; 2],
}

impl Counts {
    pub(crate) fn new(categories: &[Category]) -> Self {
        let of_phase = |_| OfPhase {
            judged: AtomicU64::new(0),
            refused: categories.iter().map(|_| AtomicU64::new(0)).collect(),
        };
        let names = categories.iter().map(|category| category.name.clone()).collect();
        Self { names, phases: Phase::ALL.map(of_phase) }
    }

    /// Adds judged texts.
    pub(crate) fn judged(&self, texts: u64, phase: Phase) {
        self.phases[phase as usize].judged.fetch_add(texts, Ordering::Relaxed);
    }

    /// Adds a refused text.
    pub(crate) fn refused(&self, category: usize, phase: Phase) {
        if let Some(count) = self.phases[phase as usize].refused.get(category) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the counts as metrics.
    pub(crate) fn measures(&self) -> Vec<Measure> {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let phases = || Phase::ALL.into_iter().zip(&self.phases);
        let judged = phases().map(|(phase, counts)| {
            let help = "Prompts and replies that were judged";
            Measure::counter("judged", help, count(&counts.judged)).of("phase", phase.as_str())
        });
        let refused = phases().flat_map(|(phase, counts)| {
            self.names.iter().zip(&counts.refused).map(move |(name, refused)| {
                let help = "Prompts and replies that were refused";
                Measure::counter("refused", help, count(refused))
                    .of("category", name)
                    .of("phase", phase.as_str())
            })
        });
        judged.chain(refused).collect()
    }
}
