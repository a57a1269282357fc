//! Figures as short texts.

/// Writes a number per second with three digits.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        0.0 => "0".to_owned(),
        rate if rate < 0.005 => "<0.01".to_owned(),
        rate if rate < 9.995 => format!("{rate:.2}"),
        rate if rate < 99.95 => format!("{rate:.1}"),
        rate if rate < 9999.5 => format!("{rate:.0}"),
        rate if rate < 999_950.0 => format!("{:.1}k", rate / 1e3),
        rate => format!("{:.1}M", rate / 1e6),
    }
}

/// Writes a time.
pub(super) fn seconds(seconds: f64) -> String {
    let ms = seconds * 1e3;
    if ms < 9.95 {
        format!("{ms:.1} ms")
    } else if ms < 999.5 {
        format!("{ms:.0} ms")
    } else if seconds < 9.995 {
        format!("{seconds:.2} s")
    } else {
        format!("{seconds:.0} s")
    }
}

/// Writes a share in percent.
pub(super) fn share(share: f64) -> String {
    format!("{:.0} %", share * 1e2)
}

#[cfg(test)]
mod tests {
    use super::{rate, seconds, share};

    #[test]
    fn figures_have_about_three_digits() {
        for (value, expected) in [
            (0.0, "0"),
            (0.001, "<0.01"),
            (0.25, "0.25"),
            (9.999, "10.0"),
            (141.26, "141"),
            (12_345.0, "12.3k"),
            (999_999.0, "1.0M"),
        ] {
            assert_eq!(rate(value), expected);
        }
        for (value, expected) in [
            (0.0004, "0.4 ms"),
            (0.01794, "18 ms"),
            (0.9999, "1.00 s"),
            (1.254, "1.25 s"),
            (59.6, "60 s"),
        ] {
            assert_eq!(seconds(value), expected);
        }
        assert_eq!(share(0.666), "67 %");
    }
}
