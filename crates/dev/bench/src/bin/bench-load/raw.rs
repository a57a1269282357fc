//! Reference loader: AWS's client, ranges, and one buffer per file.

use anyhow::{Context as _, Result, ensure};
use aws_credential_types::Credentials;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Config, Region};
use futures_util::TryStreamExt as _;

use crate::serve::{BUCKET, PREFIX, Place};

/// Size of a range in bytes, and maximum number of requests under way.
const CHUNK: usize = 16 << 20;
const UNDER_WAY: usize = 16;

pub(crate) fn client(place: &Place) -> Client {
    let credentials = Credentials::new(&place.access_key, &place.secret_key, None, None, "bench");
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .endpoint_url(&place.endpoint)
        .region(Region::from_static("us-east-1"))
        .force_path_style(true)
        .credentials_provider(credentials);
    Client::from_conf(config.build())
}

/// Lists the keys and sizes of the checkpoint's safetensors files.
pub(crate) async fn shards(client: &Client) -> Result<Vec<(String, usize)>> {
    let listed = client.list_objects_v2().bucket(BUCKET).prefix(PREFIX).send().await?;
    let all = listed.contents().iter().filter_map(|object| Some((object.key()?, object.size()?)));
    let shards = all.filter(|(key, _)| key.ends_with(".safetensors"));
    Ok(shards.map(|(key, size)| (key.to_owned(), size as usize)).collect())
}

/// Reads every file into memory.
pub(crate) fn load(place: &Place) -> Result<Vec<File>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = client(place);
        let shards = shards(&client).await?;
        let mut files: Vec<_> = shards.iter().map(|(_, size)| vec![0; *size]).collect();
        let mut chunks = Vec::new();
        for ((key, _), file) in shards.iter().zip(&mut files) {
            let pieces = file.chunks_mut(CHUNK).enumerate();
            chunks.extend(pieces.map(|(index, piece)| (key.as_str(), index * CHUNK, piece)));
        }
        let read = |(key, start, piece)| Ok(read(&client, key, start, piece));
        let reads = futures_util::stream::iter(chunks.into_iter().map(read));
        reads.try_buffer_unordered(UNDER_WAY).try_collect::<()>().await?;
        files.into_iter().map(File::new).collect()
    })
}

async fn read(client: &Client, key: &str, start: usize, piece: &mut [u8]) -> Result<()> {
    let range = format!("bytes={start}-{}", start + piece.len() - 1);
    let got = client.get_object().bucket(BUCKET).key(key).range(range).send().await?;
    let (mut body, mut filled) = (got.body, 0);
    while let Some(frame) = body.try_next().await? {
        let room = piece.get_mut(filled..filled + frame.len()).context("more than was asked")?;
        room.copy_from_slice(&frame);
        filled += frame.len();
    }
    ensure!(filled == piece.len(), "{filled} of {} bytes came", piece.len());
    Ok(())
}

/// Safetensors file in memory.
pub(crate) struct File {
    bytes: Vec<u8>,
    header: usize,
}

impl File {
    pub(crate) fn new(bytes: Vec<u8>) -> Result<Self> {
        let length = bytes.first_chunk().context("a file without a header")?;
        let header = 8 + usize::try_from(u64::from_le_bytes(*length))?;
        ensure!(header <= bytes.len(), "a header longer than its file");
        Ok(Self { bytes, header })
    }
}

impl AsRef<[u8]> for File {
    /// Returns the data of all tensors.
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.header..]
    }
}
