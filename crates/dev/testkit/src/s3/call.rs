//! Classification of requests for faults and counters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::{HeaderMap, Method, Uri};

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read of an object.
    Get,
    /// Metadata of an object.
    Head,
    /// Write of an object or of a part.
    Put,
    /// Start or end of a multipart upload.
    Post,
    /// Deletion of an object, or abort of a multipart upload.
    Delete,
    /// List of objects, parts or uploads.
    List,
    /// Operation on a bucket.
    Bucket,
}

/// Kind and path (`bucket/key`) of a request.
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

/// Received request, for assertions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Kind of the request.
    pub kind: Kind,
    /// Path, `bucket/key`.
    pub path: String,
    /// Value of the `Range` header.
    pub range: Option<String>,
    /// Value of the `If-Match` header.
    pub if_match: Option<String>,
    /// Access key of the signature.
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

/// Counters of requests and bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of object reads.
    pub gets: u64,
    /// Number of `HeadObject` requests.
    pub heads: u64,
    /// Number of written objects and parts.
    pub puts: u64,
    /// Number of lists of objects, parts and uploads.
    pub lists: u64,
    /// Number of all other requests.
    pub others: u64,
    /// Number of requests that a fault was applied to.
    pub faults: u64,
    /// Body bytes handed to connections; bytes of a broken connection may not have been delivered.
    pub bytes_sent: u64,
    /// Bytes written to sockets, headers included.
    pub wire_bytes: u64,
    /// Number of connections opened.
    pub connections: u64,
    /// Number of requests whose response is not sent completely.
    pub under_way: u64,
    /// Maximum of `under_way` so far.
    pub most_at_once: u64,
    /// Counters by `bucket/key`.
    pub by_key: BTreeMap<String, KeyCounts>,
}

/// Counters of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyCounts {
    /// Number of reads.
    pub gets: u64,
    /// Number of `HeadObject` requests.
    pub heads: u64,
    /// Number of writes of the object or a part of it.
    pub puts: u64,
    /// Body bytes handed to connections.
    pub bytes_sent: u64,
}

impl Counts {
    /// Returns the counters of one object, by `bucket/key`.
    pub fn of(&self, path: &str) -> KeyCounts {
        self.by_key.get(path).copied().unwrap_or_default()
    }
}

/// Counters and log of requests, shared by all connections.
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

    /// Resets counters and log. Requests under way stay counted as such.
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

    /// Counts and logs a request, which is under way until the returned guard is dropped.
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

/// Guard of a request whose response is not sent completely.
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
