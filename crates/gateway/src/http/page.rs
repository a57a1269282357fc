//! Chat page: files of `crates/gateway/page`, which are a part of the binary.
//!
//! Its libraries are bundles in `vendor/`, which are committed: a build needs no Node.js.
//! The page is a client of `/v1` like any other. It needs no key to be loaded; its requests do.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::error::ApiError;
use crate::state::App;

/// Policy of the page: its own files alone, no script in markup, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'";

const INDEX: &str = "index.html";

/// Reads a file of the page at compile time.
macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../page/", $name)).as_slice())
    };
}

/// Files of the page by their names.
const FILES: [(&str, &[u8]); 22] = [
    file!("index.html"),
    file!("style.css"),
    file!("bear.svg"),
    file!("seal.svg"),
    file!("api.js"),
    file!("app.js"),
    file!("chat.js"),
    file!("colors.js"),
    file!("dialogs.js"),
    file!("files.js"),
    file!("markdown.js"),
    file!("math.js"),
    file!("nodes.js"),
    file!("parser.js"),
    file!("reply.js"),
    file!("store.js"),
    file!("text.js"),
    file!("view.js"),
    file!("vendor/LICENSES.txt"),
    file!("vendor/highlight.bundle.js"),
    file!("vendor/markdown.bundle.js"),
    file!("vendor/math.bundle.js"),
];

/// Entity tags of the files, in the order of [`FILES`].
static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    FILES.iter().map(|(_, bytes)| format!("\"{}\"", blake3::hash(bytes).to_hex())).collect()
});

/// Returns the routes of the page.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(async |headers: HeaderMap| send(INDEX, &headers)))
        .route(
            "/page/{file}",
            get(async |Path(file): Path<String>, headers: HeaderMap| send(&file, &headers)),
        )
        .route(
            "/page/vendor/{file}",
            get(async |Path(file): Path<String>, headers: HeaderMap| {
                send(&format!("vendor/{file}"), &headers)
            }),
        )
}

/// Sends a file, or 304 if the client has it.
fn send(name: &str, headers: &HeaderMap) -> Response {
    let found = FILES.iter().zip(TAGS.iter()).find(|((file, _), _)| *file == name);
    let Some(((_, bytes), tag)) = found else {
        return ApiError::not_found("there is no such page").coded("unknown_url").into_response();
    };
    let known = headers.get_all(header::IF_NONE_MATCH).iter();
    let known = known.filter_map(|tags| tags.to_str().ok()).any(|tags| has(tags, tag));
    let mut response = if known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let kind = HeaderValue::from_static(content_type(name));
        ([(header::CONTENT_TYPE, kind)], *bytes).into_response()
    };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, tag);
    }
    for (name, value) in [
        // A new gateway has a new page: the browser asks each time, and gets 304.
        ("cache-control", "no-cache"),
        ("content-security-policy", POLICY),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
        ("referrer-policy", "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Returns true if a list of entity tags has this one.
fn has(tags: &str, tag: &str) -> bool {
    tags.split(',').map(str::trim).any(|one| one == "*" || one.trim_start_matches("W/") == tag)
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use axum::http::{HeaderMap, HeaderValue, StatusCode, header};

    use super::{FILES, POLICY, TAGS, content_type, send};

    /// Returns the headers of a client that has a file with these tags.
    fn with_tags(tags: &str) -> HeaderMap {
        let value = HeaderValue::from_str(tags).unwrap();
        [(header::IF_NONE_MATCH, value)].into_iter().collect()
    }

    /// Returns the names of the files in a folder.
    fn names_in(folder: &Path, prefix: &str) -> BTreeSet<String> {
        let entries = folder.read_dir().unwrap().map(Result::unwrap);
        let files = entries.filter(|entry| entry.path().is_file());
        files.map(|entry| format!("{prefix}{}", entry.file_name().into_string().unwrap())).collect()
    }

    #[test]
    fn every_file_of_the_page_is_served_with_its_type_and_the_policy() {
        for (name, bytes) in FILES {
            let response = send(name, &HeaderMap::new());
            assert_eq!(response.status(), StatusCode::OK, "{name}");
            assert_ne!(content_type(name), "application/octet-stream", "{name}");
            assert_eq!(response.headers()["content-security-policy"], POLICY);
            assert!(!bytes.is_empty());
        }
        assert_eq!(send("other.js", &HeaderMap::new()).status(), StatusCode::NOT_FOUND);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let mut there = names_in(&folder, "");
        // The rest of this folder makes the bundles.
        let bundles = names_in(&folder.join("vendor"), "vendor/");
        there.extend(
            bundles
                .into_iter()
                .filter(|name| [".bundle.js", ".txt"].iter().any(|end| name.ends_with(end))),
        );
        assert_eq!(there, FILES.iter().map(|(name, _)| (*name).to_owned()).collect());
    }

    #[test]
    fn a_file_that_the_client_has_is_not_sent_again() {
        let tag = TAGS[0].as_str();
        for tags in [tag, &format!("W/{tag}"), &format!("\"a\", {tag}"), "*"] {
            assert_eq!(send("index.html", &with_tags(tags)).status(), StatusCode::NOT_MODIFIED);
        }
        let changed = send("index.html", &with_tags(&TAGS[1]));
        assert_eq!(
            (changed.status(), changed.headers()["etag"].to_str().unwrap()),
            (StatusCode::OK, tag)
        );
        assert_eq!(changed.headers()["cache-control"], "no-cache");
    }
}
