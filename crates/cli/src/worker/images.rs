//! Images that requests name by their digest: objects of a bucket or a folder.

use std::fmt;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use nsbridge_handler::{
    AsyncHandler, AsyncJob, Error, Fingerprint, Finish, Health, Image, Measure, Models,
    MultimodalInput, Result, TextInput,
};
use nsbridge_store::{Location, SmallFiles, StoreConfig, StoreError};
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use tokio::select;
use tokio::sync::Semaphore;

/// Field of `[handler]` with the place of the images.
const IMAGES: &str = "images";

/// Maximum size of the named images of a request, in bytes.
const MOST_BYTES: u64 = 32 << 20;

/// Maximum number of named images of a request.
const MOST_IMAGES: usize = 128;

/// Number of requests whose images are read at the same time. It bounds the memory that they take, which
/// is several times their size.
const MOST_READERS: usize = 2;

/// Handler that reads the images of its requests from a store.
pub(crate) struct WithImages<H> {
    inner: H,
    /// `None` if requests cannot name images by digest.
    store: Option<SmallFiles>,
    readers: Semaphore,
}

/// Options of the handler inside, and the store of images.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options<O> {
    place: Option<Place>,
    own: O,
}

/// Place of the images, and the access to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Place {
    place: String,
    store: StoreConfig,
}

/// Adds the worker's access to buckets to the place of the images in `[handler]`.
///
/// # Errors
///
/// Returns an error if the place is no folder and no bucket.
pub(super) fn place(handler: &mut toml::Table, store: &StoreConfig) -> anyhow::Result<()> {
    let Some(place) = handler.get(IMAGES) else { return Ok(()) };
    let location = place.as_str().map(str::parse::<Location>);
    let location = match location {
        Some(Ok(location)) => location.to_string(),
        Some(Err(error)) => anyhow::bail!("[handler] images: {error}"),
        None => anyhow::bail!("[handler] images must be a folder or s3://bucket/prefix"),
    };
    let place = Place { place: location, store: store.clone() };
    handler.insert(IMAGES.to_owned(), toml::Value::try_from(place)?);
    Ok(())
}

impl<'de, O: DeserializeOwned> Deserialize<'de> for Options<O> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table: Map<String, Value> = Map::deserialize(deserializer)?;
        let place = table.remove(IMAGES).map(serde_json::from_value).transpose();
        let own = serde_json::from_value(Value::Object(table)).map_err(D::Error::custom)?;
        Ok(Self { place: place.map_err(D::Error::custom)?, own })
    }
}

impl<H> WithImages<H> {
    fn new(inner: H, store: Option<SmallFiles>) -> Self {
        Self { inner, store, readers: Semaphore::new(MOST_READERS) }
    }

    /// Replaces digests of images by the images.
    async fn fetch(&self, input: &mut TextInput) -> Result<()> {
        let images = input.messages.iter().flat_map(|message| message.content.images());
        match images.filter(|image| image.digest().is_some()).count() {
            0 => return Ok(()),
            MOST_IMAGES.. => {
                let message = format!("`messages` name {MOST_IMAGES} or more images by digest");
                return Err(Error::bad_input(message));
            }
            _ => {}
        }
        let _reader = self.readers.acquire().await.map_err(Error::fatal)?;
        let mut left = MOST_BYTES;
        for (index, message) in input.messages.iter_mut().enumerate() {
            for image in message.content.images_mut() {
                let Some(digest) = image.digest().map(str::to_owned) else { continue };
                let refused = |why: &str| {
                    Error::bad_input(format!(
                        "`messages[{index}].content`: the image {digest} {why}"
                    ))
                };
                let Some(store) = &self.store else {
                    return Err(refused(
                        "is named by its digest, and this worker has no store of images",
                    ));
                };
                let read = match store.get(&digest, left).await {
                    Err(StoreError::Unusable { .. }) => {
                        let most = MOST_BYTES >> 20;
                        return Err(refused(&format!("is too large: all have at most {most} MiB")));
                    }
                    read => read.map_err(Error::retry)?,
                };
                let Some(bytes) = read else {
                    return Err(refused("is not in the store of images"));
                };
                if hex(&Sha256::digest(&bytes)) != digest {
                    return Err(refused("has another content in the store of images"));
                }
                let Some(kind) = Image::type_of(&bytes) else {
                    return Err(refused("is no PNG, JPEG, WebP or GIF"));
                };
                left -= bytes.len() as u64;
                image.url = format!("data:{kind};base64,{}", BASE64_STANDARD.encode(&bytes));
            }
        }
        Ok(())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl<H: AsyncHandler<Input = MultimodalInput>> AsyncHandler for WithImages<H> {
    type Options = Options<H::Options>;
    type Input = MultimodalInput;
    type Output = H::Output;

    async fn load(options: Self::Options, models: Models) -> Result<Self> {
        let store = match options.place {
            None => None,
            Some(Place { place, store }) => {
                let location: Location = place
                    .parse()
                    .map_err(|error| Error::fatal(format!("[handler] images: {error}")))?;
                let opened = SmallFiles::open(&location, &store).await;
                Some(opened.map_err(|error| Error::fatal(format!("[handler] images: {error}")))?)
            }
        };
        Ok(Self::new(H::load(options.own, models).await?, store))
    }

    async fn handle(
        &self,
        MultimodalInput(mut input): MultimodalInput,
        job: &mut AsyncJob<H::Output>,
    ) -> Result<Finish> {
        select! {
            fetched = self.fetch(&mut input) => fetched?,
            stop = job.stopped() => return Err(stop.into()),
        }
        self.inner.handle(MultimodalInput(input), job).await
    }

    fn tasks(&self) -> usize {
        self.inner.tasks()
    }

    async fn warm_up(&self) -> Result<()> {
        self.inner.warm_up().await
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn forget(&self) {
        self.inner.forget();
    }

    fn measures(&self) -> Vec<Measure> {
        self.inner.measures()
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        self.inner.fingerprint()
    }
}

impl<H: fmt::Debug> fmt::Debug for WithImages<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithImages").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_handler::{ChatMessage, Image, TextInput};
    use nsbridge_store::{Location, SmallFiles, StoreConfig};
    use serde_json::{Map, Value};
    use sha2::{Digest as _, Sha256};

    use super::{Options, WithImages, hex, place};

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

    fn asks_for(digest: &str) -> TextInput {
        let mut message = ChatMessage::new("user", "Which animal is this?");
        message.content.push_image(Image::new(format!("sha256:{digest}")));
        TextInput::chat([ChatMessage::new("system", "a"), message])
    }

    fn url(input: &TextInput) -> &str {
        &input.messages[1].content.images().next().unwrap().url
    }

    #[tokio::test]
    async fn an_image_is_read_by_its_digest_and_checked_against_it() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::Folder(folder.path().into());
        let files = SmallFiles::open(&location, &StoreConfig::default()).await.unwrap();
        let digest = |bytes: &[u8]| hex(&Sha256::digest(bytes));
        let (seen, other) = (digest(PNG), digest(b"another"));
        files.put(&seen, PNG.to_vec()).await.unwrap();
        files.put(&other, b"forged".to_vec()).await.unwrap();
        files.put(&digest(b"text"), b"text".to_vec()).await.unwrap();
        let large = vec![0; 33 << 20];
        files.put(&digest(&large), large.clone()).await.unwrap();
        let handler = WithImages::new((), Some(files));
        let mut input = asks_for(&seen);
        handler.fetch(&mut input).await.unwrap();
        assert_eq!(url(&input), "data:image/png;base64,iVBORw0KGgo=");
        for (digest, why) in [
            (&other, "has another content"),
            (&digest(b"text"), "is no PNG, JPEG, WebP or GIF"),
            (&digest(b"none"), "is not in the store of images"),
            (&digest(&large), "is too large: all have at most 32 MiB"),
        ] {
            let error = handler.fetch(&mut asks_for(digest)).await.unwrap_err().to_string();
            assert!(error.contains("`messages[1].content`") && error.contains(why), "{error}");
        }
        let mut many = asks_for(&seen);
        let image = many.messages[1].content.images().next().unwrap().clone();
        (0..128).for_each(|_| many.messages[1].content.push_image(image.clone()));
        let error = handler.fetch(&mut many).await.unwrap_err().to_string();
        assert!(error.contains("128 or more images"), "{error}");
        let without = WithImages::new((), None);
        let error = without.fetch(&mut asks_for(&seen)).await.unwrap_err().to_string();
        assert!(error.contains("this worker has no store of images"), "{error}");
    }

    #[test]
    fn the_place_of_images_gets_the_workers_access_to_buckets() {
        let mut store = StoreConfig::default();
        store.region = Some("eu-central-1".to_owned());
        let mut handler = toml::from_str("images = \"s3://b/seen\"").unwrap();
        place(&mut handler, &store).unwrap();
        let options: Options<Map<String, Value>> = toml::Value::Table(handler).try_into().unwrap();
        let place = options.place.unwrap();
        assert_eq!(place.place, "s3://b/seen");
        assert_eq!(place.store.region.as_deref(), Some("eu-central-1"));
        for odd in ["images = 7", "images = \"https://b/seen\""] {
            let error = super::place(&mut toml::from_str(odd).unwrap(), &store).unwrap_err();
            assert!(error.to_string().starts_with("[handler] images"), "{error}");
        }
    }
}
