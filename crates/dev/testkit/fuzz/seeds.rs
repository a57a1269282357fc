//! Writes the files that the fuzzer starts from, below the folder that is its argument.

use std::path::PathBuf;
use std::{env, fs, io};

use nsbridge_testkit::fuzz::TARGETS;

fn main() -> io::Result<()> {
    let folder = PathBuf::from(env::args_os().nth(1).unwrap_or_else(|| "seeds".into()));
    for target in TARGETS {
        let folder = folder.join(target.name);
        fs::create_dir_all(&folder)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            fs::write(folder.join(number.to_string()), seed)?;
        }
    }
    Ok(())
}
