//! Peer of `cargo xtask bench load` with the object_store crate: reads every file in ranges of 8
//! MiB.
//!
//! The arguments are bucket and prefix. The store's address comes from the environment. The output
//! is the cost of the load, in the format of the benchmark's own clients.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use serde_json::json;

/// Size of a range in bytes, and maximum number of requests under way.
const CHUNK: u64 = 8 << 20;
const UNDER_WAY: usize = 16;

#[tokio::main]
async fn main() -> Result<()> {
    let [bucket, prefix] = [1, 2].map(|index| std::env::args().nth(index).unwrap_or_default());
    let (cpu, wall) = (cpu_s()?, Instant::now());
    let store =
        AmazonS3Builder::from_env().with_bucket_name(bucket).with_allow_http(true).build()?;
    let listed: Vec<_> = store.list(Some(&Path::from(prefix))).try_collect().await?;
    let mut chunks = Vec::new();
    for object in listed.iter().filter(|object| object.location.as_ref().ends_with(".safetensors"))
    {
        let starts = (0..object.size).step_by(CHUNK as usize);
        chunks.extend(starts.map(|at| (&object.location, at..object.size.min(at + CHUNK))));
    }
    let read = |(path, range)| store.get_range(path, range);
    let reads = futures_util::stream::iter(chunks.clone()).map(read).buffered(UNDER_WAY);
    let parts: Vec<_> = reads.try_collect().await?;
    let (cpu_s, wall_s) = (cpu_s()? - cpu, wall.elapsed().as_secs_f64());
    let peak_mb = peak_mb()?;

    let (mut bytes, mut words) = (0, 0_u64);
    for ((_, range), part) in chunks.iter().zip(&parts) {
        // Only the first range of a file contains its header, and no header is longer than a range.
        let header = if range.start == 0 {
            8 + u64::from_le_bytes(part[..8].try_into()?) as usize
        } else {
            0
        };
        ensure!(header <= part.len(), "a header longer than the first part");
        bytes += part.len() - header;
        for word in part[header..].as_chunks::<8>().0 {
            words = words.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    println!(
        "{}",
        json!({ "cpu_s": cpu_s, "wall_s": wall_s, "peak_mb": peak_mb, "bytes": bytes, "words": words })
    );
    Ok(())
}

/// Returns the processor time of all threads in seconds. `/proc` counts it in ticks of 10 ms.
fn cpu_s() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").context("/proc/self/stat has a name in brackets")?;
    let ticks: Vec<f64> =
        fields.split(' ').skip(11).take(2).filter_map(|it| it.parse().ok()).collect();
    Ok(ticks.iter().sum::<f64>() / 100.0)
}

fn peak_mb() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes: f64 = line
        .and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .context("/proc/self/status names no VmHWM")?;
    Ok(kilobytes * 1024.0 / 1e6)
}
