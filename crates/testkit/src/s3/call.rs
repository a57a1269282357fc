//! What a request is, as far as faults and counts care, and how many there were.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::{HeaderMap, Method, Uri};

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads an object.
    Get,
    /// Asks what an object is.
    Head,
    /// Writes an object or a part of one.
    Put,
    /// Begins or ends an upload in parts.
    Post,
    /// Deletes an object, or gives up an upload.
    Delete,
    /// Lists objects, parts or uploads.
    List,
    /// Is about a bucket.
    Bucket,
}

/// A request's kind and its path, `bucket/key`.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) kind: Kind,
    pub(super) path: String,
}

impl Call {
    pub(super) fn new(method: &Method, uri: &Uri) -> Self {
        let path = decoded(uri.path().trim_start_matches('/'));
        let has_key = path.split_once('/').is_some_and(|(_, key)| !key.is_empty());
        let of_upload = uri.query().is_some_and(|query| query.contains("uploadId="));
        let kind = match *method {
            Method::GET if has_key && !of_upload => Kind::Get,
            Method::GET => Kind::List,
            Method::HEAD if has_key => Kind::Head,
            Method::PUT if has_key => Kind::Put,
            Method::POST if has_key => Kind::Post,
            Method::DELETE if has_key => Kind::Delete,
            _ => Kind::Bucket,
        };
        Self { kind, path }
    }
}

fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        if let (b'%', Some(byte)) = (first, escaped) {
            bytes.push(byte);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A request that was answered, or refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What it was.
    pub kind: Kind,
    /// `bucket/key`.
    pub path: String,
    /// The header `Range`.
    pub range: Option<String>,
    /// The header `If-Match`.
    pub if_match: Option<String>,
    /// Whose key signed it.
    pub access_key: Option<String>,
}

impl Seen {
    fn new(call: &Call, headers: &HeaderMap) -> Self {
        let header = |name| Some(headers.get(name)?.to_str().ok()?.to_owned());
        let signed: Option<String> = header("authorization");
        let key = signed.as_deref().and_then(|text| text.split_once("Credential="));
        Self {
            kind: call.kind,
            path: call.path.clone(),
            range: header("range"),
            if_match: header("if-match"),
            access_key: key.and_then(|(_, rest)| Some(rest.split_once('/')?.0.to_owned())),
        }
    }
}

/// How much was asked for and sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads of objects.
    pub gets: u64,
    /// Questions what an object is.
    pub heads: u64,
    /// Objects and parts written.
    pub puts: u64,
    /// Lists of objects, parts and uploads.
    pub lists: u64,
    /// All other requests.
    pub others: u64,
    /// Requests that a fault struck.
    pub faults: u64,
    /// Bytes of bodies handed to connections: of a broken one, some were perhaps not delivered.
    pub bytes_sent: u64,
    /// Bytes that the system took from us for sending, with headers.
    pub wire_bytes: u64,
    /// Connections opened.
    pub connections: u64,
    /// Requests under way at this moment, until their bodies are sent.
    pub under_way: u64,
    /// The most of them there ever were.
    pub most_at_once: u64,
    /// By `bucket/key`.
    pub by_key: BTreeMap<String, KeyCounts>,
}

/// The same for one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyCounts {
    /// Reads.
    pub gets: u64,
    /// Questions what it is.
    pub heads: u64,
    /// Times it or a part of it was written.
    pub puts: u64,
    /// Bytes of bodies.
    pub bytes_sent: u64,
}

impl Counts {
    /// Of one object, by `bucket/key`.
    pub fn of(&self, path: &str) -> KeyCounts {
        self.by_key.get(path).copied().unwrap_or_default()
    }
}

/// Where all connections count.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally(Arc<Mutex<(Counts, Vec<Seen>)>>);

impl Tally {
    fn lock(&self) -> MutexGuard<'_, (Counts, Vec<Seen>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().0.clone()
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.lock().1.clone()
    }

    /// Begins again; what is under way stays so.
    pub(super) fn reset(&self) {
        let mut inner = self.lock();
        let under_way = inner.0.under_way;
        let counts = Counts { under_way, most_at_once: under_way, ..Counts::default() };
        *inner = (counts, Vec::new());
    }

    pub(super) fn connection(&self) {
        self.lock().0.connections += 1;
    }

    pub(super) fn wire(&self, bytes: usize) {
        self.lock().0.wire_bytes += bytes as u64;
    }

    pub(super) fn fault(&self) {
        self.lock().0.faults += 1;
    }

    /// A request came; it is under way until what is returned is dropped.
    pub(super) fn request(&self, call: &Call, headers: &HeaderMap) -> UnderWay {
        let mut inner = self.lock();
        let (counts, seen) = &mut *inner;
        seen.push(Seen::new(call, headers));
        let of_key = counts.by_key.entry(call.path.clone()).or_default();
        match call.kind {
            Kind::Get => (counts.gets += 1, of_key.gets += 1).0,
            Kind::Head => (counts.heads += 1, of_key.heads += 1).0,
            Kind::Put => (counts.puts += 1, of_key.puts += 1).0,
            Kind::List => counts.lists += 1,
            Kind::Post | Kind::Delete | Kind::Bucket => counts.others += 1,
        }
        counts.under_way += 1;
        counts.most_at_once = counts.most_at_once.max(counts.under_way);
        UnderWay { tally: self.clone(), path: call.path.clone() }
    }
}

/// A request that is not yet answered to its end.
#[derive(Debug)]
pub(super) struct UnderWay {
    tally: Tally,
    path: String,
}

impl UnderWay {
    pub(super) fn sent(&self, bytes: usize) {
        let counts = &mut self.tally.lock().0;
        counts.bytes_sent += bytes as u64;
        if let Some(of_key) = counts.by_key.get_mut(&self.path) {
            of_key.bytes_sent += bytes as u64;
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let counts = &mut self.tally.lock().0;
        counts.under_way = counts.under_way.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use hyper::{Method, Uri};

    use super::{Call, Kind};

    #[track_caller]
    fn check(method: &Method, uri: &'static str, kind: Kind, path: &str) {
        let call = Call::new(method, &Uri::from_static(uri));
        assert_eq!((call.kind, call.path.as_str()), (kind, path));
    }

    #[test]
    fn a_request_is_known_by_its_method_and_address() {
        check(&Method::GET, "/b/a%20key/x?partNumber=1", Kind::Get, "b/a key/x");
        check(&Method::GET, "/b/k?uploadId=u1", Kind::List, "b/k");
        check(&Method::GET, "/b?list-type=2", Kind::List, "b");
        check(&Method::GET, "/b/", Kind::List, "b/");
        check(&Method::HEAD, "/b/100%", Kind::Head, "b/100%");
        check(&Method::PUT, "/b/k?partNumber=1&uploadId=u1", Kind::Put, "b/k");
        check(&Method::PUT, "/b", Kind::Bucket, "b");
        check(&Method::POST, "/b/k?uploads", Kind::Post, "b/k");
    }
}
