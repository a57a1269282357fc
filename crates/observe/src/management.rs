//! Queues of all models, as the broker's management API lists them.

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail};
use hyper::header::HeaderValue;
use hyper::{StatusCode, Uri};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::address::{at, authorization, parameter, virtual_host};
use super::http::Http;
use super::queue::{Queue, model_of};

/// Regular expression of the names that are listed. Reply queues, control queues and run records
/// may be many, and are left out by the broker.
const NAMES: &str = r"^nsbridge\.(?!reply\.|control\.)(?!.*\.runs\.[0-9a-f]{32}$)";

/// Number of queues of one response: the maximum of the API.
const PAGE: u32 = 500;

/// Maximum number of responses of one reading.
const MOST_PAGES: u32 = 10;

/// Fields of a queue that the broker sends.
const COLUMNS: &str = "name,messages_ready,messages_unacknowledged,consumers,\
    message_stats.publish,message_stats.publish_details.rate,message_stats.ack_details.rate";

/// Reader of the management API.
#[derive(Debug)]
pub struct Management {
    http: Http,
    address: Uri,
    login: Option<HeaderValue>,
    virtual_host: String,
}

/// Queue as the broker has it.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Declaration {
    /// Arguments by their names.
    #[serde(default)]
    pub arguments: Map<String, Value>,
    /// Settings of the policies that apply, without the `x-` of arguments.
    #[serde(default)]
    pub effective_policy_definition: Map<String, Value>,
    /// Nodes with a replica, of a quorum queue.
    #[serde(default)]
    pub members: Vec<String>,
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
    #[serde(default)]
    publish: u64,
    publish_details: Option<Details>,
    ack_details: Option<Details>,
}

#[derive(Debug, Deserialize)]
struct Details {
    rate: f64,
}

impl Management {
    /// Creates a reader that logs in as the user of the broker's URL, and trusts the authorities of its
    /// `cacertfile`.
    ///
    /// # Errors
    ///
    /// Returns an error if the address is one of HTTPS, and that file cannot be read, or this machine has no
    /// root certificates.
    pub fn new(address: Uri, broker: &str) -> Result<Self> {
        let authorities = parameter(broker, "cacertfile").map(PathBuf::from);
        let http = Http::trusting(&address, authorities.as_deref())?;
        let virtual_host = virtual_host(broker).to_owned();
        Ok(Self { http, address, login: authorization(broker), virtual_host })
    }

    /// Reads the queues of all models.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no answer in time, or if it is not a list of queues.
    pub async fn read(&self) -> Result<Vec<Queue>> {
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

    /// Reads the declaration of a queue; `None` if there is none of this name.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no answer in time, or if it is not a queue.
    pub async fn declaration(&self, queue: &str) -> Result<Option<Declaration>> {
        let name = utf8_percent_encode(queue, NON_ALPHANUMERIC);
        let answer = self.ask(&format!("/api/queues/{}/{name}", self.virtual_host)).await?;
        let Some(answer) = answer else { return Ok(None) };
        Ok(Some(serde_json::from_str(&answer).context("the answer is not a queue")?))
    }

    async fn page(&self, page: u32) -> Result<Listed> {
        let names = utf8_percent_encode(NAMES, NON_ALPHANUMERIC);
        let path = format!(
            "/api/queues/{}?page={page}&page_size={PAGE}&pagination=true&use_regex=true\
             &name={names}&columns={COLUMNS}",
            self.virtual_host,
        );
        let answer = self.ask(&path).await?.context("status 404")?;
        serde_json::from_str(&answer).context("the answer is not a list of queues")
    }

    /// Asks for a path; returns `None` if there is nothing.
    async fn ask(&self, path: &str) -> Result<Option<String>> {
        let path = format!("{}{path}", self.address.path().trim_end_matches('/'));
        let uri = at(&self.address, &path).map_err(|error| anyhow!(error))?;
        let answer = self.http.get(&uri, self.login.as_ref()).await?;
        match answer.status {
            StatusCode::OK => Ok(Some(answer.text)),
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::UNAUTHORIZED => bail!(
                "it refused the login: the user of the broker's URL needs its password there and the \
                 tag `management`"
            ),
            status => bail!("status {}", status.as_u16()),
        }
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
            published_total: Some(item.message_stats.publish),
            published: rate(item.message_stats.publish_details),
            settled: rate(item.message_stats.ack_details),
        }
    }
}
