//! Finds out what kind of server it is, and which model it serves.

use std::sync::Arc;

use hyper::StatusCode;
use nsbridge_handler::{Error, Result, quote};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{MODELS, no_key};
use crate::http::{Answer, Http};
use crate::options::{Flavor, Options};
use crate::server::{Purpose, Server};
use crate::texts::Texts;

#[derive(Deserialize)]
struct List {
    data: Vec<Card>,
}

/// Model in the list.
#[derive(Clone, Deserialize)]
struct Card {
    id: String,
    #[serde(default)]
    owned_by: String,
    root: Option<String>,
    max_model_len: Option<usize>,
}

/// Asks a server that is ready.
///
/// # Errors
///
/// Returns an error if it is no server of OpenAI's API, if it does not accept the API key, or if it
/// lacks the model.
pub(crate) async fn probe(http: Arc<Http>, options: &Options, purpose: Purpose) -> Result<Server> {
    let card = card(&http, options).await?;
    let flavor = options.flavor.unwrap_or(match &*card.owned_by {
        "vllm" => Flavor::Vllm,
        "sglang" => Flavor::Sglang,
        "llamacpp" => Flavor::LlamaServer,
        _ => Flavor::Generic,
    });
    if flavor == Flavor::LlamaServer && !options.adapters.is_empty() {
        return Err(Error::fatal(
            "[handler] adapters cannot be used with llama-server: leave them out",
        ));
    }
    if options.takes_images && matches!(flavor, Flavor::Vllm | Flavor::LlamaServer) {
        return Err(Error::fatal(format!(
            "[handler] takes_images has no effect with {flavor}, which gets no images: set flavor to generic"
        )));
    }
    let own = facts(&http, flavor).await;
    let is_text = purpose == Purpose::Text;
    if is_text && flavor == Flavor::Vllm {
        check_text(&http, &card.id).await?;
    }
    let texts = match flavor {
        Flavor::Vllm | Flavor::LlamaServer if is_text => {
            Some(texts(&http, &card.id, flavor).await?)
        }
        _ => None,
    };
    let mut facts = vec![format!("{flavor:?}"), card.id.clone()];
    facts.extend(card.root.clone());
    facts.extend([own.version, own.model, format!("{:?}", card.max_model_len)]);
    Ok(Server {
        http,
        flavor,
        model: card.id,
        adapters: options.adapters.clone(),
        texts,
        context: card.max_model_len.or(own.context),
        share_prefix_cache: options.share_prefix_cache,
        takes_images: options.takes_images,
        facts,
    })
}

/// Returns the entry of the model.
async fn card(http: &Http, options: &Options) -> Result<Card> {
    let (root, wanted) = (http.root(), options.served_model.as_deref());
    let answer = http.get(MODELS).await.map_err(Error::fatal)?;
    let cards = models(&answer, root)?.data;
    let lacks = |name: &&String| cards.iter().all(|card| card.id != **name);
    if let Some(adapter) = options.adapters.iter().find(lacks) {
        return Err(Error::fatal(format!(
            "the server at {root} does not have the adapter {}, but {}: correct [handler] adapters",
            quote(adapter),
            names(&cards)
        )));
    }
    let is_wanted = |card: &&Card| match wanted {
        Some(wanted) => card.id == wanted,
        None => !options.adapters.contains(&card.id),
    };
    let mut found = cards.iter().filter(is_wanted);
    match (found.next(), found.next()) {
        (Some(card), None) => Ok(card.clone()),
        (None, _) => Err(Error::fatal(format!(
            "the server at {root} does not serve {}, but {}: correct [handler] served_model",
            quote(wanted.unwrap_or("a model")),
            names(&cards)
        ))),
        _ => Err(Error::fatal(format!(
            "the server at {root} serves {}: name one in [handler] served_model",
            names(&cards)
        ))),
    }
}

fn models(answer: &Answer, root: &str) -> Result<List> {
    let why = match answer.status {
        StatusCode::OK => match answer.json() {
            Some(list) => return Ok(list),
            None => {
                format!("{root}{MODELS} is no list of models: is [handler] url that of the server?")
            }
        },
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => no_key(root),
        status => format!(
            "{root}{MODELS} answers with status {}: is [handler] url that of a server of OpenAI's API?",
            status.as_u16()
        ),
    };
    Err(Error::fatal(why))
}

/// Returns the names of some models.
fn names(cards: &[Card]) -> String {
    let names: Vec<String> = cards.iter().take(20).map(|card| quote(&card.id)).collect();
    match names.is_empty() {
        true => "no model".to_owned(),
        false => names.join(", "),
    }
}

/// Facts from a page that only such a server has.
#[derive(Default)]
struct Facts {
    version: String,
    /// Model's file, if the name is an alias.
    model: String,
    context: Option<usize>,
}

async fn facts(http: &Http, flavor: Flavor) -> Facts {
    let page = match flavor {
        Flavor::Vllm => "/version",
        Flavor::Sglang => "/get_server_info",
        Flavor::LlamaServer => "/props",
        Flavor::Generic => return Facts::default(),
    };
    let answer = http.get(page).await.ok().filter(|answer| answer.status == StatusCode::OK);
    let page: Value = answer.and_then(|answer| answer.json()).unwrap_or_default();
    let text = |field: &str| page[field].as_str().unwrap_or_default().to_owned();
    let version = text(if flavor == Flavor::LlamaServer { "build_info" } else { "version" });
    let context = page.pointer("/default_generation_settings/n_ctx").and_then(Value::as_u64);
    Facts { version, model: text("model_path"), context: context.map(|tokens| tokens as usize) }
}

/// Returns the reader of the texts of tokens. No request is at fault if the server has none.
async fn texts(http: &Arc<Http>, model: &str, flavor: Flavor) -> Result<Texts> {
    let texts = Texts::new(http.clone(), model.to_owned(), flavor).await;
    texts.map_err(|error| match error {
        Error::BadInput(why) => Error::fatal(format!(
            "the server at {} does not convert between texts and tokens, as {flavor} does: {}",
            http.root(),
            quote(why)
        )),
        other => other,
    })
}

/// Refuses a server that makes no text. Most refuse this request before they make any: by default, vLLM
/// has no priorities.
async fn check_text(http: &Http, model: &str) -> Result<()> {
    let request = json!({ "model": model, "prompt": "a", "max_tokens": 1, "priority": 1 });
    let answer = http.post("/v1/completions", &request).await.map_err(Error::fatal)?;
    match answer.status {
        StatusCode::NOT_FOUND => Err(Error::fatal(format!(
            "the server at {} makes no text: set [handler] task to embed if it makes vectors",
            http.root()
        ))),
        _ => Ok(()),
    }
}
