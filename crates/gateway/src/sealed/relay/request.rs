//! Frames of proxies, checked by their heads, and the messages that carry them.

use nsbridge_client::request_message;
use nsbridge_crypto::{ControlFrame, RequestFrame, RequestHead};
use nsbridge_gateway_access::Caller;
use nsbridge_protocol::TraceParent;
use nsbridge_protocol::topology::{CONTROL_BODY, MAX_TIME_TO_FINISH, header, reply_queue};
use nsbridge_queue::{Header, Message};

use crate::catalog::Models;
use crate::sealed::wire::{Answer, Trace};

/// Beginning of the names of the queues of workers.
const CONTROL_QUEUE: &str = "nsbridge.control.";

/// Request of a proxy that may be published.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) head: RequestHead,
    /// Tokens that a reply of the model is taken to have.
    pub(super) reply: u64,
}

/// Checks the head of a request. Its content is sealed.
pub(super) fn check(
    frame: &[u8],
    caller: &Caller,
    models: &Models,
) -> std::result::Result<Checked, Answer> {
    let rejected = |reason: &str| Answer::Rejected { reason: reason.to_owned() };
    let frame = RequestFrame::parse(frame).map_err(|_| rejected("the frame is no request"))?;
    let head = frame.head().clone();
    if head.tenant != caller.tenant {
        return Err(rejected("the request is of another tenant than the API key"));
    }
    let served = models.of_queue(&head.model).filter(|_| caller.may_use(&head.model));
    let unserved = || rejected("it serves no such model, or the API key may not use it");
    let reply = served.ok_or_else(unserved)?.reserved_tokens();
    let most = u64::try_from(MAX_TIME_TO_FINISH.as_millis()).unwrap_or(u64::MAX);
    let time = head.expires_at_ms.checked_sub(head.created_at_ms);
    if time.is_none_or(|time| time > most) {
        return Err(rejected("the time limit of the request is too long"));
    }
    Ok(Checked { head, reply })
}

/// Returns the message of a request. No property of it comes from the proxy unchecked.
pub(super) fn message(
    frame: &[u8],
    head: &RequestHead,
    reply_to: &str,
    epoch: u16,
    trace: Trace,
) -> Message {
    request_message(frame.to_vec(), head, reply_to, epoch, [trace.parent, trace.before])
}

/// Checks a control frame and its routing key: a model that the caller may use, or one worker.
pub(super) fn check_control<'a>(
    frame: &'a [u8],
    key: &str,
    caller: &Caller,
    models: &Models,
) -> std::result::Result<ControlFrame<'a>, Answer> {
    let rejected = |reason: &str| Answer::Rejected { reason: reason.to_owned() };
    if frame.len() > CONTROL_BODY {
        return Err(rejected("the control frame is too large"));
    }
    let of_worker = key.strip_prefix(CONTROL_QUEUE).is_some_and(is_number);
    let of_model = || {
        let model = key.parse().ok();
        model.is_some_and(|model| models.of_queue(&model).is_some() && caller.may_use(&model))
    };
    if !of_worker && !of_model() {
        return Err(rejected("the control frame is for no worker of a model of the API key"));
    }
    ControlFrame::parse(frame).map_err(|_| rejected("the frame is no control frame"))
}

/// Returns the message of a control frame.
pub(super) fn control(
    frame: &ControlFrame<'_>,
    bytes: &[u8],
    before: Option<TraceParent>,
) -> Message {
    let mut message = Message::new(bytes.to_vec());
    message.properties.correlation_id = Some(frame.request.to_string());
    if let Some(before) = before {
        let header = Header::Text(before.to_string());
        message.properties.headers.insert(header::TRACE_BEFORE.into(), header);
    }
    message
}

/// Returns the reply queue of a client, which has drawn a number of 32 hex digits. The id of the API
/// key is in the name, so that no key reads the replies of another one; all replicas name it equally.
pub(super) fn queue(caller: &Caller, client: &str) -> Option<String> {
    if !is_number(client) {
        return None;
    }
    let mut hash = blake3::Hasher::new_derive_key("nsbridge/1 gateway relay queue");
    hash.update(caller.id.to_string().as_bytes());
    hash.update(client.as_bytes());
    let number = hash.finalize().as_bytes().first_chunk::<16>().copied()?;
    Some(reply_queue(u128::from_be_bytes(number)))
}

fn is_number(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use nsbridge_client::{Client, Keyring, Request};
    use nsbridge_crypto::{Key, RequestFrame, RequestHead, seal_control, seal_request};
    use nsbridge_gateway_access::{Access, ApiKeyId, Caller};
    use nsbridge_protocol::topology::{header, model_queue};
    use nsbridge_protocol::{ControlKind, RequestId, Uuid};
    use nsbridge_queue::{Broker as _, MemoryBroker};

    use super::{check, check_control, message, queue};
    use crate::catalog::{Model, Models};
    use crate::sealed::wire::{Answer, Trace};

    fn caller(id: &str, models: Option<&[&str]>) -> Caller {
        let access = Access::open_to_all("t".parse().unwrap());
        let mut caller = access.check(None, None).unwrap().for_batch();
        caller.id = id.parse::<ApiKeyId>().unwrap();
        let names = |models: &[&str]| models.iter().map(|name| name.parse().unwrap()).collect();
        caller.models = models.map(names);
        caller
    }

    fn models() -> Models {
        let all = ["m", "other"].map(|name| (name.to_owned(), Model::default()));
        Models::new(all.into(), None).unwrap()
    }

    fn head(model: &str, tenant: &str, lasts_ms: u64) -> RequestHead {
        RequestHead {
            id: RequestId(Uuid::from_u128(1)),
            created_at_ms: 1_800_000_000_000,
            expires_at_ms: 1_800_000_000_000 + lasts_ms,
            model: model.parse().unwrap(),
            tenant: tenant.parse().unwrap(),
            key_id: "k".parse().unwrap(),
        }
    }

    #[test]
    fn a_reply_queue_belongs_to_one_key() {
        let number = "0123456789abcdef0123456789abcdef";
        let [one, other] = ["00112233", "8899abcd"].map(|id| caller(id, None));
        assert_eq!(queue(&one, number), queue(&one, number));
        assert_ne!(queue(&one, number), queue(&other, number));
        assert!(!queue(&one, number).unwrap().contains(number));
        for odd in
            ["", "0123", "0123456789ABCDEF0123456789abcdef", "../9abcdef0123456789abcdef0123"]
        {
            assert_eq!(queue(&one, odd), None, "{odd}");
        }
    }

    #[test]
    fn a_request_is_of_the_keys_tenant_and_for_one_of_its_models() {
        let (caller, models) = (caller("00112233", Some(&["m"])), models());
        let reason = |head: RequestHead| {
            let sealed = seal_request(&Key::from_bytes([7; 32]), &head, b"{}").unwrap();
            match check(&sealed.frame, &caller, &models) {
                Ok(checked) => checked.head.model.to_string(),
                Err(Answer::Rejected { reason }) => reason,
                Err(other) => format!("{other:?}"),
            }
        };
        assert_eq!(reason(head("m", "t", 1000)), "m");
        assert!(reason(head("m", "u", 1000)).contains("another tenant"));
        for model in ["other", "absent"] {
            assert!(reason(head(model, "t", 1000)).contains("no such model"), "{model}");
        }
        assert!(reason(head("m", "t", 1 << 40)).contains("time limit"));
        assert!(matches!(check(b"odd", &caller, &models), Err(Answer::Rejected { .. })));
    }

    #[test]
    fn a_control_frame_reaches_workers_of_the_keys_models_alone() {
        let (caller, models) = (caller("00112233", Some(&["m"])), models());
        let sealed = seal_request(&Key::from_bytes([7; 32]), &head("m", "t", 1000), b"{}").unwrap();
        let id = RequestId(Uuid::from_u128(1));
        let frame = seal_control(&sealed.reply_root, id, ControlKind::Cancel, b"").unwrap();
        let passes = |key: &str| check_control(&frame, key, &caller, &models).is_ok();
        assert!(passes("m") && passes("nsbridge.control.0123456789abcdef0123456789abcdef"));
        for key in ["other", "absent", "#", "nsbridge.control.", "nsbridge.reply.0123", ""] {
            assert!(!passes(key), "{key}");
        }
        assert!(check_control(b"odd", "m", &caller, &models).is_err());
    }

    #[tokio::test]
    async fn a_relayed_request_has_the_properties_that_its_client_gives_it() {
        let (broker, model) = (MemoryBroker::new(), "m".parse().unwrap());
        let connection = broker.connect("worker").await.unwrap();
        connection.declare_model(&model).await.unwrap();
        let keys = Keyring::of_key("k".parse().unwrap(), Key::from_bytes([7; 32]));
        let client = Client::builder().broker(Arc::new(broker)).keys(Arc::new(keys));
        let client = client.connect().await.unwrap();
        let request = Request::new(model.clone(), "t".parse().unwrap()).input("Once a bear");
        let _reply = client.submit::<String>(request).await.unwrap();
        let mut consumer = connection.consume(&model_queue(&model), 1).await.unwrap();
        let delivery = consumer.recv().await.unwrap();
        let mut own = delivery.message.clone();

        let head = RequestFrame::parse(&own.body).unwrap().head().clone();
        let parent = own.properties.text(header::TRACE_PARENT).unwrap().parse().ok();
        let reply_to = own.properties.reply_to.clone().unwrap();
        let trace = Trace { parent, before: None };
        let relayed = message(&own.body, &head, &reply_to, 0, trace);
        let [was, is] = [&own, &relayed].map(|message| message.properties.expiration.unwrap());
        assert!(is <= was && was - is < Duration::from_secs(5), "{was:?} {is:?}");
        own.properties.expiration = Some(is);
        assert_eq!(relayed.properties, own.properties);
    }
}
