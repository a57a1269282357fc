//! Runs every kernel on fixed inputs, and prints a hash of what each gives.
//!
//! `self_test emulator` needs the feature `emulator`, `self_test cuda:0` the feature `cuda`. With
//! `--expect FILE`, the hashes are compared with those of the file, which the emulator gave:
//! `expected.txt` beside this source. The bits of bf16's products are the device's: for them the
//! largest difference from sums in f64 is printed.

#![expect(clippy::print_stdout, reason = "the output is for a person")]

mod cases;

use std::process::ExitCode;
use std::sync::Arc;

use cases::{Outcome, TOLERANCE};
use nsbridge_gpu::Error;
use nsbridge_gpu::device::Device;

const USAGE: &str = "arguments: emulator | cuda:NUMBER, and optionally --expect FILE";

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (name, expected) = match arguments[..] {
        [name] => (name, None),
        [name, "--expect", file] | ["--expect", file, name] => {
            let text = std::fs::read_to_string(file).map_err(|why| format!("{file}: {why}"))?;
            (name, Some(text))
        }
        _ => return Err(USAGE.into()),
    };
    let device = open(name)?;
    let expected: Option<Vec<&str>> = expected.as_ref().map(|text| text.lines().collect());
    let mut wrong = 0;
    cases::run(&device, &mut |kernel, outcome| {
        let (line, right) = match outcome {
            Outcome::Bits(hash) => {
                let line = format!("{kernel} {hash:016x}");
                let right = expected.as_ref().is_none_or(|all| all.contains(&line.as_str()));
                (line, right)
            }
            Outcome::Difference(apart) => {
                (format!("{kernel} difference {apart:.2e}"), apart <= TOLERANCE)
            }
        };
        println!("{line}{}", if right { "" } else { ": WRONG" });
        wrong += u32::from(!right);
    })?;
    if wrong > 0 {
        println!("{wrong} kernels gave other results than expected");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn open(name: &str) -> Result<Arc<dyn Device>, Error> {
    match name.split_once(':').unwrap_or((name, "0")) {
        #[cfg(feature = "emulator")]
        ("emulator", "0") => Ok(Arc::new(nsbridge_gpu::emulator::Emulator::new())),
        #[cfg(feature = "cuda")]
        ("cuda", number) => {
            let number = number.parse().map_err(|_| Error::new(USAGE))?;
            Ok(Arc::new(nsbridge_gpu::cuda::Cuda::new(number)?))
        }
        _ => Err(Error::new(format!("there is no device {name}: is its feature on? {USAGE}"))),
    }
}
