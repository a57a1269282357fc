//! Place of a model's files, by its name or address.

use std::path::{Path, PathBuf};

use nsbridge_protocol::ModelName;
use nsbridge_store::Location;

/// Place of a model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Prefix in a bucket.
    Bucket(String),
    /// Folder or GGUF file, which may be on another machine only.
    Folder(PathBuf),
    /// Name of a model on a hub.
    Hub(String),
    /// Address or template that nsbridge cannot read.
    Other(String),
}

impl Source {
    /// Reads the name or address of a model. `within` is the path that it has if it is a folder.
    pub fn read(id: &str, within: &Path) -> Self {
        if id.starts_with("s3://") {
            let readable = id.parse::<Location>().is_ok_and(|_| !id.contains(['@', '?', '<', '{']));
            return if readable { Self::Bucket(id.to_owned()) } else { Self::Other(id.to_owned()) };
        }
        if id.contains("://") {
            return Self::Other(id.to_owned());
        }
        let is_path = id.starts_with(['/', '.']) || id.ends_with(".gguf");
        if is_path || within.is_dir() {
            return Self::Folder(within.components().collect());
        }
        let mut parts = id.trim_end_matches('/').split('/');
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let is_hub = parts.clone().count() <= 2
            && parts
                .all(|part| !part.is_empty() && !part.starts_with('-') && part.chars().all(plain));
        if is_hub {
            Self::Hub(id.trim_end_matches('/').to_owned())
        } else {
            Self::Other(id.to_owned())
        }
    }
}

/// Returns the last part of a name or address as the name of a model; `None` if little of it could stay.
pub fn base_name(id: &str) -> Option<String> {
    id.trim_end_matches('/').rsplit('/').next().and_then(plain_name)
}

/// Returns the text as the name of a model; `None` if little of it could stay.
pub fn plain_name(text: &str) -> Option<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = text.chars().map(plain).take(100).collect();
    let name = name.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    name.parse::<ModelName>().ok().map(|name| name.as_str().to_owned())
}

/// Returns an address for a report: without user info, query and fragment, which may hold secrets, and
/// without control characters.
pub fn without_secrets(address: &str) -> String {
    let plain: String = address.chars().filter(|c| !c.is_control()).collect();
    let split = plain.split_once("://");
    let (scheme, rest) = match split {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), &*plain),
    };
    // A password may have a slash or a question mark that should have been escaped.
    let rest = match rest.rsplit_once('@') {
        Some((user, host)) if user.contains(':') || split.is_some() && !user.contains('/') => host,
        _ => rest,
    };
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    scheme + &rest[..end]
}

#[cfg(test)]
mod tests {
    use super::without_secrets;

    #[test]
    fn a_shown_address_has_no_user_and_no_query() {
        let check = |address: &str, shown: &str| assert_eq!(without_secrets(address), shown);
        check("https://user:canary@host:80/m", "https://host:80/m");
        check("https://canary@host/m", "https://host/m");
        check("s3://user:can/?canary@bucket/m", "s3://bucket/m");
        check("user:canary@host/m", "host/m");
        check("https://host/m?token=canary", "https://host/m");
        check("https://host/m#canary", "https://host/m");
        check("s3://bucket/m@home", "s3://bucket/m@home");
        check("model@home", "model@home");
        check("<your model id>", "<your model id>");
        check("a\nb/c/d", "ab/c/d");
    }
}
