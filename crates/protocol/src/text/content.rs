//! Content of a message: a text with images in it.

use std::fmt;
use std::ops::Deref;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};

/// Content of a message: a text, and images at places in it.
///
/// In JSON it is a text, null, or a list of parts of the types `text` and `image_url`, as in OpenAI's
/// chat completions. Adjacent parts of text are joined by line ends. It dereferences to its text.
///
/// ```
/// use nsbridge_protocol::{Content, Image};
///
/// let mut content = Content::from("Which animal is this?");
/// content.push_image(Image::new("data:image/png;base64,iVBORw0KGgo="));
/// assert_eq!(&*content, "Which animal is this?");
/// assert_eq!(content.images().len(), 1);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Content {
    text: String,
    images: Vec<Placed>,
}

/// Image at a place in the text.
#[derive(Clone, PartialEq, Eq)]
struct Placed {
    /// Bytes of text before the image.
    at: usize,
    image: Image,
}

impl Content {
    /// Maximum number of parts.
    pub const MOST_PARTS: usize = 1024;

    /// Returns the images in their order.
    pub fn images(&self) -> impl ExactSizeIterator<Item = &Image> {
        self.images.iter().map(|placed| &placed.image)
    }

    /// Returns true if there is an image.
    pub fn has_images(&self) -> bool {
        !self.images.is_empty()
    }

    /// Returns the images in their order, to change them.
    pub fn images_mut(&mut self) -> impl ExactSizeIterator<Item = &mut Image> {
        self.images.iter_mut().map(|placed| &mut placed.image)
    }

    /// Returns the texts and images in their order, without empty texts.
    pub fn parts(&self) -> impl Iterator<Item = ContentPart<'_>> {
        let ends = self.images.iter().map(|placed| (placed.at, Some(&placed.image)));
        let mut from = 0;
        ends.chain([(self.text.len(), None)]).flat_map(move |(at, image)| {
            let text = &self.text[std::mem::replace(&mut from, at)..at];
            let text = (!text.is_empty()).then_some(ContentPart::Text(text));
            text.into_iter().chain(image.map(ContentPart::Image))
        })
    }

    /// Appends a text: as another line if the last part is a text.
    pub fn push_text(&mut self, text: &str) {
        let after_text = self.images.last().map_or(0, |placed| placed.at) < self.text.len();
        if after_text && !text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(text);
    }

    /// Puts a text before all parts.
    pub fn prefix(&mut self, text: &str) {
        self.text.insert_str(0, text);
        self.images.iter_mut().for_each(|placed| placed.at += text.len());
    }

    /// Appends an image.
    pub fn push_image(&mut self, image: Image) {
        self.images.push(Placed { at: self.text.len(), image });
    }

    /// Appends the parts of another content.
    pub fn append(&mut self, other: &Self) {
        for part in other.parts() {
            match part {
                ContentPart::Text(text) => self.push_text(text),
                ContentPart::Image(image) => self.push_image(image.clone()),
            }
        }
    }

    /// Returns the number of bytes of the text and of the images as they are written.
    pub fn bytes(&self) -> usize {
        self.text.len() + self.images().map(Image::bytes).sum::<usize>()
    }
}

/// Part of a content.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ContentPart<'a> {
    /// Text.
    Text(&'a str),
    /// Image.
    Image(&'a Image),
}

impl Deref for Content {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self { text, images: Vec::new() }
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl PartialEq<str> for Content {
    fn eq(&self, text: &str) -> bool {
        self.images.is_empty() && self.text == text
    }
}

impl PartialEq<&str> for Content {
    fn eq(&self, text: &&str) -> bool {
        *self == **text
    }
}

impl fmt::Debug for Content {
    /// Omits the text and the images.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content")
            .field("text_bytes", &self.text.len())
            .field("images", &self.images.len())
            .finish()
    }
}

impl fmt::Debug for ContentPart<'_> {
    /// Omits the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Image(image) => image.fmt(f),
        }
    }
}

/// Image in a message.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Image {
    /// Image as a data URL, such as `data:image/png;base64,..`, of one of the [types](Self::TYPES).
    ///
    /// A worker with a store of images also takes `sha256:` and 64 hexadecimal digits: the image is
    /// the object that has this digest.
    pub url: String,
    /// Detail in which the model should see the image: `auto`, `low` or `high`. Most models have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl Image {
    /// Types of images, as in a data URL.
    pub const TYPES: [&str; 5] =
        ["image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif"];

    /// Creates an image with a data URL or a digest.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), detail: None }
    }

    /// Returns the type of an image by its first bytes; `None` if it is no PNG, JPEG, WebP or GIF.
    pub fn type_of(bytes: &[u8]) -> Option<&'static str> {
        match bytes {
            [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
            [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
            [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
            _ => None,
        }
    }

    /// Returns the number of bytes of the image as it is written.
    pub fn bytes(&self) -> usize {
        self.url.len()
    }

    /// Returns the hexadecimal digest of an image that is an object in the worker's store of images.
    pub fn digest(&self) -> Option<&str> {
        self.url.strip_prefix("sha256:").filter(|digest| {
            let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            digest.len() == 64 && digest.bytes().all(is_hex)
        })
    }

    /// Returns the reason for which no worker can read the image.
    fn check(&self) -> Result<(), String> {
        if self.digest().is_some() {
            return Ok(());
        }
        let Some(data) = self.url.strip_prefix("data:") else {
            return Err("`image_url.url` must be a data URL, such as `data:image/png;base64,..`: \
                        images at other addresses are not fetched"
                .to_owned());
        };
        let kind = data.split([';', ',']).next().unwrap_or_default();
        if !Self::TYPES.contains(&kind) || !data[kind.len()..].starts_with(";base64,") {
            return Err(format!(
                "`image_url.url` must be a data URL in base64 of one of the types `{}`",
                Self::TYPES.join("`, `")
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for Image {
    /// Omits the image.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({} bytes)", self.url.len())
    }
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.images.is_empty() {
            return serializer.serialize_str(&self.text);
        }
        let mut parts = serializer.serialize_seq(None)?;
        for part in self.parts() {
            parts.serialize_element(&match part {
                ContentPart::Text(text) => Written::Text { text },
                ContentPart::Image(image_url) => Written::ImageUrl { image_url },
            })?;
        }
        parts.end()
    }
}

/// Part of a content, as it is written.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Written<'a> {
    Text { text: &'a str },
    ImageUrl { image_url: &'a Image },
}

/// Part of a content, as it is read. The fields that its type does not have are not read.
#[derive(Deserialize)]
struct Given {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: String,
    #[serde(default, deserialize_with = "image")]
    image_url: Option<Image>,
}

/// Deserializes an image as clients write it: an object, or its URL.
fn image<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Image>, D::Error> {
    struct Given;

    impl<'de> Visitor<'de> for Given {
        type Value = Image;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with the `url` of an image, or that URL, as `image_url`")
        }

        fn visit_str<E>(self, url: &str) -> Result<Image, E> {
            Ok(Image::new(url))
        }

        fn visit_string<E>(self, url: String) -> Result<Image, E> {
            Ok(Image::new(url))
        }

        fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Image, A::Error> {
            Image::deserialize(MapAccessDeserializer::new(fields))
        }
    }

    deserializer.deserialize_any(Given).map(Some)
}

impl Given {
    /// Appends the part to a content. Returns the reason for which it cannot be read.
    fn append(self, content: &mut Content) -> Result<(), String> {
        match (&*self.kind, self.image_url) {
            ("text", _) => content.push_text(&self.text),
            ("image_url", Some(image)) => {
                image.check()?;
                content.push_image(image);
            }
            ("image_url", None) => {
                return Err("a part of type `image_url` in `content` has no `image_url`".to_owned());
            }
            (kind, _) => {
                let kind: String = kind.chars().take(40).collect();
                return Err(format!(
                    "a part of type `{kind}` in `content` cannot be read: only `text` and `image_url` can"
                ));
            }
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

/// Reader of a text, a list of parts, or null.
struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list of parts of type `text` or `image_url`, or null, as `content`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
        Ok(text.into())
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Content, E> {
        Ok(text.into())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Content, E> {
        Ok(Content::default())
    }

    fn visit_none<E: de::Error>(self) -> Result<Content, E> {
        Ok(Content::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
        let (mut content, mut count) = (Content::default(), 0);
        while let Some(part) = parts.next_element::<Given>()? {
            if count == Content::MOST_PARTS {
                return Err(de::Error::custom(format_args!(
                    "`content` must have at most {} parts",
                    Content::MOST_PARTS
                )));
            }
            part.append(&mut content).map_err(de::Error::custom)?;
            count += 1;
        }
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Content, ContentPart, Image};

    #[track_caller]
    fn read(json: &Value) -> Result<Content, String> {
        serde_json::from_str(&json.to_string()).map_err(|error| error.to_string())
    }

    fn text(text: &str) -> Value {
        json!({ "type": "text", "text": text })
    }

    fn image(url: &str) -> Value {
        json!({ "type": "image_url", "image_url": { "url": url } })
    }

    const PNG: &str = "data:image/png;base64,iVBORw0KGgo=";

    #[test]
    fn content_is_a_text_parts_or_nothing() {
        assert_eq!(read(&json!("hi")).unwrap(), "hi");
        assert_eq!(read(&json!(null)).unwrap(), "");
        assert_eq!(read(&json!([text("one"), text("two")])).unwrap(), "one\ntwo");
        assert_eq!(read(&json!([text(""), text("two")])).unwrap(), "two");
        let many = vec![text(""); Content::MOST_PARTS + 1];
        assert!(read(&json!(many)).unwrap_err().contains("at most 1024 parts"));
        let audio = json!([{ "type": "input_audio", "input_audio": {} }]);
        let error = read(&audio).unwrap_err();
        assert!(error.starts_with("a part of type `input_audio` in `content`"), "{error}");
    }

    #[test]
    fn images_have_their_places_in_the_text_and_are_written_as_they_are_read() {
        let parts =
            json!([image(PNG), text("one"), text("two"), image(PNG), image(PNG), text("end")]);
        let content = read(&parts).unwrap();
        assert_eq!(&*content, "one\ntwoend");
        let image = Image::new(PNG);
        let (seen, text) = (ContentPart::Image(&image), ContentPart::Text);
        let expected = [seen, text("one\ntwo"), seen, seen, text("end")];
        assert_eq!(content.parts().collect::<Vec<_>>(), expected);
        let written = serde_json::to_value(&content).unwrap();
        assert_eq!(written[1], json!({ "type": "text", "text": "one\ntwo" }));
        assert_eq!(read(&written).unwrap(), content);
        assert_eq!(content.bytes(), 10 + 3 * PNG.len());
        let mut twice = content.clone();
        twice.append(&content);
        let parts: Vec<_> = twice.parts().collect();
        assert_eq!((&parts[..5], &parts[5..]), (&expected[..], &expected[..]));
        twice.append(&"more".into());
        assert!(twice.ends_with("end\nmore"));
        assert_ne!(content, "one\ntwoend");
    }

    #[test]
    fn an_image_is_a_data_url_or_the_digest_of_an_object() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for url in [PNG, "data:image/jpeg;base64,", &digest] {
            assert_eq!(read(&json!([image(url)])).unwrap().images().next().unwrap().url, url);
        }
        let brief = json!([{ "type": "image_url", "image_url": PNG }]);
        assert_eq!(read(&brief).unwrap(), read(&json!([image(PNG)])).unwrap());
        let upper = format!("sha256:{}", "0A".repeat(32));
        for url in ["https://example.com/a.png", "file:///etc/passwd", "sha256:00", &upper] {
            let error = read(&json!([image(url)])).unwrap_err();
            assert!(error.contains("must be a data URL, such as"), "{error}");
        }
        for url in ["data:text/html;base64,", "data:image/png,x", "data:image/svg+xml;base64,"] {
            let error = read(&json!([image(url)])).unwrap_err();
            assert!(error.contains("of one of the types `image/png`"), "{error}");
        }
        let none = json!([{ "type": "image_url" }]);
        assert!(read(&none).unwrap_err().contains("has no `image_url`"));
        let empty = json!([{ "type": "image_url", "image_url": {} }]);
        assert!(read(&empty).unwrap_err().contains("missing field `url`"));
        let odd = json!([{ "type": "image_url", "image_url": 7 }]);
        assert!(read(&odd).unwrap_err().contains("an object with the `url` of an image"));
    }

    #[test]
    fn the_type_of_an_image_is_in_its_first_bytes() {
        assert_eq!(Image::type_of(b"\x89PNG\r\n\x1a\n"), Some("image/png"));
        assert_eq!(Image::type_of(&[0xff, 0xd8, 0xff, 0xe0]), Some("image/jpeg"));
        assert_eq!(Image::type_of(b"GIF89a"), Some("image/gif"));
        assert_eq!(Image::type_of(b"RIFF\0\0\0\0WEBPVP8 "), Some("image/webp"));
        assert_eq!(Image::type_of(b"RIFF\0\0\0\0WAVE"), None);
        assert_eq!(Image::type_of(b""), None);
    }

    #[test]
    fn neither_text_nor_image_is_shown() {
        let content = read(&json!([text("canary"), image(PNG)])).unwrap();
        let shown = format!("{content:?} {:?}", content.parts().collect::<Vec<_>>());
        assert!(!shown.contains("canary") && !shown.contains("iVBOR"), "{shown}");
    }
}
