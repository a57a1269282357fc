//! `nsbridge dev`: a gateway with the chat page, and a worker, in one process.

use std::io::{IsTerminal as _, stderr};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use nsbridge_gateway::{Config, Gateway, InputSchema, Model, Reasoning, StoreConfig, Tools};
use nsbridge_llama::ChatFormats;
use nsbridge_store::Location;
use serde::de::value::Error as ValueError;
use serde::de::{DeserializeOwned, IntoDeserializer as _};

use crate::failure::status;
use crate::gateway::run_until_signals;
use crate::handler::models;
use crate::local::{ENGINE_TARGET, Local, Pair};
use crate::place::{self, loopback, weights};
use crate::progress::Display;
use crate::worker::PythonSettings;

/// Serves the chat page and OpenAI's API on this machine, with gateway, queue and worker in one
/// process.
///
/// All users of this machine may ask, without a key. Replies, files and batches are encrypted in a
/// temporary folder, which is removed when the command ends.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  nsbridge dev\n  \
    nsbridge dev --model SmolLM2-135M-Instruct.Q4_1.gguf --listen 127.0.0.1:8090\n  \
    nsbridge dev --python model.py --reload\n  \
    nsbridge dev --engine vllm --weights ./Qwen3-8B")]
#[command(group(clap::ArgGroup::new("code").args(["python", "engine"])))]
pub(crate) struct Arguments {
    #[command(flatten)]
    pair: Pair,
    /// Model in Python instead: the file, or FILE:CLASS.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "draft", "device"])]
    python: Option<PathBuf>,
    /// Engine that runs the model of --weights instead: vllm or sglang.
    #[arg(
        long,
        value_name = "NAME",
        requires = "weights",
        conflicts_with_all = ["python", "model", "draft", "device"]
    )]
    engine: Option<String>,
    /// Loads the model in Python again when its sources change.
    #[arg(long, requires = "python")]
    reload: bool,
    #[command(flatten)]
    settings: PythonSettings,
    /// Files of the model in Python or of the engine's, by the name under which `load` finds them, `target`
    /// if there is none; repeatable. A folder or s3://bucket/prefix.
    #[arg(long, value_name = "[NAME=]PLACE", requires = "code", value_parser = weights)]
    weights: Vec<(String, Location)>,
    /// Format in which the model writes calls of tools: hermes, llama3_json, mistral or none [default: that
    /// of its chat template]
    #[arg(long, value_name = "FORMAT", value_parser = named::<Tools>)]
    tools: Option<Named<Tools>>,
    /// Place of the model's reasoning: think, think_begun or none [default: that of its chat template]
    #[arg(long, value_name = "FORMAT", value_parser = named::<Reasoning>)]
    reasoning: Option<Named<Reasoning>>,
    /// Address and port to listen at, or the port alone.
    #[arg(
        long,
        alias = "port",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080",
        value_parser = loopback
    )]
    listen: SocketAddr,
    /// Does not open a browser. A terminal is needed for one to open.
    #[arg(long)]
    no_open: bool,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    place::block_on(serve(arguments))
}

async fn serve(arguments: Arguments) -> Result<ExitCode> {
    let Arguments {
        pair,
        python,
        engine,
        reload,
        settings,
        weights,
        tools,
        reasoning,
        listen,
        no_open,
    } = arguments;
    let is_python = python.is_some();
    let is_chat = engine.is_some() || !pair.is_bundled();
    // An engine refuses them itself if its model takes none.
    let images = engine.is_some();
    // The files of a model in Python, or of an engine's, are read from the store for as long as its worker runs.
    let (_store, models) = models(weights).await?;
    let found = match (is_python, models.get(ENGINE_TARGET)) {
        (true, _) => ChatFormats::default(),
        // A file that cannot be read fails with its own sentence when it is loaded.
        (false, Some(target)) => ChatFormats::read(target).unwrap_or_default(),
        (false, None) => pair.formats(),
    };
    let tools = tools.or_else(|| named(found.calls?.name()).ok()).and_then(|named| named.0);
    let reasoning =
        reasoning.or_else(|| named(found.reasoning?.name()).ok()).and_then(|named| named.0);
    let mut input_schema = None;
    let local = match (python, engine) {
        (Some(file), _) => {
            let mut options = settings.of_model(&file)?;
            // Prompts of this machine's user alone are served here.
            (options.reload, options.show_output) = (reload, true);
            let schema = options.loaded_schema.clone();
            let local = Local::start_python(options, models).await?;
            input_schema = schema.get().cloned().flatten().map(InputSchema::Schema);
            local
        }
        (None, Some(engine)) => {
            let mut options = settings.of_engine(engine)?;
            options.show_output = true;
            Local::start_engine(options, models).await?
        }
        (None, None) => Local::start(&pair, Display::of_stderr()).await?,
    };
    let queue = Some(local.model.clone());
    let served = Model { queue, tools, reasoning, images, input_schema, ..Model::default() };
    let models = [(local.name.clone(), served)].into();
    let mut config = Config::local(listen, local.tenant.clone(), models);
    config.server.default_model = Some(local.name.clone());
    let folder = tempfile::tempdir().context("making a temporary folder")?;
    config.store = Some(StoreConfig::local(folder.path()));
    let gateway = Gateway::on(config, local.broker.clone(), local.keys.clone()).await?;
    let page = format!("http://{}", gateway.address());
    let name = &local.name;
    let (path, body) = if is_python {
        (format!("/v1/models/{}/run", local.name), "{\"input\": \"hello\"}")
    } else if is_chat {
        let body = "{\"messages\": [{\"role\": \"user\", \"content\": \"Say hi\"}]}";
        ("/v1/chat/completions".to_owned(), body)
    } else {
        ("/v1/completions".to_owned(), "{\"prompt\": \"Once a bear\", \"max_tokens\": 40}")
    };
    status(&format!(
        "{page} has the chat page of the model {name}, and {page}/v1 answers clients of OpenAI's API, and of \
         Anthropic's at {page}/v1/messages. For example:\n  \
         curl {page}{path} -H 'content-type: application/json' -d '{body}'\nCtrl-C ends it."
    ));
    if !no_open && stderr().is_terminal() && open::that_detached(&page).is_err() {
        status("no browser could be opened");
    }
    local.beside(run_until_signals(gateway)).await
}

/// Value of an option, with `none` for no value.
#[derive(Clone, Copy, Debug)]
struct Named<T>(Option<T>);

/// Reads a value by its name in a gateway's configuration.
fn named<T: DeserializeOwned>(text: &str) -> Result<Named<T>, String> {
    if text == "none" {
        return Ok(Named(None));
    }
    let value = T::deserialize(text.into_deserializer());
    value.map(|value| Named(Some(value))).map_err(|error: ValueError| format!("{error}, or `none`"))
}

#[cfg(test)]
mod tests {
    use nsbridge_gateway::{Reasoning, Tools};

    use super::named;

    #[test]
    fn formats_have_the_names_of_the_configuration() {
        assert_eq!(named::<Tools>("llama3_json").unwrap().0, Some(Tools::Llama3Json));
        assert_eq!(named::<Reasoning>("think_begun").unwrap().0, Some(Reasoning::ThinkBegun));
        assert_eq!(named::<Reasoning>("none").unwrap().0, None);
        let said = named::<Tools>("hermess").unwrap_err();
        assert!(
            said.contains("hermess") && said.contains("`hermes`") && said.contains("`none`"),
            "{said}"
        );
    }
}
