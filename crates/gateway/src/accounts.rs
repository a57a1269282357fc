//! Accounts of sealed requests: what they cost is estimated from the sizes of their frames, because
//! the gateway cannot open them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nsbridge_crypto::{ControlFrame, ReplyHead, ReplyKind, RequestHead};
use nsbridge_gateway_access::{ApiKeyId, Caller, Limiter, Reservation};
use nsbridge_gateway_replies::Observer as _;
use nsbridge_protocol::topology::MAX_TIME_TO_FINISH;
use nsbridge_protocol::{ControlKind, RequestId};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::{ApiError, Result};
use crate::metrics::Metrics;

/// Bytes of a request's frame that count as a token, as for the bodies of other requests.
const PROMPT_BYTES: u64 = 4;

/// Bytes of a reply's data frames that count as a token. A piece of one token has about so many as
/// JSON.
const REPLY_BYTES: u64 = 32;

/// Maximum number of copies of a request: the first one and the new ones of rule C6 of the protocol.
const MOST_COPIES: usize = 4;

/// Time without a frame after which a request that was canceled, or of which a copy has ended, is
/// taken to have ended. The gateway cannot verify a cancel.
const GRACE: Duration = Duration::from_secs(5);

/// Time without a frame after which a new copy takes the place of the one before it. Clients wait 6 s at
/// least before they take a copy for lost (rule C6).
const SILENT: Duration = Duration::from_secs(5);

/// Maximum number of accounts; of those without a running copy, the ones that expire first make room.
const MOST_ACCOUNTS: usize = 100_000;

/// Requests that have not expired, by the key of their caller.
#[derive(Default)]
pub(crate) struct Accounts(Mutex<HashMap<(ApiKeyId, RequestId), Account>>);

/// Account of a request. It lasts until the request expires, because workers may run it until then
/// whatever its client says.
struct Account {
    limiter: Arc<Limiter>,
    copies: Vec<Copy>,
    /// Bytes of the reply that no settled copy has paid.
    replied: u64,
    /// Time of the last frame, cancel or new copy.
    heard: Instant,
    /// True after a cancel or the end of a copy.
    is_ending: bool,
    /// Unix time in milliseconds after which no worker runs the request.
    expires_at_ms: u64,
}

/// Copy of a request, which a worker runs as a job of its own.
struct Copy {
    /// Hash of its frame, whose salt no other copy has.
    name: blake3::Hash,
    /// Tokens of the prompt.
    prompt: u64,
    /// `None` for a copy that has ended.
    reservation: Option<Reservation>,
}

impl Account {
    fn new(caller: &Caller) -> Self {
        let (limiter, copies, heard) = (caller.limiter.clone(), Vec::new(), Instant::now());
        Self { limiter, copies, replied: 0, heard, is_ending: false, expires_at_ms: 0 }
    }

    fn is_running(&self) -> bool {
        self.copies.iter().any(|copy| copy.reservation.is_some())
    }

    /// Returns the prompts' tokens and the reservation of a copy that is taken for lost: a new one runs in
    /// its place. Should both run after all, their frames cost tokens.
    fn take_lost(&mut self) -> Option<(u64, Reservation)> {
        let is_silent = self.heard.elapsed() >= SILENT;
        let mut copies = self.copies.iter_mut().filter(|_| is_silent);
        copies.find_map(|copy| Some((copy.prompt, copy.reservation.take()?)))
    }

    /// Notes a frame of the reply. A reply that goes on after its end counts as running again.
    fn hear(&mut self, bytes: u64, name: blake3::Hash) {
        self.heard = Instant::now();
        self.replied += bytes;
        if !self.is_running() {
            let reservation = Some(self.limiter.resume());
            // It takes the place of an ended copy, so that repeated ends make no list grow.
            match self.copies.first_mut() {
                Some(copy) => (copy.prompt, copy.reservation) = (0, reservation),
                None => self.copies.push(Copy { name, prompt: 0, reservation }),
            }
        }
    }

    /// Settles the copy that was opened first, at the cost of the reply so far.
    fn settle_one(&mut self, metrics: &Metrics) {
        let open = |copy: &mut Copy| Some((copy.prompt, copy.reservation.take()?));
        let Some((prompt, reservation)) = self.copies.iter_mut().find_map(open) else { return };
        let tokens = prompt + std::mem::take(&mut self.replied).div_ceil(REPLY_BYTES);
        reservation.settle(tokens);
        metrics.settled(tokens);
    }

    fn settle(&mut self, metrics: &Metrics) {
        while self.is_running() {
            self.settle_one(metrics);
        }
    }
}

impl Accounts {
    /// Opens the account of a request, or of another copy of it, with `reply` as the tokens that the
    /// reply of each copy may have. A frame that is sent again costs nothing, and returns false.
    ///
    /// # Errors
    ///
    /// Returns an error if the caller is at a limit, or if the request has as many copies as clients
    /// make.
    pub(crate) fn open(
        &self,
        caller: &Caller,
        head: &RequestHead,
        frame: &[u8],
        reply: u64,
        metrics: &Metrics,
    ) -> Result<bool> {
        let (mut accounts, name) = (self.0.lock(), blake3::hash(frame));
        let known = accounts.get(&(caller.id, head.id)).map_or(&[][..], |known| &known.copies);
        if known.iter().any(|copy| copy.name == name) {
            return Ok(false);
        }
        if known.len() >= MOST_COPIES {
            let message = format!("a request has {MOST_COPIES} copies at most");
            return Err(ApiError::limited(message, GRACE));
        }
        let mut prompt = frame.len() as u64 / PROMPT_BYTES + 1;
        let known = accounts.get_mut(&(caller.id, head.id));
        let reservation = if let Some((before, reservation)) = known.and_then(Account::take_lost) {
            prompt += before;
            reservation
        } else {
            let reservation = caller.limiter.reserve(prompt + reply)?;
            metrics.reserved(prompt + reply);
            reservation
        };
        make_room(&mut accounts);
        let account = accounts.entry((caller.id, head.id)).or_insert_with(|| Account::new(caller));
        account.heard = Instant::now();
        account.expires_at_ms = account.expires_at_ms.max(head.expires_at_ms);
        account.copies.push(Copy { name, prompt, reservation: Some(reservation) });
        Ok(true)
    }

    /// Closes the account of a copy that no queue took. It costs no tokens.
    pub(crate) fn refuse(&self, caller: &Caller, request: RequestId, frame: blake3::Hash) {
        let mut accounts = self.0.lock();
        let Some(account) = accounts.get_mut(&(caller.id, request)) else { return };
        account.copies.retain(|copy| copy.name != frame);
        if account.copies.is_empty() {
            accounts.remove(&(caller.id, request));
        }
    }

    /// Counts a frame of a reply. One whose request another replica took is counted too.
    pub(crate) fn replied(&self, caller: &Caller, frame: &[u8], metrics: &Metrics) {
        let Ok(head) = ReplyHead::parse(frame) else { return };
        let mut accounts = self.0.lock();
        make_room(&mut accounts);
        let account = accounts.entry((caller.id, head.request)).or_insert_with(|| Account {
            is_ending: true,
            expires_at_ms: now_ms().saturating_add(MAX_TIME_TO_FINISH.as_millis() as u64),
            ..Account::new(caller)
        });
        match head.kind {
            ReplyKind::Data => account.hear(frame.len() as u64, blake3::hash(frame)),
            ReplyKind::Open | ReplyKind::Heartbeat => account.hear(0, blake3::hash(frame)),
            ReplyKind::FinalOk | ReplyKind::FinalError => {
                (account.heard, account.is_ending) = (Instant::now(), true);
                account.settle_one(metrics);
            }
            ReplyKind::Moved => {}
        }
    }

    /// Notes that a client cancels a request. Its account closes with the last frame of its reply, or
    /// when no frame has come for a while.
    pub(crate) fn controlled(&self, caller: &Caller, frame: &ControlFrame<'_>) {
        if frame.kind == ControlKind::Cancel
            && let Some(account) = self.0.lock().get_mut(&(caller.id, frame.request))
        {
            (account.heard, account.is_ending) = (Instant::now(), true);
        }
    }

    /// Settles the requests that have ended without a last frame, and closes the accounts of those
    /// that have expired.
    pub(crate) fn sweep(&self, metrics: &Metrics) {
        let now = now_ms();
        self.0.lock().retain(|_, account| {
            let is_over = account.expires_at_ms <= now;
            if is_over || account.is_ending && account.heard.elapsed() >= GRACE {
                account.settle(metrics);
            }
            !is_over
        });
    }

    /// Returns the number of requests that run.
    #[cfg(test)]
    fn running(&self) -> usize {
        self.0.lock().values().filter(|account| account.is_running()).count()
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Forgets half of the accounts without a running copy if there are too many.
fn make_room(accounts: &mut HashMap<(ApiKeyId, RequestId), Account>) {
    if accounts.len() < MOST_ACCOUNTS {
        return;
    }
    let ended = accounts.values().filter(|account| !account.is_running());
    let mut ended: Vec<u64> = ended.map(|account| account.expires_at_ms).collect();
    ended.sort_unstable();
    let Some(until) = ended.get(ended.len() / 2).copied() else { return };
    accounts.retain(|_, account| account.is_running() || account.expires_at_ms > until);
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accounts").field("open", &self.0.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use nsbridge_crypto::{Key, ReplySealer, RequestHead, Sealed, seal_control, seal_request};
    use nsbridge_gateway_access::{Access, Caller, Limiter, Limits};
    use nsbridge_protocol::{AttemptNo, ControlKind, RequestId, Uuid};
    use tokio::time::advance;

    use super::{Accounts, ControlFrame, GRACE, PROMPT_BYTES, REPLY_BYTES, SILENT};
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

    fn metrics() -> Metrics {
        Metrics::new(&Models::default(), &RefusedFiles::default())
    }

    /// Returns a data frame of a reply.
    fn data(sealed: &Sealed, request: &RequestHead) -> Vec<u8> {
        let sealer = ReplySealer::start(&sealed.reply_root, request.id, AttemptNo(0), b"");
        sealer.unwrap().0.seal_pieces(|out| out.extend([b'x'; 2048])).unwrap()
    }

    fn remaining(caller: &Caller) -> u64 {
        let headers = caller.limiter.headers();
        let tokens = headers.iter().find(|(name, _)| *name == "x-ratelimit-remaining-tokens");
        tokens.unwrap().1.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_reserves_its_reply_until_it_ends_or_expires() {
        let (accounts, caller, metrics) = (Accounts::default(), caller(1000), metrics());
        let (one, other) = (head(Duration::from_secs(60)), head(Duration::ZERO));
        let first = sealed(&one).frame;
        let open =
            |head: &RequestHead, frame: &[u8]| accounts.open(&caller, head, frame, 500, &metrics);
        assert!(open(&one, &first).unwrap());
        // The frame again has the same account, and another request does not fit.
        assert!(!open(&one, &first).unwrap() && accounts.running() == 1);
        assert_eq!(open(&other, &[0; 400]).unwrap_err().status().as_u16(), 429);
        accounts.refuse(&caller, one.id, blake3::hash(&first));
        assert_eq!((accounts.running(), caller.limiter.running()), (0, 0));
        assert!(open(&other, &[0; 400]).is_ok());
        accounts.sweep(&metrics);
        assert_eq!((accounts.running(), caller.limiter.running()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn h2_each_copy_of_a_request_is_charged_and_there_are_few() {
        let (accounts, metrics, caller) = (Accounts::default(), metrics(), caller(1_000_000));
        let request = head(Duration::from_secs(60));
        let tried = (0..40).map(|_| {
            accounts.open(&caller, &request, &sealed(&request).frame, 500, &metrics).is_ok()
        });
        assert_eq!(tried.filter(|taken| *taken).count(), 4);
        assert_eq!(caller.limiter.running(), 4);
        assert!(remaining(&caller) <= 1_000_000 - 4 * 500);
    }

    #[tokio::test(start_paused = true)]
    async fn h2_a_copy_of_a_silent_request_takes_its_place() {
        let (accounts, metrics, caller) = (Accounts::default(), metrics(), caller(1000));
        caller.limiter.set(Limits {
            tokens_per_minute: Some(1000),
            concurrent: Some(1),
            ..Limits::default()
        });
        let request = head(Duration::from_secs(300));
        let first = sealed(&request);
        let open = |frame: &[u8]| accounts.open(&caller, &request, frame, 500, &metrics);
        open(&first.frame).unwrap();
        for _ in 0..3 {
            let copy = sealed(&request);
            advance(SILENT - Duration::from_millis(1)).await;
            assert!(open(&copy.frame).is_err());
            accounts.replied(&caller, &data(&first, &request), &metrics);
            advance(SILENT - Duration::from_millis(1)).await;
            assert!(open(&copy.frame).is_err());
            advance(Duration::from_millis(1)).await;
            assert!(open(&copy.frame).unwrap());
            assert_eq!(caller.limiter.running(), 1);
        }
        // The frames of all copies are paid in the end.
        advance(Duration::from_secs(300)).await;
        accounts.0.lock().values_mut().for_each(|account| account.expires_at_ms = 0);
        accounts.sweep(&metrics);
        assert_eq!(caller.limiter.running(), 0);
        let frame = data(&first, &request).len() as u64;
        let prompt = first.frame.len() as u64 / PROMPT_BYTES + 1;
        let paid = 4 * prompt + (3 * frame).div_ceil(REPLY_BYTES);
        // The bucket was full again before the debt came.
        assert_eq!(remaining(&caller), 1000 - (paid - (prompt + 500)));
    }

    #[tokio::test(start_paused = true)]
    async fn h2_a_cancel_ends_no_account_while_frames_come() {
        let (accounts, metrics, caller) = (Accounts::default(), metrics(), caller(1000));
        let request = head(Duration::from_secs(60));
        let first = sealed(&request);
        accounts.open(&caller, &request, &first.frame, 500, &metrics).unwrap();
        let forged = seal_control(&first.reply_root, request.id, ControlKind::Cancel, b"").unwrap();
        accounts.controlled(&caller, &ControlFrame::parse(&forged).unwrap());
        for _ in 0..3 {
            advance(GRACE - Duration::from_millis(1)).await;
            accounts.replied(&caller, &data(&first, &request), &metrics);
            accounts.sweep(&metrics);
            assert_eq!(caller.limiter.running(), 1);
        }
        advance(GRACE).await;
        accounts.sweep(&metrics);
        assert_eq!(caller.limiter.running(), 0);
        let before = remaining(&caller);
        // The reply goes on after all: it runs again, and its frames cost tokens.
        accounts.replied(&caller, &data(&first, &request), &metrics);
        assert_eq!(caller.limiter.running(), 1);
        advance(GRACE).await;
        accounts.sweep(&metrics);
        assert_eq!(caller.limiter.running(), 0);
        assert!(remaining(&caller) < before + 1000 * GRACE.as_secs() / 60, "{before}");
    }
}
