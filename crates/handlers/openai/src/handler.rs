//! Handler of text: passes each request to the server.

use nsbridge_handler::{
    AsyncHandler, AsyncJob, Fingerprint, Finish, Health, Measure, Models, MultimodalInput, Result,
    TextInput, TextPiece,
};

use crate::fields::check;
use crate::options::Options;
use crate::plan::{Plan, Task, plan};
use crate::replies::Replies;
use crate::reply::{EndTokens, Rules};
use crate::server::Purpose;
use crate::upstream::{Upstream, scope};

/// Handler in front of a server of OpenAI's API that makes text.
#[derive(Debug)]
pub struct OpenAi {
    upstream: Upstream,
    end_tokens: EndTokens,
}

impl AsyncHandler for OpenAi {
    type Options = Options;
    type Input = MultimodalInput;
    type Output = TextPiece;

    async fn load(options: Options, models: Models) -> Result<Self> {
        let upstream = Upstream::load(options, &models, Purpose::Text).await?;
        Ok(Self { upstream, end_tokens: EndTokens::default() })
    }

    async fn handle(
        &self,
        MultimodalInput(input): MultimodalInput,
        job: &mut AsyncJob<TextPiece>,
    ) -> Result<Finish> {
        let Upstream { server, background, .. } = &self.upstream;
        check(&input, server)?;
        let answered = match self.plan(input, job).await {
            Ok(plan) => Replies::new(plan, server, background, job).run(job).await,
            Err(error) => Err(error),
        };
        self.upstream.result(answered).await
    }

    fn tasks(&self) -> usize {
        self.upstream.slots
    }

    fn health(&self) -> Health {
        self.upstream.health()
    }

    fn measures(&self) -> Vec<Measure> {
        self.upstream.measures()
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(self.upstream.fingerprint())
    }
}

impl OpenAi {
    /// Makes the plan of a call, and accepts the pieces that the client has if the reply continues.
    async fn plan(&self, input: TextInput, job: &mut AsyncJob<TextPiece>) -> Result<Plan> {
        let offered = offered(job);
        let count = offered.len();
        let rules = Rules::new(&input, self.upstream.server.flavor, self.end_tokens.clone());
        let task = Task { input, rules, seed: job.info().seed, scope: scope(job), offered };
        let first = self.planned(task.clone(), job).await?;
        if !first.continues || job.accept_resume().len() == count {
            return Ok(first);
        }
        self.planned(Task { offered: Vec::new(), ..task }, job).await
    }

    async fn planned(&self, task: Task, job: &AsyncJob<TextPiece>) -> Result<Plan> {
        self.upstream.unless_stopped(job, plan(self.upstream.server.clone(), task)).await
    }
}

/// Returns the pieces that the client has, without the promise to continue after them.
fn offered(job: &AsyncJob<TextPiece>) -> Vec<TextPiece> {
    let Some(offered) = job.offered() else { return Vec::new() };
    let pieces = offered.pieces.iter().map(|piece| serde_json::from_slice(piece));
    pieces.collect::<Result<_, _>>().unwrap_or_default()
}
