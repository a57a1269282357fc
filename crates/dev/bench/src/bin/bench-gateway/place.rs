//! Worker, client and gateway on one broker.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nsbridge_client::{Client, Event, Request, TextInput, TextPiece};
use nsbridge_gateway::{Config, Gateway};
use nsbridge_queue::{AmqpBroker, Broker};
use nsbridge_testkit::system::{Running, Setup};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::words::{Pace, Words};

/// Running system.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) address: SocketAddr,
    pub(crate) model: String,
    setup: Arc<Setup>,
    client: Client,
    drain: CancellationToken,
    worker: Arc<Mutex<Option<Running>>>,
}

impl Place {
    pub(crate) async fn start(url: &str, pace: Pace) -> Result<Self> {
        let mut setup = Setup::new()?;
        setup.reply.coalesce_ms = 0;
        let broker: Arc<dyn Broker> = Arc::new(AmqpBroker::new(url)?);
        let worker = setup.worker_async::<Words>(broker.clone(), pace).await?;
        let client = setup.client(Arc::new(AmqpBroker::new(url)?)).await?;
        let model = setup.model.to_string();
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[broker]\nurl = \"{url}\"\n\
             [keys]\nkeyring = \"unused\"\n[access]\nopen_to = \"test\"\n[models.{model}]\n"
        );
        let config: Config = toml::from_str(&text)?;
        let gateway = Gateway::on(config, broker, setup.keys.clone()).await?;
        let (address, drain) = (gateway.address(), gateway.drain());
        tokio::spawn(gateway.run());
        let worker = Arc::new(Mutex::new(Some(worker)));
        Ok(Self { address, model, setup: Arc::new(setup), client, drain, worker })
    }

    fn request(&self, tokens: usize) -> Result<Request<TextInput>> {
        let max_tokens = Some(u32::try_from(tokens)?);
        let input = TextInput { max_tokens, ..TextInput::prompt("Once") };
        let request = Request::new(self.setup.model.clone(), self.setup.tenant()).input(input);
        Ok(request.timeout(Duration::from_secs(120)))
    }

    /// Returns the time to the first token of a request by the client alone, and reads it whole.
    pub(crate) async fn first(&self, tokens: usize, began: Instant) -> Result<Duration> {
        let mut reply = self.client.submit::<TextPiece>(self.request(tokens)?).await?;
        let event = reply.next().await.context("no piece came")??;
        let took = began.elapsed();
        ensure!(matches!(event, Event::Piece(_)), "{event:?} came first");
        reply.collect().await?;
        Ok(took)
    }

    /// Reads a whole reply by the client alone.
    pub(crate) async fn whole(&self, tokens: usize) -> Result<()> {
        let reply = self.client.submit::<TextPiece>(self.request(tokens)?).await?;
        let (pieces, _) = reply.collect().await?;
        ensure!(pieces.len() == tokens, "{} pieces came", pieces.len());
        Ok(())
    }

    pub(crate) async fn stop(&self) -> Result<()> {
        self.drain.cancel();
        match self.worker.lock().await.take() {
            Some(worker) => worker.stop().await,
            None => Ok(()),
        }
    }
}
