//! Progress as one line of text.

use std::time::Duration;

/// Units of bytes, each with its size and the number of its decimals.
const UNITS: [(&str, f64, usize); 3] = [("GB", 1e9, 1), ("MB", 1e6, 0), ("kB", 1e3, 0)];

/// Formats the progress of work that has taken this time.
pub(super) fn line(what: &str, (done, total): (u64, u64), took: Duration) -> String {
    if total == 0 {
        return format!("{what}: {}", duration(took));
    }
    let (done, total) = (done.min(total) as f64, total as f64);
    let rate = done / took.as_secs_f64().max(1e-3);
    let (unit, size, decimals) = unit_of(total);
    let mut line =
        format!("{what}: {:.decimals$} of {:.decimals$} {unit}", done / size, total / size);
    if done > 0.0 {
        let (unit, size, decimals) = unit_of(rate);
        let left = Duration::from_secs_f64(((total - done) / rate).min(1e9));
        line += &format!(", {:.decimals$} {unit}/s, {} left", rate / size, duration(left));
    }
    line
}

fn unit_of(bytes: f64) -> (&'static str, f64, usize) {
    UNITS.into_iter().find(|(_, size, _)| bytes >= *size).unwrap_or(UNITS[2])
}

/// Formats a time by its two largest units.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::line;

    #[track_caller]
    fn check(numbers: (u64, u64), seconds: u64, text: &str) {
        assert_eq!(line("loading target", numbers, Duration::from_secs(seconds)), text);
    }

    #[test]
    fn a_line_has_bytes_rate_and_time_left() {
        let of_4_gb = (1_200_000_000, 4_500_000_000);
        check(of_4_gb, 4, "loading target: 1.2 of 4.5 GB, 300 MB/s, 11 s left");
        check(of_4_gb, 400, "loading target: 1.2 of 4.5 GB, 3 MB/s, 18 min 20 s left");
        check((3_000_000, 28_000_000), 2, "loading target: 3 of 28 MB, 2 MB/s, 17 s left");
        check(
            (9_000_000_000_000, 10_000_000_000_000),
            36_000,
            "loading target: 9000.0 of 10000.0 GB, 250 MB/s, 1 h 6 min left",
        );
        check((5, 10), 5, "loading target: 0 of 0 kB, 0 kB/s, 5 s left");
    }

    #[test]
    fn a_load_that_has_nothing_yet_has_no_rate() {
        check((0, 4_500_000_000), 4, "loading target: 0.0 of 4.5 GB");
    }

    #[test]
    fn work_of_an_unknown_size_has_its_time_alone() {
        check((0, 0), 7, "loading target: 7 s");
        check((5, 0), 7, "loading target: 7 s");
        check((0, 0), 61, "loading target: 1 min 1 s");
    }

    #[test]
    fn more_bytes_than_were_expected_are_all_of_them() {
        check((20_000_000, 10_000_000), 5, "loading target: 10 of 10 MB, 2 MB/s, 0 s left");
    }
}
