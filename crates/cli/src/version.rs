//! Text of `nsbridge --version`.

use std::sync::LazyLock;

use nsbridge_kernels::Tier;

/// Cargo features of the command that are compiled in.
const FEATURES: [(&str, bool); 4] = [
    ("kms", cfg!(feature = "kms")),
    ("cuda", cfg!(feature = "cuda")),
    ("nccl", cfg!(feature = "nccl")),
    ("emulator", cfg!(feature = "emulator")),
];

static LONG: LazyLock<String> = LazyLock::new(|| {
    let enabled = FEATURES.iter().filter(|(_, is_enabled)| *is_enabled);
    let features: Vec<&str> = enabled.map(|(name, _)| *name).collect();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    let tier = Tier::best();
    format!(
        "{}\ncommit    {}\nfeatures  {features}\ntarget    {}\nCPU tier  {tier}{}",
        env!("CARGO_PKG_VERSION"),
        env!("BUILD_COMMIT"),
        env!("BUILD_TARGET"),
        remark(tier, cfg!(target_arch = "x86_64")),
    )
});

/// Returns the version, the build and the tier of the kernels on this machine, one on a line.
pub(crate) fn long() -> &'static str {
    &LONG
}

/// Returns what the tier means, if it is not one that a model should run on.
fn remark(tier: Tier, is_x86: bool) -> &'static str {
    match tier {
        Tier::Portable if is_x86 => {
            "\nThis machine has no AVX2, FMA and F16C: models run with the same text, many times slower."
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_kernels::Tier;

    use super::{long, remark};

    #[test]
    fn the_build_is_named_line_by_line() {
        let starts: Vec<&str> =
            long().lines().map(|line| line.split("  ").next().unwrap()).collect();
        assert_eq!(
            starts[..5],
            [env!("CARGO_PKG_VERSION"), "commit", "features", "target", "CPU tier"]
                .map(|start| { start.split("  ").next().unwrap() })
        );
    }

    #[test]
    fn a_machine_without_avx2_is_told_what_that_means() {
        assert!(remark(Tier::Portable, true).contains("no AVX2"));
        assert_eq!(remark(Tier::Portable, false), "");
        assert_eq!(remark(Tier::Avx2, true), "");
    }
}
