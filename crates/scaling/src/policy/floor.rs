//! Floors of the number of workers by the time of day.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Minutes of a day.
const DAY_MIN: u16 = 24 * 60;

/// Seconds of a day.
pub(crate) const DAY_S: f64 = 86_400.0;

/// Time of day with minutes, from 00:00 to 24:00, written `HH:MM`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TimeOfDay {
    minutes: u16,
}

impl TimeOfDay {
    /// Seconds since midnight.
    pub fn seconds(self) -> f64 {
        f64::from(self.minutes) * 60.0
    }
}

impl FromStr for TimeOfDay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no time of day: write HH:MM, from 00:00 to 24:00");
        let number = |digits: &str| {
            let is_number = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_digit());
            is_number.then(|| digits.parse::<u16>().ok()).flatten()
        };
        let (hours, minutes) = text.split_once(':').ok_or_else(wrong)?;
        let (hours, minutes) =
            (number(hours).ok_or_else(wrong)?, number(minutes).ok_or_else(wrong)?);
        let all = hours * 60 + minutes;
        if minutes > 59 || all > DAY_MIN { Err(wrong()) } else { Ok(Self { minutes: all }) }
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.minutes / 60, self.minutes % 60)
    }
}

/// Smallest number of workers within a part of each day, written `HH:MM-HH:MM = N`.
///
/// The end is not part of it. If it is before the start, the part goes over midnight. Equal times are refused; the
/// whole day is `00:00-24:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Floor {
    from: TimeOfDay,
    to: TimeOfDay,
    workers: u32,
}

impl Floor {
    /// Number of workers.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// Returns true if a time, in seconds since midnight, is within the part of the day.
    pub fn contains(&self, time_of_day_s: f64) -> bool {
        let (from_s, to_s) = (self.from.seconds(), self.to.seconds());
        if from_s < to_s {
            (from_s..to_s).contains(&time_of_day_s)
        } else {
            time_of_day_s >= from_s || time_of_day_s < to_s
        }
    }
}

impl FromStr for Floor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no floor: write HH:MM-HH:MM = N, as 08:00-20:00 = 4");
        let (times, workers) = text.split_once('=').ok_or_else(wrong)?;
        let (from, to) = times.split_once('-').ok_or_else(wrong)?;
        let workers = workers.trim().parse().map_err(|_| wrong())?;
        let (from, to): (TimeOfDay, TimeOfDay) = (from.trim().parse()?, to.trim().parse()?);
        if from == to {
            return Err(format!(
                "{text:?} begins and ends at {from}: write 00:00-24:00 for the day"
            ));
        }
        Ok(Self { from, to, workers })
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{} = {}", self.from, self.to, self.workers)
    }
}

/// Conversions that serde uses, by `FromStr` and `Display`.
macro_rules! as_text {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    };
}

as_text!(TimeOfDay);
as_text!(Floor);

#[cfg(test)]
mod tests {
    //! Parts of a day as they are written.

    use super::Floor;

    const HOUR_S: f64 = 3600.0;

    #[track_caller]
    fn check(floor: &str, hours: &[(f64, bool)]) {
        let floor: Floor = floor.parse().unwrap();
        for (hour, expected) in hours {
            assert_eq!(floor.contains(hour * HOUR_S), *expected, "{floor} at {hour}");
        }
    }

    #[test]
    fn a_part_of_the_day_begins_with_its_start_and_ends_before_its_end() {
        check("08:00-20:00 = 4", &[(7.99, false), (8.0, true), (19.99, true), (20.0, false)]);
        check("00:00-24:00=1", &[(0.0, true), (23.99, true)]);
    }

    #[test]
    fn a_part_of_the_day_goes_over_midnight() {
        check("22:30-06:00 = 2", &[(22.4, false), (22.5, true), (0.0, true), (6.0, false)]);
    }

    #[test]
    fn a_wrong_floor_is_refused_with_its_form() {
        for (text, part) in [
            ("8:00-20:00 = 4", "HH:MM, from"),
            ("08:60-20:00 = 4", "HH:MM, from"),
            ("08:00-24:01 = 4", "HH:MM, from"),
            ("08:00-20:00", "HH:MM-HH:MM = N"),
            ("08:00-20:00 = -1", "HH:MM-HH:MM = N"),
            ("08:00 = 3", "HH:MM-HH:MM = N"),
            ("08:00-08:00 = 3", "00:00-24:00"),
        ] {
            let said = text.parse::<Floor>().unwrap_err();
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn a_floor_is_text_in_json() {
        let floor: Floor = serde_json::from_str("\" 08:00 - 20:00=4\"").unwrap();
        assert_eq!(serde_json::to_string(&floor).unwrap(), "\"08:00-20:00 = 4\"");
    }
}
