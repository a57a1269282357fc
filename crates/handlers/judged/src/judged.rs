//! Handler whose prompts and replies are judged.

use std::fmt;
use std::panic::resume_unwind;
use std::pin::pin;
use std::thread;

use futures_executor::block_on;
use futures_util::future::{Either, pending, select};
use nsbridge_handler::transcript::{StartAt, Writer, transcript};
use nsbridge_handler::{
    AsyncHandler, AsyncJob, Emitter, Error, Fingerprint, Finish, FinishReason, Handler, Health,
    Job, Measure, Models, Pieces, Result, TextInput, TextPiece, erased,
};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::counts::{Counts, Phase};
use crate::hold::Hold;
use crate::judge::Judge;
use crate::options::JudgedOptions;
use crate::panics::caught_call;
use crate::passage::Passage;
use crate::policy::Policy;
use crate::prompt::{check_fields, texts};
use crate::pump::{Pump, let_others_go_on};
use crate::rules::Rules;

/// Size of the parts in which a prompt is judged, in bytes. Between two parts, other calls go on.
const PART: usize = 8 << 10;

/// Version of the layer; increased when the same findings could release other pieces.
const VERSION: u32 = 1;

/// Handler of text around which a judge stands: a [`Handler`] or an [`AsyncHandler`], as `H` is.
///
/// A refused prompt does not reach the handler: the reply has no piece and ends with
/// [`FinishReason::ContentFilter`]. A reply is held back where a finding may still begin. If a part of
/// it is refused, the pieces before that part are its whole text, and it ends in the same way. Where
/// nothing is refused, pieces and finish are the handler's own.
pub struct Judged<H, J = Rules> {
    inner: H,
    /// `None` if nothing is judged.
    layer: Option<Layer<J>>,
}

/// Judge with its policy.
#[derive(Debug)]
struct Layer<J> {
    judge: J,
    policy: Policy,
    counts: Counts,
}

impl<J: Judge> Layer<J> {
    /// Judges the prompt. Returns true if it is refused.
    async fn refuses_prompt(
        &self,
        input: &TextInput,
        emitter: &Emitter<TextPiece>,
    ) -> Result<bool> {
        if !self.policy.before.is_any() {
            return Ok(false);
        }
        self.counts.judged(1, Phase::Before);
        // Many short texts are as much work as a long one.
        let mut judged = 0;
        for text in texts(input)? {
            let (mut passage, mut rest) = (Passage::default(), &*text);
            loop {
                let (part, more) = rest.split_at(rest.floor_char_boundary(PART));
                passage.push(part);
                let ended = more.is_empty();
                if let Some(found) = passage.check(&self.judge, &self.policy.before, ended) {
                    self.counts.refused(found.category, Phase::Before);
                    return Ok(true);
                }
                judged += part.len();
                if judged >= PART {
                    judged = 0;
                    emitter.check()?;
                    let_others_go_on().await;
                }
                if ended {
                    break;
                }
                rest = more;
            }
        }
        Ok(false)
    }

    /// Returns what passes the pieces on, the writer of the handler inside, and the pieces that this
    /// handler may resume from.
    ///
    /// # Errors
    ///
    /// Returns an error if the request asks for tokens that are not in its reply.
    fn pump(
        &self,
        input: &TextInput,
        emitter: Emitter<TextPiece>,
        offered: Option<&Pieces>,
    ) -> Result<(Pump<'_, J>, Writer, Option<Pieces>)> {
        check_fields(input)?;
        let (writer, reader) = transcript();
        let hold = Hold::new(&self.judge, &self.policy.after, input);
        let cursor = reader.cursor(StartAt::PieceZero);
        let pump = Pump { reader, cursor, emitter, hold, counts: &self.counts };
        Ok((pump, writer, offered.filter(|offered| are_whole(offered)).cloned()))
    }

    /// Adds everything that decides the pieces besides the handler.
    fn add_to(&self, digest: &mut Sha256) {
        digest.update(VERSION.to_be_bytes());
        let judge = self.judge.fingerprint();
        digest.update((judge.len() as u64).to_be_bytes());
        digest.update(judge);
        for category in self.judge.categories() {
            digest.update((category.name.len() as u64).to_be_bytes());
            digest.update(category.name.as_bytes());
        }
        digest.update(self.policy.before.bytes().collect::<Vec<u8>>());
        digest.update(self.policy.after.bytes().collect::<Vec<u8>>());
    }
}

/// Returns true if the pieces are all that the handler made. After a refused reply among several they
/// are not, and the handler has to start over.
fn are_whole(offered: &Pieces) -> bool {
    offered.pieces.iter().all(|piece| {
        let piece = serde_json::from_slice::<TextPiece>(piece);
        piece.is_ok_and(|piece| piece.finish_reason != Some(FinishReason::ContentFilter))
    })
}

impl<H, J: Judge> Judged<H, J> {
    fn new(
        inner: H,
        options: Option<crate::options::JudgeOptions<J::Options>>,
        models: &Models,
    ) -> Result<Self> {
        let Some(options) = options else { return Ok(Self { inner, layer: None }) };
        let judge = J::load(options.own, models)?;
        let categories = judge.categories();
        let policy = Policy::new(categories, &options.before, &options.after, &options.thresholds)?;
        let counts = Counts::new(categories);
        Ok(Self { inner, layer: Some(Layer { judge, policy, counts }) })
    }

    /// Returns the handler inside.
    pub fn inner(&self) -> &H {
        &self.inner
    }

    fn all_measures(&self, mut own: Vec<Measure>) -> Vec<Measure> {
        own.extend(self.layer.iter().flat_map(|layer| layer.counts.measures()));
        own
    }

    fn whole_fingerprint(&self, own: Option<Fingerprint>) -> Option<Fingerprint> {
        let Some(layer) = &self.layer else { return own };
        let mut digest = Sha256::new();
        digest.update(own.map_or([0; 16], |own| own.0));
        layer.add_to(&mut digest);
        let digest: [u8; 32] = digest.finalize().into();
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&digest[..16]);
        Some(Fingerprint(fingerprint))
    }
}

impl<H, J> Handler for Judged<H, J>
where
    H: Handler<Input: AsRef<TextInput>, Output = TextPiece>,
    J: Judge,
{
    type Options = JudgedOptions<H::Options, J::Options>;
    type Input = H::Input;
    type Output = TextPiece;

    fn load(options: Self::Options, models: Models) -> Result<Self> {
        let inner = H::load(options.own, models.clone())?;
        Self::new(inner, options.judge, &models)
    }

    fn handle(&self, input: H::Input, job: &mut Job<TextPiece>) -> Result<Finish> {
        let Some(layer) = &self.layer else { return self.inner.handle(input, job) };
        if block_on(caught_call(layer.refuses_prompt(input.as_ref(), &job.emitter())))? {
            return Ok(Finish::CONTENT_FILTER);
        }
        if !layer.policy.after.is_any() {
            return self.inner.handle(input, job);
        }
        let info = job.info().clone();
        let (pump, writer, offered) = layer.pump(input.as_ref(), job.emitter(), job.offered())?;
        let (done, returned) = oneshot::channel();
        thread::scope(|scope| {
            let pump = thread::Builder::new()
                .name("judge".to_owned())
                .spawn_scoped(scope, move || block_on(caught_call(pump.run(job, returned))))
                .map_err(Error::retry)?;
            let result = self.inner.handle(input, &mut erased::job(info, writer, offered));
            // The pump has ended if the reply is refused or must stop.
            let _ = done.send(result);
            pump.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    fn threads(&self) -> usize {
        self.inner.threads()
    }

    fn warm_up(&self) -> Result<()> {
        self.inner.warm_up()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn forget(&self) {
        self.inner.forget();
    }

    fn measures(&self) -> Vec<Measure> {
        self.all_measures(self.inner.measures())
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        self.whole_fingerprint(self.inner.fingerprint())
    }
}

impl<H, J> AsyncHandler for Judged<H, J>
where
    H: AsyncHandler<Input: AsRef<TextInput>, Output = TextPiece>,
    J: Judge,
{
    type Options = JudgedOptions<H::Options, J::Options>;
    type Input = H::Input;
    type Output = TextPiece;

    async fn load(options: Self::Options, models: Models) -> Result<Self> {
        let inner = H::load(options.own, models.clone()).await?;
        Self::new(inner, options.judge, &models)
    }

    async fn handle(&self, input: H::Input, job: &mut AsyncJob<TextPiece>) -> Result<Finish> {
        let Some(layer) = &self.layer else { return self.inner.handle(input, job).await };
        if caught_call(layer.refuses_prompt(input.as_ref(), &job.emitter())).await? {
            return Ok(Finish::CONTENT_FILTER);
        }
        if !layer.policy.after.is_any() {
            return self.inner.handle(input, job).await;
        }
        let info = job.info().clone();
        let (pump, writer, offered) = layer.pump(input.as_ref(), job.emitter(), job.offered())?;
        let (done, returned) = oneshot::channel();
        let inner = async {
            let mut job = erased::async_job(info, writer, offered);
            let result = self.inner.handle(input, &mut job).await;
            let _ = done.send(result);
            pending::<()>().await;
        };
        let (inner, pump) = (pin!(inner), pin!(caught_call(pump.run(job, returned))));
        // The pump always ends: with the handler, or before it. Then the handler's future is dropped.
        match select(pump, inner).await {
            Either::Left((result, _)) => result,
            Either::Right(((), pump)) => pump.await,
        }
    }

    fn tasks(&self) -> usize {
        self.inner.tasks()
    }

    async fn warm_up(&self) -> Result<()> {
        self.inner.warm_up().await
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn forget(&self) {
        self.inner.forget();
    }

    fn measures(&self) -> Vec<Measure> {
        self.all_measures(self.inner.measures())
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        self.whole_fingerprint(self.inner.fingerprint())
    }
}

impl<H: fmt::Debug, J: Judge> fmt::Debug for Judged<H, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judged")
            .field("inner", &self.inner)
            .field("judges", &self.layer.is_some())
            .finish_non_exhaustive()
    }
}
