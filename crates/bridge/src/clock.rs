//! Wall-clock time in the form of the wire format.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the current Unix time, in ms.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time that is `ms` milliseconds after 1970; 1970 itself if the clock cannot represent
/// it.
pub(crate) fn at_ms(ms: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(UNIX_EPOCH)
}

/// Parses a UTC time of the form `2017-09-18T08:22:00Z`; `None` for any other text.
pub(crate) fn from_utc(text: &str) -> Option<SystemTime> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let known =
        (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !known || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn numbers(text: &str, between: char) -> Option<[u64; 3]> {
    let parts: Option<Vec<u64>> = text.split(between).map(|part| part.parse().ok()).collect();
    parts?.try_into().ok()
}

/// Returns the days since 1970, by the method of Howard Hinnant's `days_from_civil`: years begin in
/// March, so that the leap day is the last day of a year.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let year = if month > 2 { year } else { year - 1 };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::from_utc;

    #[track_caller]
    fn check(text: &str, expected: Option<u64>) {
        let seconds = from_utc(text).map(|at| at.duration_since(UNIX_EPOCH).unwrap().as_secs());
        assert_eq!(seconds, expected, "{text}");
    }

    #[test]
    fn a_time_of_day_in_utc_is_read() {
        check("1970-01-01T00:00:00Z", Some(0));
        check("2000-02-29T12:00:00Z", Some(951_825_600));
        check("2017-09-18T08:22:00Z", Some(1_505_722_920));
        check("2026-03-01T00:00:00Z", Some(1_772_323_200));
        check("2100-03-01T00:00:00Z", Some(4_107_542_400));
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in [
            "",
            "Z",
            "soon",
            "2017-09-18",
            "2017-09-18T08:22:00",
            "2017-09-18T08:22Z",
            "2017-13-18T08:22:00Z",
            "2017-00-18T08:22:00Z",
            "2017-09-32T08:22:00Z",
            "1969-12-31T00:00:00Z",
            "2017-09-18T24:22:00Z",
            "99999999999999999999-01-01T00:00:00Z",
        ] {
            check(text, None);
        }
    }
}
