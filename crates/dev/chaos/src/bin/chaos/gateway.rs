//! Gateway process: the production gateway, which records in the journal that it takes requests.

use std::path::Path;

use anyhow::{Context, Result};
use nsbridge_gateway::{Config, Gateway};
use tokio::signal::unix::{SignalKind, signal};

use crate::journal::{Journal, What};
use nsbridge_chaos::process::leave_with_the_starter;

/// Runs the gateway of a configuration until SIGTERM. The journal is in the folder of the file.
pub(crate) fn run(path: &Path) -> Result<()> {
    leave_with_the_starter();
    tracing_subscriber::fmt()
        .with_env_filter("info,lapin=off")
        .with_writer(nsbridge::stderr_log)
        .with_ansi(false)
        .init();
    let journal = Journal::in_dir(path.parent().context("the configuration has no folder")?)?;
    let config = Config::read(path, [])?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let gateway = Gateway::connect(config).await?;
        let (drain, address) = (gateway.drain(), gateway.address().to_string());
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::spawn(async move {
            terminate.recv().await;
            drain.cancel();
        });
        journal.note(What::Serving { pid: std::process::id(), address })?;
        gateway.run().await;
        Ok(())
    })
}
