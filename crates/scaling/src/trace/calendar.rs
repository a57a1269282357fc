//! Calendar times such as `2023-11-16 18:17:03.9799600`.

/// Digits of a fraction in nanoseconds.
const FRACTION_DIGITS: usize = 9;

/// Returns the nanoseconds since 1970, without a time zone. Years from 1970 to 2199 are known.
pub(super) fn nanoseconds(text: &str) -> Option<i64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.split('-');
    let (year, month, day) = (number(date.next()?)?, number(date.next()?)?, number(date.next()?)?);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut time = time.split(':');
    let (hour, minute, second) =
        (number(time.next()?)?, number(time.next()?)?, number(time.next()?)?);
    let is_whole = date.next().is_none() && time.next().is_none();
    let is_time = hour < 24 && minute < 60 && second < 60;
    let is_fraction = (1..=FRACTION_DIGITS).contains(&fraction.len());
    if !is_whole || !is_time || !is_fraction {
        return None;
    }
    let scale = 10_i64.pow((FRACTION_DIGITS - fraction.len()) as u32);
    let seconds = ((days(year, month, day)? * 24 + hour) * 60 + minute) * 60 + second;
    Some(seconds * 1_000_000_000 + number(fraction)? * scale)
}

/// Reads digits, without a sign.
fn number(digits: &str) -> Option<i64> {
    let is_number = digits.len() <= FRACTION_DIGITS && digits.bytes().all(|it| it.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// Returns the days since 1970 of a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1970..2200).contains(&year) || !(1..=length).contains(&day) {
        return None;
    }
    // Years begin in March, so that the leap day is the last one: H. Hinnant, "chrono-compatible date algorithms".
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    Some(year * 365 + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468)
}

#[cfg(test)]
mod tests {
    //! Known times, and texts that are none.

    use super::nanoseconds;

    #[test]
    fn calendar_times_are_nanoseconds_since_1970() {
        assert_eq!(nanoseconds("1970-01-01 00:00:00"), Some(0));
        assert_eq!(nanoseconds("2023-11-16 18:17:03.9799600"), Some(1_700_158_623_979_960_000));
        assert_eq!(nanoseconds("2024-02-29T23:59:59.5"), Some(1_709_251_199_500_000_000));
        assert_eq!(nanoseconds("2000-03-01 00:00:00"), Some(951_868_800_000_000_000));
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in [
            "",
            "2023-11-16",
            "2023-02-29 00:00:00",
            "2023-13-01 00:00:00",
            "2023-11-16 24:00:00",
            "2023-11-16 18:17",
            "2023-11-16 18:17:03.",
            "2023-11-16 18:17:03.1234567890",
            "2023-11-16 -8:17:03",
            "99999999999999999999-11-16 18:17:03",
            "2023-11-16 18:17:03:04",
        ] {
            assert_eq!(nanoseconds(text), None, "{text}");
        }
    }
}
