//! Wall-clock time in the form of the wire format.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Index of the colon between minutes and seconds in a time of RFC 3339.
const MINUTES_END: usize = "2017-09-18T08:22".len();

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

/// Parses a time of RFC 3339, such as `2017-09-18T08:22:00Z`; `None` for any other text, and before
/// 1970.
pub(crate) fn from_rfc3339(text: &str) -> Option<SystemTime> {
    // jiff also takes other forms of ISO 8601: without seconds, without separators, with a time zone
    // behind. Only the first could be a time that was cut.
    if text.as_bytes().get(MINUTES_END) != Some(&b':') {
        return None;
    }
    let time: Timestamp = text.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok().map(at_ms)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::from_rfc3339;

    #[track_caller]
    fn check(text: &str, expected: Option<u64>) {
        let seconds = from_rfc3339(text).map(|at| at.duration_since(UNIX_EPOCH).unwrap().as_secs());
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
            "1969-12-31T23:59:59.5Z",
            "2017-09-18T24:22:00Z",
            "99999999999999999999-01-01T00:00:00Z",
        ] {
            check(text, None);
        }
    }
}
