//! Report of an import: one line for each option of the input.

use crate::text::one_line;

/// Fate of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The option is in `worker.toml`; the text says where.
    Carried(String),
    /// The option has no effect, or nsbridge does without it what it asks for.
    NotNeeded(String),
    /// The option is one of the gateway, if of anything; the text says where.
    AtGateway(String),
    /// The effect of the option is lost.
    NotCarried(String),
    /// Neither the documentation of the input nor this program knows the option.
    Unknown(String),
}

impl Fate {
    fn name(&self) -> &'static str {
        match self {
            Self::Carried(_) => "carried over",
            Self::NotNeeded(_) => "not needed",
            Self::AtGateway(_) => "gateway",
            Self::NotCarried(_) => "NOT CARRIED",
            Self::Unknown(_) => "UNKNOWN",
        }
    }

    /// Returns the text: where the value is, or why there is none.
    pub fn text(&self) -> &str {
        let (Self::Carried(text)
        | Self::NotNeeded(text)
        | Self::AtGateway(text)
        | Self::NotCarried(text)
        | Self::Unknown(text)) = self;
        text
    }

    /// Returns true if the option has an effect that the worker lacks, or may have one.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::NotCarried(_) | Self::Unknown(_))
    }
}

/// Option with its fate.
#[derive(Debug)]
pub struct Entry {
    /// Name as the input writes it.
    pub name: String,
    /// Place in the input, with earlier places of the name.
    pub place: String,
    /// Fate of the option.
    pub fate: Fate,
}

/// Report of an import.
#[derive(Debug, Default)]
pub struct Report {
    /// Options in the order of the input.
    pub entries: Vec<Entry>,
    /// Steps that are left to a person before the worker starts.
    pub steps: Vec<String>,
    /// Facts about the input that no option tells of.
    pub remarks: Vec<String>,
}

impl Report {
    /// Adds an option.
    pub fn add(&mut self, name: impl Into<String>, place: impl Into<String>, fate: Fate) {
        self.entries.push(Entry { name: name.into(), place: place.into(), fate });
    }

    /// Returns the number of options that were lost.
    pub fn losses(&self) -> usize {
        self.entries.iter().filter(|entry| entry.fate.is_loss()).count()
    }

    /// Returns the report as lines without line breaks.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.entries.iter().map(Entry::line).collect();
        let count =
            |is: fn(&Fate) -> bool| self.entries.iter().filter(|entry| is(&entry.fate)).count();
        let at_gateway = count(|fate| matches!(fate, Fate::AtGateway(_)));
        let at_gateway = (at_gateway > 0).then(|| format!("{at_gateway} at the gateway, "));
        lines.push(format!(
            "{} options: {} carried over, {} not needed, {}{} not carried over, {} unknown",
            self.entries.len(),
            count(|fate| matches!(fate, Fate::Carried(_))),
            count(|fate| matches!(fate, Fate::NotNeeded(_))),
            at_gateway.unwrap_or_default(),
            count(|fate| matches!(fate, Fate::NotCarried(_))),
            count(|fate| matches!(fate, Fate::Unknown(_))),
        ));
        lines.extend(self.remarks.iter().map(|remark| format!("note: {}", one_line(remark))));
        lines.extend(self.steps.iter().map(|step| format!("to do: {}", one_line(step))));
        lines
    }
}

impl Entry {
    fn line(&self) -> String {
        let Self { name, place, fate } = self;
        let (name, text) = (one_line(name), one_line(fate.text()));
        format!("{:<12} {name} ({place}): {text}", fate.name())
    }
}
