//! Naive loader: each object is downloaded to a file, which is then memory-mapped as candle does.

use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, Result};
use aws_sdk_s3::Client;
use memmap2::Mmap;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;

use crate::raw;
use crate::serve::{BUCKET, Place};

/// Loads every tensor by a copy out of its file, as candle does for the CPU.
pub(crate) fn load(place: &Place) -> Result<Vec<Vec<u8>>> {
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = raw::client(place);
        for (index, (key, _)) in raw::shards(&client).await?.into_iter().enumerate() {
            download(&client, &key, &folder.path().join(index.to_string())).await?;
        }
        anyhow::Ok(())
    })?;
    let mut tensors = Vec::new();
    for entry in folder.path().read_dir()? {
        tensors.extend(tensors_of(&File::open(entry?.path())?)?);
    }
    Ok(tensors)
}

async fn download(client: &Client, key: &str, path: &Path) -> Result<()> {
    let mut body = client.get_object().bucket(BUCKET).key(key).send().await?.body;
    let mut file = tokio::fs::File::create(path).await?;
    while let Some(frame) = body.try_next().await? {
        file.write_all(&frame).await?;
    }
    Ok(file.flush().await?)
}

#[expect(unsafe_code, reason = "a map of a file is what is measured here")]
fn tensors_of(file: &File) -> Result<Vec<Vec<u8>>> {
    // SAFETY: the file is in a temporary folder of this process, where no other process writes.
    let map = unsafe { Mmap::map(file) }?;
    let length = map.first_chunk().context("a file without a header")?;
    let start = 8 + usize::try_from(u64::from_le_bytes(*length))?;
    let header: serde_json::Map<String, Value> =
        serde_json::from_slice(map.get(8..start).context("a header longer than its file")?)?;
    let offsets = header.values().filter_map(|tensor| tensor.get("data_offsets"));
    offsets
        .map(|offsets| {
            let (from, to): (usize, usize) = serde_json::from_value(offsets.clone())?;
            Ok(map.get(start + from..start + to).context("a tensor beyond the end")?.to_vec())
        })
        .collect()
}
