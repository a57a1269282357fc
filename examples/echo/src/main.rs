//! Smallest handler: returns the input word by word.
//!
//! `cargo run -p echo -- --config examples/echo/worker.toml`

use nsbridge::{Finish, Handler, Job, Models, Result};

fn main() -> std::process::ExitCode {
    nsbridge::serve::<Echo>()
}

struct Echo;

impl Handler for Echo {
    type Options = ();
    type Input = String;
    type Output = String;

    fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    fn handle(&self, input: String, job: &mut Job<String>) -> Result<Finish> {
        // The pieces that the client has from a lost worker. Without this call the reply starts over.
        let known = job.accept_resume().len();
        for word in input.split_inclusive(' ').skip(known) {
            job.emit(word.to_owned())?;
        }
        Ok(Finish::STOP)
    }
}

#[cfg(test)]
mod tests;
