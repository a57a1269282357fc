//! `nsbridge model`: commands for models in object storage.

mod inspect;
mod quantize;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use nsbridge_handler::source::links_out_of;
use nsbridge_llama::Mix;
use nsbridge_store::{
    CURRENT, Location, MANIFEST, Opened, Push, Pushing, Store, StoreConfig, Wanted,
};
use serde_json::{Value, json};

use crate::failure::note;
use crate::place;
use crate::progress::{Bar, size};
use crate::terminal::print_line;

/// Pushes, pulls, verifies, inspects and quantizes models.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A model is a folder, or a place in a bucket; its revisions are kept beside each other:\n\
    \x20 nsbridge model push ./tale-7m s3://bucket/models/tale-7m --revision 2026-11-21\n\
    \x20 nsbridge model inspect s3://bucket/models/tale-7m\n\
    \x20 nsbridge model point s3://bucket/models/tale-7m@2026-11-20      undo a rollout\n\
    \n\
    Credentials and region are found where AWS's own tools look for them."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    store: StoreArguments,
    /// Prints one JSON object to stdout instead of text.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct StoreArguments {
    /// AWS region of the bucket.
    #[arg(long, global = true, env = "NSBRIDGE_STORE__REGION")]
    region: Option<String>,
    /// URL of an S3-compatible service other than AWS.
    #[arg(long, global = true, value_name = "URL", env = "NSBRIDGE_STORE__ENDPOINT_URL")]
    endpoint_url: Option<String>,
    /// Allows plain HTTP to a service on another machine.
    #[arg(long, global = true, env = "NSBRIDGE_STORE__ALLOW_PLAINTEXT")]
    allow_plaintext: bool,
    /// Maximum number of concurrent requests.
    #[arg(long, global = true, value_name = "N", default_value_t = 16)]
    in_flight: usize,
    /// Limit of the total transfer rate, in megabytes a second.
    #[arg(long, global = true, value_name = "MB/S")]
    bandwidth: Option<f64>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Uploads a folder to a bucket as a new revision. Files that are there already are not sent
    /// again.
    #[command(after_help = "Example:\n  nsbridge model push ./tale-7m s3://bucket/models/tale-7m")]
    Push {
        /// Folder with the model's files.
        from: PathBuf,
        /// Location of the model: s3://bucket/prefix.
        to: Location,
        /// Name of the revision; derived from the content of the files if absent.
        #[arg(long)]
        revision: Option<String>,
        /// Alias to point to the revision.
        #[arg(long, default_value = CURRENT)]
        alias: String,
        /// Leaves all aliases unchanged; `model point` rolls the revision out later.
        #[arg(long, conflicts_with = "alias")]
        no_alias: bool,
        /// Replaces another model of the same revision.
        #[arg(long)]
        force: bool,
        /// Sends files that a link outside the folder refers to, as in a Hugging Face cache. Each
        /// one is listed.
        #[arg(long)]
        follow_links: bool,
    },
    /// Downloads a model into a folder and verifies it. Continues an interrupted pull.
    #[command(after_help = "Example:\n  nsbridge model pull s3://bucket/models/tale-7m ./tale-7m")]
    Pull {
        /// Location of the model: s3://bucket/prefix, followed by @revision or @alias if not
        /// `current`.
        from: Location,
        /// Folder to write to.
        to: PathBuf,
    },
    /// Reads a whole model and verifies it against its manifest.
    #[command(
        after_help = "Example:\n  nsbridge model verify s3://bucket/models/tale-7m@2026-11-21"
    )]
    Verify {
        /// Location of the model: a folder, a GGUF file or s3://bucket/prefix.
        model: Location,
    },
    /// Prints a model's tensors, its number of parameters, and the memory that each rank needs.
    ///
    /// A config.json is enough for the memory.
    #[command(
        after_help = "Example:\n  nsbridge model inspect ./llama-70b --dtype q8_0 --tokens 32768"
    )]
    Inspect {
        /// Location of the model: a folder, a GGUF file or s3://bucket/prefix.
        model: Location,
        /// Number of tokens in the KV cache.
        #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..1 << 32))]
        tokens: u64,
        /// Mix of formats that `quantize` would write. Default: the stored formats, or bf16 if
        /// there are no weights.
        #[arg(long, value_parser = quantize::mix())]
        dtype: Option<Mix>,
        /// Lists every tensor.
        #[arg(long)]
        tensors: bool,
    },
    /// Writes a model into a folder as GGUF with quantized matrices.
    ///
    /// q4_k_m and q5_k_m are llama.cpp's mixes: six bits for the output and half of the value and
    /// down projections, four or five bits for the rest.
    #[command(
        after_help = "Example:\n  nsbridge model quantize ./llama-70b ./llama-70b-q4 --dtype q4_k_m\n  \
        nsbridge model push ./llama-70b-q4 s3://bucket/models/llama-70b-q4"
    )]
    Quantize {
        /// Location of the model: a folder, a GGUF file or s3://bucket/prefix.
        model: Location,
        /// Folder to write to.
        to: PathBuf,
        /// Mix of formats for the matrices. Vectors stay in f32.
        #[arg(long, value_parser = quantize::mix())]
        dtype: Mix,
    },
    /// Points an alias to a revision, to roll it out or back.
    #[command(
        after_help = "Example:\n  nsbridge model point s3://bucket/models/tale-7m@2026-11-20"
    )]
    Point {
        /// Location of the revision: s3://bucket/prefix@revision.
        to: Location,
        /// Name of the alias.
        #[arg(long, default_value = CURRENT)]
        alias: String,
    },
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { command, store, json } = arguments;
    place::block_on(async move {
        let mut config = StoreConfig::default();
        config.region = store.region;
        config.endpoint_url = store.endpoint_url;
        config.allow_plaintext = store.allow_plaintext;
        config.in_flight = store.in_flight;
        config.bandwidth_mb_s = store.bandwidth;
        let store = Store::open(&config)?;
        let said = tokio::select! {
            done = carry_out(command, &store, json) => done?,
            _ = tokio::signal::ctrl_c() => {
                note("stopped; a push or a pull goes on from here when it is run again, nothing else does");
                return Ok(ExitCode::from(crate::failure::INTERRUPTED));
            }
        };
        if let Some(said) = said {
            print_line(&said.to_string())?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Runs a command and returns the JSON to print, if any.
async fn carry_out(command: Command, store: &Store, json: bool) -> Result<Option<Value>> {
    let said = match command {
        Command::Push { from, to, revision, alias, no_alias, force, follow_links } => {
            let model = name(&to).with_context(|| format!("{to} ends with no model's name"))?;
            let alias = (!no_alias).then_some(alias);
            if follow_links {
                for (path, place) in links_out_of(&from).unwrap_or_default() {
                    note(&format!("{path:?} is a link to {}", place.display()));
                }
            }
            let mut wanted = Push::new(from, to, model);
            (wanted.revision, wanted.alias) = (revision, alias);
            (wanted.force, wanted.follow_links) = (force, follow_links);
            push(store, wanted, json).await?
        }
        Command::Pull { from, to } => pull(store, from, to, json).await?,
        Command::Verify { model } => verify(store, model, json).await?,
        Command::Inspect { model, tensors, tokens, dtype } => {
            let opened = open(store, model).await?;
            // Reading the headers blocks. On another thread it does not delay the handling of
            // Ctrl-C.
            let inspect = move || inspect::run(&opened, tokens, dtype, tensors, json);
            return tokio::task::spawn_blocking(inspect).await?;
        }
        Command::Quantize { model, to, dtype } => {
            let opened = open(store, model).await?;
            quantize::run(opened, to, dtype, json).await?
        }
        Command::Point { to, alias } => {
            let pointed = store.point(&to, &alias).await?;
            note(&format!("{alias} is {} from now on", pointed.revision));
            json!({ "alias": alias, "revision": pointed.revision })
        }
    };
    Ok(json.then_some(said))
}

async fn open(store: &Store, location: Location) -> Result<Opened> {
    let opened = store.model(&Wanted::from(location)).await?;
    if opened.manifest.is_none() {
        note(&format!("{} has no {MANIFEST}: nothing can be verified", opened.model.place()));
    }
    Ok(opened)
}

async fn push(store: &Store, push: Push, json: bool) -> Result<Value> {
    let (hashing, sending) = (Bar::new("hashing", json), Bar::new("sending", json));
    let bars = (hashing.clone(), sending.clone());
    let told = move |step| match step {
        Pushing::Planned(bytes) => hashing.expect(bytes),
        Pushing::Hashed(bytes) => hashing.add(bytes),
        Pushing::There(bytes) => {
            // All is hashed before the first part is sent.
            hashing.end();
            sending.expect(hashing.total());
            sending.add(bytes);
        }
        _ => {}
    };
    let alias = push.alias.clone();
    let pushed = store.push(push, told).await?;
    bars.0.end();
    bars.1.end();
    let manifest = hex(&pushed.manifest);
    let was_there = if pushed.was_there { " (all of it was there)" } else { "" };
    note(&format!("{}{was_there}", pushed.place));
    note(&format!("manifest {manifest}"));
    if let Some(alias) = &alias {
        note(&format!("{alias} is {} from now on", pushed.revision));
    }
    Ok(json!({
        "place": pushed.place, "revision": pushed.revision, "manifest": manifest,
        "alias": alias, "was_there": pushed.was_there,
    }))
}

async fn pull(store: &Store, from: Location, to: PathBuf, json: bool) -> Result<Value> {
    let opened = open(store, from).await?;
    let bar = Bar::new("pulling", json);
    bar.expect_from(total(&opened), store.counts().clone());
    let told = bar.clone();
    store.pull(&opened, &to, move |bytes| told.add(bytes)).await?;
    bar.end();
    say_what_is_not_the_models(&opened, &to);
    let fetched = store.counts().from_store.get();
    let place = opened.model.place();
    note(&format!("{place} is in {}, {} fetched", to.display(), size(fetched)));
    Ok(json!({ "place": place, "folder": to, "fetched": fetched }))
}

/// Warns about files of another model in the folder, which could be read as part of this one.
fn say_what_is_not_the_models(opened: &Opened, folder: &Path) {
    let Ok(found) = nsbridge_handler::source::files_of(folder) else { return };
    let ours: BTreeSet<&str> = opened.model.files().chain([MANIFEST]).collect();
    let others: Vec<_> = found.iter().filter(|file| !ours.contains(file.path.as_str())).collect();
    if let Some(first) = others.first() {
        let (count, folder) = (others.len(), folder.display());
        note(&format!(
            "{folder} has {count} files that are not this model's, such as {}",
            first.path
        ));
    }
}

async fn verify(store: &Store, model: Location, json: bool) -> Result<Value> {
    let opened = open(store, model).await?;
    let place = opened.model.place();
    let bytes = opened.manifest.as_ref().map_or(0, |manifest| manifest.size());
    let bar = Bar::new("reading", json);
    bar.expect_from(total(&opened), store.counts().clone());
    let told = bar.clone();
    let wrong = store.verify(&opened, move |bytes| told.add(bytes)).await?;
    bar.end();
    let wrong: Vec<_> = wrong.iter().map(|error| nsbridge_base::chain(error)).collect();
    if let Some(first) = wrong.first() {
        if json {
            let found = json!({ "place": place, "good": false, "wrong": wrong });
            print_line(&found.to_string())?;
        }
        let count = wrong.len();
        bail!("{place} is not what its manifest says, {count} of its chunks; the first: {first}");
    }
    note(&format!("{place} is what its manifest says, {} of it", size(bytes)));
    Ok(json!({ "place": place, "good": true, "bytes": bytes }))
}

/// Returns the size of all files of a model, in bytes.
fn total(opened: &Opened) -> u64 {
    opened.model.source().files().iter().map(|file| file.size).sum()
}

/// Returns the last segment of an address.
fn name(location: &Location) -> Option<String> {
    let Location::S3 { bucket, prefix, .. } = location else { return Some(String::new()) };
    let last = prefix.rsplit('/').next().filter(|part| !part.is_empty());
    last.or(Some(bucket)).map(str::to_owned)
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
