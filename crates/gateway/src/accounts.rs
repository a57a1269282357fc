//! Accounts of sealed requests: what they cost is estimated from the sizes of their frames, because
//! the gateway cannot open them.

use std::collections::HashMap;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use nsbridge_crypto::{ControlFrame, ReplyHead, ReplyKind, RequestHead};
use nsbridge_protocol::{ControlKind, RequestId};
use parking_lot::Mutex;

use crate::access::{ApiKeyId, Caller, Reservation};
use crate::error::Result;
use crate::limits;
use crate::metrics::Metrics;

/// Bytes of a request's frame that count as a token, as for the bodies of other requests.
const PROMPT_BYTES: u64 = 4;

/// Bytes of a reply's data frames that count as a token. A piece of one token has about so many as
/// JSON.
const REPLY_BYTES: u64 = 32;

/// Requests whose replies have not ended, by the key of their caller.
#[derive(Default)]
pub(crate) struct Accounts(Mutex<HashMap<(ApiKeyId, RequestId), Account>>);

struct Account {
    reservation: Reservation,
    /// Tokens of the prompt.
    prompt: u64,
    /// Bytes of the reply so far.
    replied: u64,
    /// Unix time in milliseconds after which no worker runs the request.
    expires_at_ms: u64,
}

impl Account {
    fn settle(self, metrics: &Metrics) {
        let tokens = self.prompt + self.replied.div_ceil(REPLY_BYTES);
        self.reservation.settle(tokens);
        metrics.settled(tokens);
    }
}

impl Accounts {
    /// Opens the account of a request, with `reply` as the tokens that its reply may have. Another
    /// copy of a request has the account of the first one.
    ///
    /// # Errors
    ///
    /// Returns an error if the caller is at a limit.
    pub(crate) fn open(
        &self,
        caller: &Caller,
        head: &RequestHead,
        bytes: usize,
        reply: u64,
        metrics: &Metrics,
    ) -> Result<()> {
        let mut accounts = self.0.lock();
        let name = (caller.id, head.id);
        if accounts.contains_key(&name) {
            return Ok(());
        }
        let prompt = bytes as u64 / PROMPT_BYTES + 1;
        let reservation = limits::reserve(caller, prompt + reply)?;
        metrics.reserved(prompt + reply);
        let expires_at_ms = head.expires_at_ms;
        accounts.insert(name, Account { reservation, prompt, replied: 0, expires_at_ms });
        Ok(())
    }

    /// Closes the account of a request that no queue took. It costs no tokens.
    pub(crate) fn refuse(&self, caller: &Caller, request: RequestId) {
        self.0.lock().remove(&(caller.id, request));
    }

    /// Counts a frame of a reply.
    pub(crate) fn replied(&self, caller: &Caller, frame: &[u8], metrics: &Metrics) {
        let Ok(head) = ReplyHead::parse(frame) else { return };
        let name = (caller.id, head.request);
        let mut accounts = self.0.lock();
        match head.kind {
            ReplyKind::Data => {
                if let Some(account) = accounts.get_mut(&name) {
                    account.replied += frame.len() as u64;
                }
            }
            ReplyKind::FinalOk | ReplyKind::FinalError => {
                if let Some(account) = accounts.remove(&name) {
                    account.settle(metrics);
                }
            }
            ReplyKind::Open | ReplyKind::Heartbeat | ReplyKind::Moved => {}
        }
    }

    /// Closes the account of a request that its client cancels.
    pub(crate) fn controlled(&self, caller: &Caller, frame: &ControlFrame<'_>, metrics: &Metrics) {
        if frame.kind == ControlKind::Cancel
            && let Some(account) = self.0.lock().remove(&(caller.id, frame.request))
        {
            account.settle(metrics);
        }
    }

    /// Closes the accounts of requests that have expired.
    pub(crate) fn sweep(&self, metrics: &Metrics) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let is_over =
            |_: &(ApiKeyId, RequestId), account: &mut Account| account.expires_at_ms <= now;
        let over: Vec<_> = self.0.lock().extract_if(is_over).collect();
        over.into_iter().for_each(|(_, account)| account.settle(metrics));
    }

    /// Returns the number of requests whose replies have not ended.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accounts").field("open", &self.0.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{Accounts, ControlFrame};
    use std::sync::Arc;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use nsbridge_crypto::{Key, RequestHead, Sealed, seal_control, seal_request};
    use nsbridge_protocol::{ControlKind, RequestId, Uuid};

    use crate::access::{Access, Caller, Limiter, Limits};
    use crate::catalog::Models;
    use crate::metrics::{Metrics, RefusedFiles};

    fn caller(tokens: u64) -> Caller {
        let access = Access::open_to_all("t".parse().unwrap());
        let limits = Limits { tokens_per_minute: Some(tokens), ..Limits::default() };
        let mut caller = access.check(None, None).unwrap().for_batch();
        caller.limiter = Arc::new(Limiter::new(limits));
        caller
    }

    fn head(expires_in: Duration) -> RequestHead {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let millis = |time: Duration| time.as_millis() as u64;
        RequestHead {
            id: RequestId(Uuid::now_v7()),
            created_at_ms: millis(now),
            expires_at_ms: millis(now + expires_in),
            model: "m".parse().unwrap(),
            tenant: "t".parse().unwrap(),
            key_id: "k".parse().unwrap(),
        }
    }

    fn sealed(head: &RequestHead) -> Sealed {
        seal_request(&Key::from_bytes([7; 32]), head, &[b'x'; 400]).unwrap()
    }

    #[test]
    fn a_request_reserves_its_reply_until_it_is_canceled_or_expires() {
        let (accounts, caller) = (Accounts::default(), caller(1000));
        let metrics = Metrics::new(&Models::default(), &RefusedFiles::default());
        let (one, other) = (head(Duration::from_secs(60)), head(Duration::ZERO));
        let first = sealed(&one);
        let open = |head: &RequestHead, bytes| accounts.open(&caller, head, bytes, 500, &metrics);
        assert!(open(&one, first.frame.len()).is_ok());
        // A second copy has the same account, and another request does not fit.
        assert!(open(&one, first.frame.len()).is_ok() && accounts.len() == 1);
        assert_eq!(open(&other, 400).unwrap_err().status().as_u16(), 429);
        let cancel = seal_control(&first.reply_root, one.id, ControlKind::Cancel, b"").unwrap();
        accounts.controlled(&caller, &ControlFrame::parse(&cancel).unwrap(), &metrics);
        assert_eq!((accounts.len(), caller.limiter.running()), (0, 0));
        assert!(open(&other, 400).is_ok());
        accounts.sweep(&metrics);
        assert_eq!((accounts.len(), caller.limiter.running()), (0, 0));
        assert!(open(&one, 400).is_ok());
        accounts.sweep(&metrics);
        assert_eq!(accounts.len(), 1);
        accounts.refuse(&caller, one.id);
        assert_eq!((accounts.len(), caller.limiter.running()), (0, 0));
    }
}
