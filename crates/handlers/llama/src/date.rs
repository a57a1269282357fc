//! Date formatting for chat templates: `strftime` in UTC. The caller passes the time.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Formats `at` by `format`, with the directives used in chat templates.
///
/// An unknown directive is copied unchanged, as in glibc.
pub(crate) fn strftime(format: &str, at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let days = seconds / 86_400;
    let (year, month, day) = civil(days);
    let (month_name, day_name) = (MONTHS[month - 1], DAYS[(days % 7) as usize]);
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let written = match rest.next() {
            Some('Y') => write!(out, "{year}"),
            Some('y') => write!(out, "{:02}", year % 100),
            Some('m') => write!(out, "{month:02}"),
            Some('d') => write!(out, "{day:02}"),
            Some('e') => write!(out, "{day:2}"),
            Some('B') => write!(out, "{month_name}"),
            Some('b') => write!(out, "{}", &month_name[..3]),
            Some('A') => write!(out, "{day_name}"),
            Some('a') => write!(out, "{}", &day_name[..3]),
            Some('H') => write!(out, "{:02}", seconds / 3600 % 24),
            Some('M') => write!(out, "{:02}", seconds / 60 % 60),
            Some('S') => write!(out, "{:02}", seconds % 60),
            Some('%') => write!(out, "%"),
            Some(other) => write!(out, "%{other}"),
            None => write!(out, "%"),
        };
        debug_assert!(written.is_ok(), "a String takes all that is written");
    }
    out
}

/// Converts days since 1970-01-01 to year, month and day (Hinnant, "chrono-Compatible Low-Level
/// Date Algorithms", `civil_from_days`).
fn civil(days: u64) -> (u64, usize, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + u64::from(month <= 2), month as usize, day)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::strftime;

    #[track_caller]
    fn check(seconds: u64, format: &str, expected: &str) {
        assert_eq!(strftime(format, UNIX_EPOCH + Duration::from_secs(seconds)), expected);
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        check(0, "%A %d %B %Y", "Thursday 01 January 1970");
        check(951_782_400, "%a %d %b %Y", "Tue 29 Feb 2000");
        check(951_868_800, "%Y-%m-%d", "2000-03-01");
        check(1_735_689_599, "%y-%m-%d %H:%M:%S", "24-12-31 23:59:59");
        check(4_107_542_400, "%Y-%m-%d %a", "2100-03-01 Mon");
    }

    #[test]
    fn other_text_stays_as_it_is() {
        check(0, "100%% 今日 %Q%", "100% 今日 %Q%");
    }
}
