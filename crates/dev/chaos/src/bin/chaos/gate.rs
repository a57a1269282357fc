//! Gate of a round: callers that read late wait until the driver opens it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;

/// File that stands in the folder of a round when its gate is open. `client.py` has the same name.
const FILE: &str = "gate";

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Gate of a round. It is a file, because callers in any process and language wait for it.
#[derive(Clone, Debug)]
pub(crate) struct Gate(PathBuf);

impl Gate {
    /// Returns the gate of the round in `dir`, closed at first.
    pub(crate) fn in_dir(dir: &Path) -> Self {
        Self(dir.join(FILE))
    }

    pub(crate) fn open(&self) -> io::Result<()> {
        File::create(&self.0).map(drop)
    }

    /// Waits until the gate is open.
    pub(crate) async fn opened(&self) {
        while !self.0.exists() {
            sleep(LOOK_EVERY).await;
        }
    }
}
