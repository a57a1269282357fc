//! Date formatting for chat templates: `strftime` in UTC. The caller passes the time.

use std::time::SystemTime;

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Directives that chat templates use. Others stay as they are written, so that a later version of
/// the formatter does not change a prompt.
const DIRECTIVES: [char; 13] = ['Y', 'y', 'm', 'd', 'e', 'B', 'b', 'A', 'a', 'H', 'M', 'S', '%'];

/// Formats `at` by `format`, with the directives used in chat templates.
///
/// An unknown directive is copied unchanged, as in glibc.
pub(crate) fn strftime(format: &str, at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap_or_default().to_zoned(TimeZone::UTC);
    let mut out = String::new();
    let mut rest = format.chars().peekable();
    while let Some(c) = rest.next() {
        match rest.next_if(|next| c == '%' && DIRECTIVES.contains(next)) {
            Some(directive) => out.push_str(&at.strftime(&format!("%{directive}")).to_string()),
            None => out.push(c),
        }
    }
    out
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
