//! One call in a slot of a Python process.

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nsbridge_base::child::Exit;
use nsbridge_handler::{AsyncJob, Error as HandlerError, Finish, JobInfo, Result, Stop};
use nsbridge_protocol::MAX_PIECE_BYTES;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::error::Error;
use crate::host::Host;
use crate::messages::{FromPython, Head, Kind, Raised, ToSlot};
use crate::pool::Slot;
use crate::process::Process;
use crate::wire::Wire;

/// Time limit for the end of a process that has closed a socket.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

/// Number of bytes of accepted pieces at which Python is told to send more: half its window.
const REPORT_AT: usize = 2048;

/// Call in progress. If it is dropped, the call is stopped and its slot freed later.
pub(crate) struct Call {
    process: Arc<Process>,
    exited: watch::Receiver<Option<Exit>>,
    index: usize,
    number: u64,
    /// `None` once the slot is free again or lost.
    wire: Option<Wire>,
    begun: bool,
    /// Bytes of accepted pieces that Python was not told of.
    accepted: usize,
    host: Arc<Host>,
    background: Handle,
}

/// End of the exchange of messages.
enum End {
    Finished(Finish),
    Raised(Raised),
    Stopped(Stop),
    /// The process has ended, or does not speak the protocol.
    Lost,
}

impl Call {
    pub(crate) fn new(slot: Slot, host: &Arc<Host>, background: &Handle) -> Result<Self> {
        let Slot { process, index, calls, stream } = slot;
        Ok(Self {
            exited: process.exited(),
            process,
            index,
            number: calls + 1,
            wire: Some(Wire::new(stream)?),
            begun: false,
            accepted: 0,
            host: host.clone(),
            background: background.clone(),
        })
    }

    /// Runs the call. Returns `None` if the process had ended before it took the call.
    pub(crate) async fn run<O>(
        mut self,
        input: &RawValue,
        job: &mut AsyncJob<O>,
    ) -> Option<Result<Finish>>
    where
        O: Serialize + DeserializeOwned,
    {
        let end = match self.talk(input, job).await {
            Ok(end) => end,
            Err(_) => End::Lost,
        };
        match end {
            End::Finished(finish) => {
                self.free();
                Some(Ok(finish))
            }
            End::Raised(raised) => {
                self.free();
                if raised.kind != Kind::BadInput {
                    tracing::warn!(
                        request = %job.info().id,
                        exception = nsbridge_handler::quote(&raised.class),
                        at = nsbridge_handler::quote(&raised.place),
                        "the model raised an exception"
                    );
                }
                Some(Err(error_of(raised)))
            }
            End::Stopped(stop) => {
                self.wind_down().await;
                Some(Err(stop.into()))
            }
            End::Lost => self.lost(job.info()).await.map(Err),
        }
    }

    /// Exchanges messages until the call has ended.
    async fn talk<O>(&mut self, input: &RawValue, job: &mut AsyncJob<O>) -> io::Result<End>
    where
        O: Serialize + DeserializeOwned,
    {
        tokio::select! {
            biased;
            stop = job.stopped() => return Ok(End::Stopped(stop)),
            sent = self.send_call(input, job.info()) => sent?,
        }
        loop {
            let message = tokio::select! {
                biased;
                stop = job.stopped() => return Ok(End::Stopped(stop)),
                message = self.next() => message?,
            };
            let emitted = match message {
                Some(FromPython::Piece(piece)) => job.emit(typed(&piece)?).await,
                Some(FromPython::Oversize) => job.emit(typed(&oversize()?)?).await,
                Some(FromPython::Begun) => {
                    self.begun = true;
                    continue;
                }
                Some(FromPython::Resumed) => {
                    let pieces: Result<Vec<_>, _> =
                        job.accept_resume().iter().map(to_raw_value).collect();
                    self.send(&ToSlot::Resumed(pieces?)).await?;
                    continue;
                }
                Some(FromPython::AtMost(pieces)) => {
                    job.set_max_pieces(pieces);
                    continue;
                }
                Some(FromPython::End(end)) => return Ok(End::Finished(end.into())),
                Some(FromPython::Error(raised)) => return Ok(End::Raised(raised)),
                Some(
                    FromPython::Hello(_)
                    | FromPython::Ready(_)
                    | FromPython::Failed(_)
                    | FromPython::Status(_),
                )
                | None => return Ok(End::Lost),
            };
            if let Err(stop) = emitted {
                return Ok(End::Stopped(stop));
            }
            self.report().await?;
        }
    }

    async fn send_call(&mut self, input: &RawValue, info: &JobInfo) -> io::Result<()> {
        let number = self.number;
        let head = Head {
            call: number,
            id: info.id.to_string(),
            seed: info.seed,
            attempt: info.attempt.0,
            tenant: info.tenant.as_str(),
            scope: &info.scope,
            submitted_at: seconds(info.submitted_at),
            deadline: seconds(info.deadline),
        };
        let wire = self.wire()?;
        wire.send(&head).await?;
        wire.send_bytes(input.get().as_bytes()).await
    }

    async fn send(&mut self, message: &ToSlot) -> io::Result<()> {
        self.wire()?.send(message).await
    }

    /// Returns the next message, or `None` if the process has ended.
    async fn next(&mut self) -> io::Result<Option<FromPython>> {
        let wire = self.wire.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        tokio::select! {
            biased;
            // What the process has sent before its end is read first.
            message = wire.next() => message,
            _ = self.exited.wait_for(Option::is_some) => Ok(None),
        }
    }

    /// Counts the last piece, and lets Python send more.
    async fn report(&mut self) -> io::Result<()> {
        self.accepted += self.wire()?.last();
        if self.accepted < REPORT_AT {
            return Ok(());
        }
        let accepted = std::mem::take(&mut self.accepted);
        self.send(&ToSlot::More(accepted)).await
    }

    fn wire(&mut self) -> io::Result<&mut Wire> {
        self.wire.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Returns the slot to the pool after the call's last message.
    fn free(&mut self) {
        let stream = self.wire.take().map(Wire::into_std);
        match stream {
            Some(Ok(stream)) => self.put(stream),
            Some(Err(_)) => self.process.kill(),
            None => {}
        }
    }

    fn put(&self, stream: StdStream) {
        let process = self.process.clone();
        self.host.pool.put(Slot { process, index: self.index, calls: self.number, stream });
    }

    /// Ends a call that must stop: tells the model, and kills the process group if that does not
    /// help.
    async fn wind_down(&mut self) {
        match timeout(self.host.plan().kill_after, self.stop()).await {
            Ok(Ok(true)) => self.free(),
            // The process has ended.
            Ok(_) => self.wire = None,
            Err(_) => {
                self.process.kill_for_stop();
                self.wire = None;
            }
        }
    }

    /// Tells Python to stop and waits until the call has ended. Returns false if the process has.
    async fn stop(&mut self) -> io::Result<bool> {
        self.process.stop_call(self.index, self.number);
        self.send(&ToSlot::Stop(self.number)).await?;
        loop {
            match self.next().await? {
                Some(FromPython::End(_) | FromPython::Error(_)) => return Ok(true),
                Some(_) => {}
                None => return Ok(false),
            }
        }
    }

    /// Returns the error of a call whose process has ended. `None` if the call had not begun.
    async fn lost(&mut self, info: &JobInfo) -> Option<HandlerError> {
        self.wire = None;
        let exit = timeout(EXIT_LIMIT, self.process.exit()).await;
        if exit.is_err() {
            self.process.kill();
        }
        if !self.begun {
            return None;
        }
        let why = match exit {
            Ok(_) if self.process.ignored_stop() => Error::Neighbor,
            Ok(exit) => Error::Ended(exit),
            Err(_) => Error::Protocol,
        };
        tracing::warn!(request = %info.id, %why, "a call was lost with its Python process");
        // The supervisor may learn of the end later than this call.
        let is_last = self.host.plan().options.crashes == 1 && !self.process.ignored_stop();
        match self.host.broken() {
            Some(why) => Some(HandlerError::fatal(why)),
            None if is_last => Some(HandlerError::fatal(why)),
            None => Some(HandlerError::retry(why)),
        }
    }
}

impl Drop for Call {
    /// Stops a call that was given up.
    fn drop(&mut self) {
        let Some(wire) = self.wire.take() else { return };
        let Ok((stream, rest)) = wire.into_parts() else { return self.process.kill() };
        let mut call = Self {
            process: self.process.clone(),
            exited: self.exited.clone(),
            index: self.index,
            number: self.number,
            wire: None,
            begun: self.begun,
            accepted: 0,
            host: self.host.clone(),
            background: self.background.clone(),
        };
        self.background.spawn(async move {
            match Wire::with(stream, rest) {
                Ok(wire) => {
                    call.wire = Some(wire);
                    call.wind_down().await;
                }
                Err(_) => call.process.kill(),
            }
        });
    }
}

fn error_of(raised: Raised) -> HandlerError {
    let Raised { kind, why, class, place } = raised;
    let cause = Error::Raised { class, place };
    match kind {
        Kind::BadInput => HandlerError::bad_input(why),
        Kind::Retry => HandlerError::retry(cause),
        Kind::Fatal => HandlerError::fatal(cause),
        Kind::Failed | Kind::Stopped => HandlerError::failed(cause),
    }
}

/// Returns a piece as the handler's type. The error is not kept: it may quote the piece.
fn typed<O: DeserializeOwned>(piece: &RawValue) -> io::Result<O> {
    let odd = |_| io::Error::new(io::ErrorKind::InvalidData, "a piece of another type");
    serde_json::from_str(piece.get()).map_err(odd)
}

/// Returns a piece that no reply accepts, for one that was too large to be sent here.
fn oversize() -> io::Result<Box<RawValue>> {
    Ok(to_raw_value(&"x".repeat(MAX_PIECE_BYTES))?)
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
