//! Worker binary of the judge: `cargo run --release -p classifier --bin guard -- --config examples/classifier/guard.toml`

use classifier::guard::Guard;
use nsbridge::Batched;
use nsbridge_judged::Scoring;

fn main() -> std::process::ExitCode {
    nsbridge::serve_async::<Batched<Scoring<Guard>>>()
}
