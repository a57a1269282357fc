//! Runs an in-memory object store until standard input ends.
//!
//! `cargo run -p nsbridge-testkit --features s3 --example s3 -- FOLDER` fills the bucket `models`
//! with the files of a folder. The output is the environment for a program that uses the store.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use nsbridge_testkit::s3::S3Server;

const BUCKET: &str = "models";

#[expect(clippy::print_stdout, reason = "where it is and whose is what this prints")]
fn main() -> Result<()> {
    let server = S3Server::start()?;
    server.bucket(BUCKET);
    if let Some(folder) = std::env::args_os().nth(1) {
        preload(&server, Path::new(&folder), "")?;
    }
    println!("AWS_ENDPOINT_URL={}", server.endpoint());
    println!("AWS_ACCESS_KEY_ID={}", server.access_key());
    println!("AWS_SECRET_ACCESS_KEY={}", server.secret_key());
    println!("AWS_REGION=us-east-1");
    for key in server.objects(BUCKET) {
        println!("# s3://{BUCKET}/{key}");
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Uploads the files of a folder recursively; the key of a file is its path relative to the folder.
fn preload(server: &S3Server, folder: &Path, above: &str) -> Result<()> {
    let entries = folder.read_dir().with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().context("an entry has a name")?.to_string_lossy();
        if path.is_dir() {
            preload(server, &path, &format!("{above}{name}/"))?;
        } else {
            let bytes =
                std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            server.put(BUCKET, &format!("{above}{name}"), bytes);
        }
    }
    Ok(())
}
