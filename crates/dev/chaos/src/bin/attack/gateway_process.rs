//! Gateway process: the production gateway, which logs its address.

use std::path::Path;

use anyhow::Result;
use nsbridge_gateway::{Config, Gateway};

use crate::stage::LISTENING;

/// Runs the gateway of a configuration until the process is killed.
pub(crate) fn run(path: &Path) -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter("info,lapin=off")
        .with_writer(nsbridge::stderr_log)
        .with_ansi(false)
        .init();
    let config = Config::read(path, [])?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let gateway = Gateway::connect(config).await?;
        tracing::info!("{LISTENING}{}", gateway.address());
        gateway.run().await;
        Ok(())
    })
}
