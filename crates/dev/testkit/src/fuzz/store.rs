//! Fuzz targets for manifests, aliases and model locations: what parses must survive a round trip.

use nsbridge::store::{Alias, Location, Manifest};

pub(super) fn manifest(bytes: &[u8]) {
    let Some(manifest) = taken(Manifest::parse(bytes)) else { return };
    assert_eq!(Manifest::parse(&manifest.to_json()).as_ref(), Ok(&manifest));
    for file in &manifest.files {
        let leads_out = file.path.split('/').any(|part| matches!(part, "" | "." | ".."));
        assert!(!leads_out, "{}", file.path);
        assert_eq!(file.chunks.len() as u64, file.size.div_ceil(manifest.chunk_bytes));
    }
    // Files without chunks are empty, so this cannot be more than the digests allow.
    assert!(manifest.size() <= bytes.len() as u64 * manifest.chunk_bytes);
}

pub(super) fn alias(bytes: &[u8]) {
    let Some(alias) = taken(Alias::parse(bytes)) else { return };
    assert_eq!(Alias::parse(&alias.to_json()).as_ref(), Ok(&alias));
}

pub(super) fn location(text: &str) {
    let Ok(location) = text.parse::<Location>() else { return };
    assert_eq!(location.to_string().parse().as_ref(), Ok(&location));
    if let Location::S3 { bucket, prefix, version } = location {
        assert!(!bucket.is_empty() && !bucket.contains('/'), "{bucket}");
        assert!(!prefix.starts_with('/') && !prefix.ends_with('/'), "{prefix}");
        // It stands in a key: it must not lead to another one.
        assert!(version.is_none_or(|version| !version.contains('/') && version != ".."));
    }
}

fn taken<T>(read: Result<T, String>) -> Option<T> {
    read.inspect_err(|why| assert!(!why.contains(char::is_control), "{why:?}")).ok()
}
