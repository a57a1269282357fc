//! Ids and times in replies, derived from those of the request, so that a reply that is computed
//! again has equal ones.

use std::time::{SystemTime, UNIX_EPOCH};

use nsbridge_client::RequestId;
use nsbridge_protocol::Uuid;

/// Returns the id of a chat completion.
pub(crate) fn chat(id: RequestId) -> String {
    format!("chatcmpl-{}", hex(id))
}

/// Returns the id of a completion.
pub(crate) fn completion(id: RequestId) -> String {
    format!("cmpl-{}", hex(id))
}

/// Returns the id of a message of Anthropic's interface.
pub(crate) fn message(id: RequestId) -> String {
    format!("msg_{}", hex(id))
}

/// Returns the id of a run.
pub(crate) fn run(id: RequestId) -> String {
    format!("run_{}", hex(id))
}

/// Returns the id of a moderation.
pub(crate) fn moderation(id: RequestId) -> String {
    format!("modr-{}", hex(id))
}

/// Returns the id of a response.
pub(crate) fn response(id: RequestId) -> String {
    format!("resp_{}", hex(id))
}

/// Returns the request of a response's id.
pub(crate) fn of_response(id: &str) -> Option<RequestId> {
    parse(id.strip_prefix("resp_")?).map(RequestId)
}

/// Returns the name of a file.
pub(crate) fn file(id: Uuid) -> String {
    format!("file-{}", id.simple())
}

/// Returns the file that has this name.
pub(crate) fn of_file(name: &str) -> Option<Uuid> {
    parse(name.strip_prefix("file-")?)
}

/// Returns the name of a batch.
pub(crate) fn batch(id: Uuid) -> String {
    format!("batch_{}", id.simple())
}

/// Returns the batch that has this name.
pub(crate) fn of_batch(name: &str) -> Option<Uuid> {
    parse(name.strip_prefix("batch_")?)
}

fn parse(hex: &str) -> Option<Uuid> {
    (hex.len() == 32 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')))
        .then(|| Uuid::parse_str(hex).ok())?
}

/// Returns the id of an item of a response.
pub(crate) fn item(prefix: &str, id: RequestId, index: usize) -> String {
    format!("{prefix}_{}{index:04x}", hex(id))
}

/// Returns the request of the response that has the item with this id.
pub(crate) fn of_item(id: &str) -> Option<RequestId> {
    let hex = id.split_once('_')?.1;
    let (request, index) = hex.split_at_checked(32)?;
    (index.len() == 4).then(|| parse(request).map(RequestId))?
}

/// Returns the id of a tool call in one of the replies.
pub(crate) fn call(id: RequestId, choice: usize, index: usize) -> String {
    format!("call_{}{choice:02x}{index:04x}", hex(id))
}

/// Returns a time in seconds.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns an id without hyphens.
pub(crate) fn hex(id: RequestId) -> String {
    id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{item, of_item, of_response, response};
    use nsbridge_client::RequestId;
    use nsbridge_protocol::Uuid;

    #[test]
    fn the_id_of_a_response_leads_back_to_its_request() {
        let id = RequestId(Uuid::from_u128(0x018b_cfe5_6800_7000_8000_0000_0000_0001));
        assert_eq!(of_response(&response(id)), Some(id));
        for odd in ["", "resp_", "resp_1", "resp_018BCFE5680070008000000000000001", "chatcmpl-1"] {
            assert_eq!(of_response(odd), None, "{odd}");
        }
        assert_eq!(of_item(&item("msg", id, 0xf001)), Some(id));
        for odd in ["", "msg_", "msg_018bcfe5680070008000000000000001", "rs_\u{e9}", "018bcfe5"] {
            assert_eq!(of_item(odd), None, "{odd}");
        }
    }
}
