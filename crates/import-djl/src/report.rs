//! Report of an import: one line for each option of the input.

use super::draft::one_line;
use super::settings::Setting;

/// Fate of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The option is in `worker.toml`; the text says where.
    Carried(String),
    /// The option has no effect, or nsbridge does without it what it asks for.
    NotNeeded(String),
    /// The effect of the option is lost.
    NotCarried(String),
    /// Neither DJLServing's documentation nor this program knows the option.
    Unknown(String),
}

impl Fate {
    fn name(&self) -> &'static str {
        match self {
            Self::Carried(_) => "carried over",
            Self::NotNeeded(_) => "not needed",
            Self::NotCarried(_) => "NOT CARRIED",
            Self::Unknown(_) => "UNKNOWN",
        }
    }

    pub(super) fn text(&self) -> &str {
        let (Self::Carried(text)
        | Self::NotNeeded(text)
        | Self::NotCarried(text)
        | Self::Unknown(text)) = self;
        text
    }

    /// Returns true if the option has an effect that the worker lacks, or may have one.
    pub(super) fn is_loss(&self) -> bool {
        matches!(self, Self::NotCarried(_) | Self::Unknown(_))
    }
}

/// Option with its fate.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Place in the input, with earlier lines of the name.
    pub(super) place: String,
    pub(super) fate: Fate,
}

/// Report of an import.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) entries: Vec<Entry>,
    /// Steps that are left to a person before the worker starts.
    pub(super) steps: Vec<String>,
    /// Facts about the model's folder that no option tells of.
    pub(super) remarks: Vec<String>,
}

impl Report {
    pub(super) fn add(&mut self, setting: &Setting, fate: Fate) {
        let mut place = setting.place.to_string();
        if !setting.earlier.is_empty() {
            let earlier: Vec<_> = setting.earlier.iter().map(ToString::to_string).collect();
            place += &format!("; the value of {} has no effect", earlier.join(", "));
        }
        self.entries.push(Entry { name: setting.name.clone(), place, fate });
    }

    /// Returns the number of options that were lost.
    pub(super) fn losses(&self) -> usize {
        self.entries.iter().filter(|entry| entry.fate.is_loss()).count()
    }

    /// Returns the report as lines without line breaks.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.entries.iter().map(Entry::line).collect();
        let count =
            |is: fn(&Fate) -> bool| self.entries.iter().filter(|entry| is(&entry.fate)).count();
        lines.push(format!(
            "{} options: {} carried over, {} not needed, {} not carried over, {} unknown",
            self.entries.len(),
            count(|fate| matches!(fate, Fate::Carried(_))),
            count(|fate| matches!(fate, Fate::NotNeeded(_))),
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
