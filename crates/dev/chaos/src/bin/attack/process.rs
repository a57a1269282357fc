//! Processes under attack, with a memory limit.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nsbridge_chaos::process::{peak_kib, resident_kib};
use tokio::time::sleep;

/// Limit of a process's address space in KiB, that of an 8 GiB container. An allocation beyond it
/// ends the process.
const ADDRESS_SPACE_KIB: u64 = 8 << 20;

/// Time limit for a start on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Process of a worker or a gateway, killed on drop.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
    /// Offset in the log file at which this process begins. A restarted process appends to the log
    /// of its predecessor.
    began: usize,
}

impl Process {
    /// Starts a part of this program with the configuration `<name>.toml` of a folder, in which it has
    /// its log. A higher `nice` value leaves the processor to others. A library may be loaded first.
    pub(crate) fn start(
        dir: &Path,
        part: &str,
        name: &str,
        nice: u32,
        preload: Option<&Path>,
    ) -> Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("ulimit -v {ADDRESS_SPACE_KIB}; exec nice -n {nice} \"$0\" \"$@\""));
        command.envs(preload.map(|library| ("LD_PRELOAD", library)));
        command.arg(std::env::current_exe()?).arg(part).arg(dir.join(format!("{name}.toml")));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(file);
        // The length is read before the start, because a process that fails at once has logged by
        // the next line.
        let began = usize::try_from(fs::metadata(&log)?.len())?;
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        Ok(Self { child, log, began })
    }

    /// Waits until the log has these words.
    pub(crate) async fn until(&self, words: &str) -> Result<()> {
        let began = Instant::now();
        while !self.words()?.contains(words) {
            let words = self.words()?;
            ensure!(began.elapsed() < READY_WITHIN, "a process is not ready; it says:\n{words}");
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Returns the exit code or signal, if the process has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<String>> {
        Ok(self.child.try_wait()?.map(|status| match status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("exit code {}", status.code().unwrap_or_default()),
        }))
    }

    /// Returns the log of this process.
    pub(crate) fn words(&self) -> Result<String> {
        let bytes = fs::read(&self.log)?;
        Ok(String::from_utf8_lossy(bytes.get(self.began..).unwrap_or_default()).into_owned())
    }

    pub(crate) fn log(&self) -> String {
        self.log.display().to_string()
    }

    /// Returns the peak resident memory in MiB; 0 if the process has ended.
    pub(crate) fn peak_mib(&self) -> u64 {
        peak_kib(self.child.id()).unwrap_or_default() >> 10
    }

    /// Returns the resident memory in MiB; 0 if the process has ended.
    pub(crate) fn resident_mib(&self) -> u64 {
        resident_kib(self.child.id()).unwrap_or_default() >> 10
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
