//! Life of a request in this worker, from its delivery to its settlement.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nsbridge_crypto::Provider;
use nsbridge_handler::erased::Call;
use nsbridge_handler::transcript::{Reader, Writer, transcript};
use nsbridge_handler::{JobInfo, Stop};
use nsbridge_protocol::topology::POISON_RUNS;
use nsbridge_protocol::{ErrorCode, Failure, Pieces};
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::attempt::{Address, Stuck};
use crate::context::Shared;
use crate::disposition::{Disposition, WorkerAction};
use crate::intake::{self, Accepted, Refusal};
use crate::metrics::OrphanEnd;
use crate::record::RunRecord;
use crate::registry::{Admission, Held, Job, Mail, Running};
use crate::room::{Arrival, Permit, Place};
use crate::runner::CallEnd;
use crate::settle::{finish, put_off, refuse, renew, settle};
use crate::stream::{Letter, ReplyStream, Welcome};
use crate::visit::Visit;

/// Time for which sending may go on after the deadline or the grace period, once no call runs.
const MARGIN: Duration = Duration::from_secs(5);

/// Time limit for a call to return after its stop; then the call is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// Time limit of the handler's contract for a call to notice its stop. The calls of a failed
/// handler may never notice it.
const SEEN_WITHIN: Duration = Duration::from_secs(2);

/// Time limit of a run without its delivery, even if the broker stays away.
const ORPHANED_FOR: Duration = Duration::from_secs(60);

/// Time in which an orphan's copy may come back here after the worker has subscribed again. If
/// another worker has the copy, both compute the same; this bounds for how long.
const ADOPT_WINDOW: Duration = Duration::from_secs(5);

/// Runs one delivery to its settlement, or hands it to the run of its job.
pub(crate) async fn run(
    shared: &Shared,
    held: Held,
    arrival: Arrival,
    visit: &Visit,
) -> WorkerAction {
    let (model, revision) = (&shared.model, shared.revision.as_ref());
    let (request, input) = match intake::open(&held.delivery, model, revision, &*shared.keys).await
    {
        Ok(opened) => opened,
        Err(Refusal::Later(later)) => return put_off(shared, held.delivery, &later, visit).await,
        Err(Refusal::Rejected(rejected)) => {
            return refuse(shared, held.delivery, rejected, visit).await;
        }
    };
    if request.provider == Provider::Kms {
        shared.rest.keys_came();
    }
    visit.opened(&request);
    let job = request.identity();
    let Some(held) = renew(shared, &job, held, &request, visit).await else {
        return WorkerAction::Continue;
    };
    let Some((running, mut mail)) = admit(shared, &job, held, &request, visit).await else {
        return WorkerAction::Continue;
    };
    let overdue = CancellationToken::new();
    let address = shared.address(&request, visit, overdue.clone());
    let (writer, reader) = transcript();
    let record = RunRecord::of(shared, &request);
    let run = Run {
        shared,
        request: &request,
        running: &running,
        record: &record,
        reader: &reader,
        calling: watch::Sender::new(false),
    };
    let answered = tokio::select! {
        answered = run.answer(input, arrival, &mut mail, &address, writer) => answered,
        stuck = run.watch(&overdue) => Err(stuck),
    };
    let disposition = answered.unwrap_or_else(|stuck| unsent(&stuck, &request, &reader));
    let over = disposition.is_over();
    // From here on a redelivered copy, or a retry of this one, is a job of its own.
    let holds = running.end(over);
    // Before the message is settled, because the worker that takes it next reads the record.
    record.close(over).await;
    let changed = finish(shared, holds, &disposition, &request, visit).await;
    visit.ended(changed.unwrap_or(disposition.outcome()));
    disposition.action()
}

/// Registers the job (rule R6). Returns `None` if the delivery needs no run of its own.
async fn admit<'a>(
    shared: &'a Shared,
    job: &Job,
    mut held: Held,
    request: &Accepted,
    visit: &Visit,
) -> Option<(Running<'a>, Receiver<Mail>)> {
    loop {
        match shared.registry.admit(job, held, request.attempt) {
            Admission::New(running, mail) => return Some((running, mail)),
            Admission::Duplicate(copy) | Admission::Done(copy) => {
                let id = request.job.id;
                tracing::info!(request = %id, "a copy of what runs here, or is done, was taken off");
                settle(copy, true, request, visit).await;
                return None;
            }
            Admission::Adopted => {
                let (id, attempt) = (request.job.id, request.attempt);
                tracing::info!(request = %id, %attempt, "a running job has its delivery back");
                visit.adopted();
                return None;
            }
            Admission::Leaving(copy, left) => {
                tokio::select! {
                    () = left.cancelled() => {}
                    () = copy.gone.cancelled() => return None,
                }
                held = copy;
            }
        }
    }
}

/// One run of a job.
struct Run<'a> {
    shared: &'a Shared,
    request: &'a Accepted,
    running: &'a Running<'a>,
    record: &'a RunRecord<'a>,
    reader: &'a Reader,
    /// True while the run waits for the handler's call.
    calling: watch::Sender<bool>,
}

impl Run<'_> {
    /// Answers the request: opens a stream, calls the handler, sends its pieces and its end.
    async fn answer(
        &self,
        input: Vec<u8>,
        arrival: Arrival,
        mail: &mut Receiver<Mail>,
        address: &Address<'_>,
        writer: Writer,
    ) -> Result<Disposition, Stuck> {
        let Self { shared, request, reader, .. } = self;
        let mut cancelled = false;
        let entry = tokio::select! {
            biased;
            () = cancel(address, mail) => {
                cancelled = true;
                Entry::Place(Place::Late)
            }
            entry = self.enter(arrival) => entry,
        };
        let place = match entry {
            Entry::Poison(runs) => return Ok(Disposition::Poison(runs)),
            Entry::Place(Place::None) => return Ok(Disposition::HandedOff),
            Entry::Place(Place::Late) => None,
            Entry::Place(Place::Taken(permit)) => Some(Arc::new(permit)),
        };
        let visit = address.visit;
        visit.runs();
        let mut reply = ReplyStream::open(address, self.running.attempt()).await?;
        cancelled |= cancelled_early(address, mail);
        let welcome = match request.redelivered && shared.reply.resume_from_client {
            _ if cancelled => Welcome::Cancelled,
            true => reply.wait_for_resume(mail, request.age()).await,
            false => Welcome::Start,
        };
        let resume = match welcome {
            Welcome::Start => None,
            Welcome::Resume(pieces) => Some(pieces),
            // Rule R4: canceled before the work began.
            Welcome::Cancelled => {
                let failure = Failure::new(ErrorCode::Cancelled, Stop::Cancelled.to_string());
                let disposition = Disposition::Failed(failure);
                reply.end(reader, &disposition).await?;
                return Ok(disposition);
            }
        };
        let call = self.call(input, address, resume, writer, place.clone());
        let called_at = SystemTime::now();
        let end = reply.follow(call, reader, mail).await?;
        drop(place);
        let disposition = Disposition::of(end, reader);
        visit.called(called_at, reader, disposition.outcome().usage(), disposition.code());
        log(request, reader, &disposition);
        if !matches!(disposition, Disposition::Undelivered(_)) {
            reply.end(reader, &disposition).await?;
        }
        Ok(disposition)
    }

    /// Waits for a permit, unless the request is poison (rule R1).
    async fn enter(&self, arrival: Arrival) -> Entry {
        let Self { shared, request, running, .. } = self;
        let unreturned = tokio::select! {
            biased;
            _ = shared.drain.begun() => return Entry::Place(Place::None),
            () = running.orphaned() => return Entry::Place(Place::None),
            unreturned = self.record.unreturned() => unreturned,
        };
        if unreturned >= POISON_RUNS {
            return Entry::Poison(unreturned);
        }
        let Shared { room, registry, drain, .. } = shared;
        let wait = |arrival, runs| room.place(arrival, runs, registry, drain, request, running);
        let place = tokio::select! {
            biased;
            place = wait(arrival, unreturned) => place,
            // Workers that were cut off for longer are back and have struck their runs, so the
            // request is no longer a suspect.
            () = self.record.cleared(), if unreturned > 0 => {
                wait(shared.room.arrive(), 0).await
            }
        };
        Entry::Place(place)
    }

    /// Calls the handler. The run of a redelivered request is recorded before it begins.
    async fn call(
        &self,
        input: Vec<u8>,
        address: &Address<'_>,
        resume: Option<Pieces>,
        writer: Writer,
        place: Option<Arc<Permit>>,
    ) -> CallEnd {
        let Self { shared, request, reader, .. } = self;
        if request.deliveries > 0 {
            tokio::select! {
                () = self.record.enter() => {}
                () = address.overdue.cancelled() => {}
                () = reader.stopping() => {}
            }
        }
        if let Some(stop) = reader.stopped() {
            self.record.returned();
            return CallEnd::Returned(Err(stop.into()));
        }
        let info = info(request, address.visit);
        self.calling.send_replace(true);
        let given_up = async {
            reader.stopping().await;
            sleep(GIVE_UP_AFTER).await;
        };
        let end = tokio::select! {
            end = shared.runner.call(Call { input, info, resume, writer }, place.clone()) => end,
            () = given_up => CallEnd::GivenUp,
        };
        self.calling.send_replace(false);
        let given_up = matches!(end, CallEnd::GivenUp);
        if given_up {
            if let Some(place) = &place {
                place.give_up();
            }
            let (id, stop, leftover) = (
                request.job.id,
                reader.stopped().map(tracing::field::display),
                shared.runner.leftover(),
            );
            tracing::warn!(request = %id, stop, leftover, "a call took no notice of a stop and was given up");
            shared.vitals.metrics.given_up();
        }
        // If all calls stand still, the call that was given up may be the cause.
        let suspect = given_up && shared.calls_stand_still();
        if !(end.broke() || suspect) {
            self.record.returned();
        }
        end
    }

    /// Stops the run at its deadline, in a drain, or when it has lost its delivery. Sending may go
    /// on for a while after the stop; then `overdue` is canceled. Returns only if the handler has
    /// failed and the run is not waited for any more.
    async fn watch(&self, overdue: &CancellationToken) -> Stuck {
        let (shared, reader) = (self.shared, self.reader);
        let (stop, margin) = tokio::select! {
            () = sleep(intake::remaining(self.request.deadline)) => (Stop::Deadline, MARGIN),
            margin = must_move(shared, reader) => (Stop::HandOff, margin),
            // The client does not need these frames: the worker with the delivery sends its own.
            () = self.forsaken() => (Stop::HandOff, Duration::ZERO),
        };
        reader.stop(stop);
        let late = async {
            // A call that ignores the stop is given up, and its client gets its end after that. The
            // sender belongs to this run, so the wait cannot fail.
            let _ = self.calling.subscribe().wait_for(|calling| !calling).await;
            sleep(margin).await;
            overdue.cancel();
            pending().await
        };
        let given_up = async {
            shared.unwell.cancelled().await;
            sleep(SEEN_WITHIN).await;
        };
        tokio::select! {
            never = late => never,
            () = given_up => Stuck::Overdue,
        }
    }

    /// Waits until the run has lost its delivery for good (rule R9).
    async fn forsaken(&self) {
        let Self { shared, request, running, .. } = self;
        loop {
            running.orphaned().await;
            tracing::warn!(request = %request.job.id, "a running job has lost its delivery");
            let orphan = shared.vitals.metrics.orphaned();
            let withdrawn = async {
                self.record.withdraw().await;
                pending().await
            };
            let end = tokio::select! {
                () = running.adopted() => OrphanEnd::Adopted,
                () = adoption_time(shared) => OrphanEnd::Expired,
                () = running.evicted() => OrphanEnd::Evicted,
                _ = shared.drain.begun() => OrphanEnd::Drained,
                never = withdrawn => never,
            };
            // A copy may have been adopted at the last moment.
            let left = end != OrphanEnd::Adopted && running.leave();
            orphan.ended(if left { end } else { OrphanEnd::Adopted });
            if left {
                tracing::info!(request = %request.job.id, "a job without a delivery was stopped");
                return;
            }
            tokio::select! {
                () = self.record.enter() => {}
                () = running.orphaned() => {}
            }
        }
    }
}

/// Answer to a delivery that is ready to run.
enum Entry {
    Place(Place),
    /// This many recorded runs did not return.
    Poison(u32),
}

/// Returns true if a cancel came before the work began (rule R4).
fn cancelled_early(address: &Address<'_>, mail: &mut Receiver<Mail>) -> bool {
    while let Ok(mail) = mail.try_recv() {
        if matches!(address.read_mail(&mail), Some(Letter::Cancel)) {
            return true;
        }
    }
    false
}

/// Waits for a cancel that comes before the work began. No stream is open yet, so no `resume` can
/// come.
async fn cancel(address: &Address<'_>, mail: &mut Receiver<Mail>) {
    while let Some(mail) = mail.recv().await {
        if matches!(address.read_mail(&mail), Some(Letter::Cancel)) {
            return;
        }
    }
    pending::<()>().await;
}

/// Waits until a draining worker must hand the job over. Returns the time limit of the hand-over.
async fn must_move(shared: &Shared, reader: &Reader) -> Duration {
    let moment = shared.drain.begun().await;
    // A job that cannot end within the grace period has to move anyway, so it moves at once.
    let left = moment.saturating_duration_since(Instant::now());
    if reader.expected_to_take().is_none_or(|needed| needed <= left) {
        shared.drain.over().await;
    }
    // While the broker blocks publishers, `moved` cannot be sent.
    if shared.publish.is_blocked() { Duration::ZERO } else { MARGIN }
}

/// Waits for as long as the copy of a job that was just orphaned may come back here.
async fn adoption_time(shared: &Shared) {
    let lost = Instant::now();
    let returned = async {
        let mut subscribed = shared.consuming.since();
        loop {
            let since = *subscribed.borrow_and_update();
            let window = async {
                match since {
                    Some(since) => sleep_until(since.max(lost) + ADOPT_WINDOW).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = window => return,
                _ = subscribed.changed() => {}
            }
        }
    };
    tokio::select! {
        () = returned => {}
        () = sleep_until(lost + ORPHANED_FOR) => {}
    }
}

/// Decides the disposition of a run whose reply could not be sent.
fn unsent(stuck: &Stuck, request: &Accepted, reader: &Reader) -> Disposition {
    let id = request.job.id;
    match stuck {
        Stuck::Seal(error) => {
            tracing::error!(request = %id, %error, "a reply could not be sealed");
            Disposition::Unsealed
        }
        Stuck::Overdue => {
            let over = intake::remaining(request.deadline).is_zero();
            let wanted = !matches!(reader.stopped(), Some(Stop::ClientGone | Stop::Cancelled));
            if wanted && !over {
                return Disposition::HandedOff;
            }
            tracing::warn!(request = %id, "a reply could not be sent in time");
            Disposition::Undelivered(ErrorCode::Deadline)
        }
    }
}

fn log(request: &Accepted, reader: &Reader, disposition: &Disposition) {
    let (id, attempt, code) = (request.job.id, request.attempt, disposition.as_str());
    tracing::info!(request = %id, %attempt, code, pieces = reader.len(), "a request ended");
}

fn info(request: &Accepted, visit: &Visit) -> JobInfo {
    let key = request.key_id.as_str();
    // A key without a list of tenants serves any tenant, so two clients may claim the same one.
    let scope: Arc<str> = format!("{key}\0{}", request.tenant.as_str()).into();
    // Such a client may also claim many tenants, so its account is the key.
    let account = if request.tenant_proven { scope.clone() } else { key.into() };
    let mut info = JobInfo::new(request.job.id, request.tenant.clone(), request.seed);
    info.attempt = request.attempt;
    info.submitted_at = request.submitted_at;
    info.scope = scope;
    info.account = account;
    info.deadline = request.deadline;
    info.trace = Some(visit.call());
    info
}
