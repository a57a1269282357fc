//! Queues of all models, as the broker's management API lists them.

use anyhow::{Context as _, Result, anyhow, bail};
use hyper::header::HeaderValue;
use hyper::{StatusCode, Uri};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::address::{at, authorization, virtual_host};
use super::http::Http;
use super::queues::{Queue, model_of};

/// Regular expression of the names that are listed. Reply queues, control queues and run records
/// may be many, and are left out by the broker.
const NAMES: &str = r"^nsbridge\.(?!reply\.|control\.)(?!.*\.runs\.[0-9a-f]{32}$)";

/// Number of queues of one response: the maximum of the API.
const PAGE: u32 = 500;

/// Maximum number of responses of one reading.
const MOST_PAGES: u32 = 10;

/// Fields of a queue that the broker sends.
const COLUMNS: &str = "name,messages_ready,messages_unacknowledged,consumers,\
    message_stats.publish_details.rate,message_stats.ack_details.rate";

/// Reader of the management API.
#[derive(Debug)]
pub(super) struct Management {
    http: Http,
    address: Uri,
    login: Option<HeaderValue>,
    virtual_host: String,
}

#[derive(Debug, Deserialize)]
struct Listed {
    items: Vec<Item>,
    page_count: u32,
}

#[derive(Debug, Deserialize)]
struct Item {
    name: String,
    /// Figures of a queue that the broker has just declared are absent.
    #[serde(default)]
    messages_ready: u64,
    #[serde(default)]
    messages_unacknowledged: u64,
    #[serde(default)]
    consumers: u64,
    #[serde(default)]
    message_stats: Stats,
}

#[derive(Debug, Default, Deserialize)]
struct Stats {
    publish_details: Option<Details>,
    ack_details: Option<Details>,
}

#[derive(Debug, Deserialize)]
struct Details {
    rate: f64,
}

impl Management {
    /// Creates a reader that logs in as the user of the broker's URL.
    pub(super) fn new(address: Uri, broker: &str) -> Result<Self> {
        let http = Http::new(&address)?;
        let virtual_host = virtual_host(broker).to_owned();
        Ok(Self { http, address, login: authorization(broker), virtual_host })
    }

    /// Reads the queues of all models.
    pub(super) async fn read(&self) -> Result<Vec<Queue>> {
        let mut queues = Vec::new();
        for page in 1..=MOST_PAGES {
            let Listed { items, page_count } = self.page(page).await?;
            let of_models = items.into_iter().filter(|item| model_of(&item.name).is_some());
            queues.extend(of_models.map(Queue::from));
            if page >= page_count {
                return Ok(queues);
            }
        }
        bail!("it lists more than {} queues", MOST_PAGES * PAGE)
    }

    async fn page(&self, page: u32) -> Result<Listed> {
        let names = utf8_percent_encode(NAMES, NON_ALPHANUMERIC);
        let path = format!(
            "{}/api/queues/{}?page={page}&page_size={PAGE}&pagination=true&use_regex=true\
             &name={names}&columns={COLUMNS}",
            self.address.path().trim_end_matches('/'),
            self.virtual_host,
        );
        let uri = at(&self.address, &path).map_err(|error| anyhow!(error))?;
        let answer = self.http.get(&uri, self.login.as_ref()).await?;
        match answer.status {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED => bail!(
                "it refused the login: the user of --broker needs its password in that URL and the \
                 tag `management`"
            ),
            status => bail!("status {}", status.as_u16()),
        }
        serde_json::from_str(&answer.text).context("the answer is not a list of queues")
    }
}

impl From<Item> for Queue {
    fn from(item: Item) -> Self {
        let rate = |details: Option<Details>| Some(details.map_or(0.0, |details| details.rate));
        Self {
            name: item.name,
            ready: item.messages_ready,
            consumers: item.consumers,
            unacked: Some(item.messages_unacknowledged),
            published: rate(item.message_stats.publish_details),
            settled: rate(item.message_stats.ack_details),
        }
    }
}
