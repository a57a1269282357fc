//! Worker binary: `cargo run --release -p classifier -- --config examples/classifier/worker.toml`

use classifier::Identifier;
use nsbridge::Batched;

fn main() -> std::process::ExitCode {
    nsbridge::serve_async::<Batched<Identifier>>()
}
