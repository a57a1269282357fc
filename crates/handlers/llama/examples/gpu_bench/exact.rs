//! Comparison of a device's logits with those of the CPU.

use std::path::Path;

use nsbridge_handler::{Error, Result};
use nsbridge_llama::{
    Arithmetic, Backend, BlockTable, Chunk, Config, Format, Model, Setup, Weights,
};
use serde_json::json;

/// Largest root mean square of the differences in bf16, of that of the logits.
const TOLERANCE: f64 = 2e-2;

/// Rows of the steps: a prompt of more than one page, steps whose launches are recorded when they
/// come again, and drafts.
const STEPS: [usize; 9] = [40, 1, 1, 1, 1, 5, 5, 5, 3];

/// Compares the models in these folders. Returns false if one differs.
pub(crate) fn run(device: &str, folders: &[&str]) -> Result<bool> {
    let mut all = true;
    for folder in folders {
        let folder = Path::new(folder);
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        for format in [None, Some(Format::Q8_0)] {
            let cpu = logits(folder, "cpu", (1, Arithmetic::Portable), format)?;
            let exact = [1, 2].map(|ranks| (ranks, Arithmetic::Portable));
            let bf16 = format.is_none().then_some((1, Arithmetic::Native));
            for (ranks, arithmetic) in exact.into_iter().chain(bf16) {
                let own = logits(folder, device, (ranks, arithmetic), format)?;
                let equal = own.iter().zip(&cpu).all(|(own, cpu)| own.to_bits() == cpu.to_bits());
                let apart = apart(&own, &cpu);
                let passed = match arithmetic {
                    Arithmetic::Portable => equal,
                    _ => apart <= TOLERANCE,
                };
                all &= passed;
                super::print(&json!({
                    "kind": "exact", "model": name, "device": device, "ranks": ranks,
                    "format": format.map_or("stored".to_owned(), |format| format.to_string()),
                    "arithmetic": arithmetic, "logits": own.len(), "equal": equal, "apart": apart,
                    "passed": passed,
                }));
            }
        }
    }
    Ok(all)
}

/// Returns the logits of all rows of the steps.
fn logits(
    folder: &Path,
    device: &str,
    (ranks, arithmetic): (usize, Arithmetic),
    format: Option<Format>,
) -> Result<Vec<f32>> {
    let files = nsbridge_handler::Model::in_dir(folder);
    let config = Config::read(&files).map_err(Error::fatal)?;
    let weights = Weights::for_ranks(&files, ranks).map_err(Error::fatal)?;
    let formats = [format.unwrap_or(Format::Bf16)];
    let device = Backend::named(device, ranks, arithmetic, &formats).map_err(Error::fatal)?;
    let setup = Setup { device, ranks, format, ..Setup::default() };
    let mut model = Model::new(&config, 128, &weights, &setup).map_err(Error::fatal)?;
    let (mut table, mut all, mut next) = (BlockTable::default(), Vec::new(), 1);
    for rows in STEPS {
        let tokens = (0..rows).map(|_| {
            next = next * 31 % 1009;
            next % config.vocab_size as u32
        });
        let tokens: Vec<u32> = tokens.collect();
        if !model.cache().reserve(&mut table, rows) {
            return Err(Error::fatal("the cache is too small"));
        }
        let chunk = Chunk { table: &mut table, tokens: &tokens, logits: rows };
        all.extend(model.forward(&mut [chunk])?.rows().flatten());
    }
    Ok(all)
}

fn apart(own: &[f32], other: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let of = other.iter().map(|other| square((*other).into())).sum::<f64>();
    let pairs = own.iter().zip(other);
    (pairs.map(|(own, other)| square(f64::from(*own) - f64::from(*other))).sum::<f64>() / of).sqrt()
}
