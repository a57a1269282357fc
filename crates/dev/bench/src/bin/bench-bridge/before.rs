//! Comparison with another build of this benchmark, question by question.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nsbridge_bench::report::{Report, Row, median, percentile};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::STREAMS;
use crate::serve::Question;

/// Number of blocks. In each, both builds answer each question, and each is first in every second
/// block: the broker and the machine have phases of seconds, which meet both.
const BLOCKS: usize = 150;

/// Questions of a block, with the names of their rows and the number of times that each is asked. Times
/// to the first piece differ more than what is to be seen, so there are many.
const QUESTIONS: [(&str, Question, usize); 4] = [
    ("chunks_per_s", Question::Chunks { streams: STREAMS, frames: 500 }, 1),
    ("ttft_added", Question::First { requests: 100 }, 4),
    ("cancel_ms", Question::Cancel { requests: 13 }, 1),
    ("gone_ms", Question::Gone { requests: 13 }, 1),
];

/// Time that a build has for an answer. An old build may have a defect that hangs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Process of a build.
struct Build {
    child: Child,
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Build {
    async fn start(program: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["-", "serve"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.kill_on_drop(true).spawn();
        let mut child = child.with_context(|| format!("starting {}", program.display()))?;
        let questions = child.stdin.take().context("its input is a pipe")?;
        let answers = child.stdout.take().context("its output is a pipe")?;
        let mut build = Self { child, questions, answers: BufReader::new(answers).lines() };
        let line = build.line().await.with_context(|| {
            format!("{} does not answer questions: it has no `serve`", program.display())
        })?;
        ensure!(line == "ready", "{} is no build of this benchmark: {line}", program.display());
        Ok(build)
    }

    async fn ask(&mut self, question: Question) -> Result<Vec<f64>> {
        let line = serde_json::to_string(&question)? + "\n";
        self.questions.write_all(line.as_bytes()).await?;
        Ok(serde_json::from_str(&self.line().await?)?)
    }

    async fn line(&mut self) -> Result<String> {
        let line =
            timeout(ANSWER_TIMEOUT, self.answers.next_line()).await.context("no answer came")?;
        line?.context("it ended; it says why above")
    }

    async fn stop(self) -> Result<()> {
        let Self { mut child, questions, .. } = self;
        drop(questions);
        let ended = timeout(ANSWER_TIMEOUT, child.wait()).await.context("it did not end")?;
        ensure!(ended?.success(), "it failed; it says why above");
        Ok(())
    }
}

/// Puts a question to both builds, in an order. Returns their answers; none if the other build, which
/// is then started again, has failed: a question that one build did not answer has no pair.
async fn ask_both(
    builds: &mut [Build; 2],
    program: &Path,
    order: [usize; 2],
    question: Question,
) -> Result<Option<[Vec<f64>; 2]>> {
    let mut answers = [Vec::new(), Vec::new()];
    for which in order {
        match builds[which].ask(question).await {
            Ok(answer) => answers[which] = answer,
            Err(error) if which == 1 => {
                eprintln!("{question:?}: {error:#}; starting the other build again");
                builds[1] = Build::start(program).await?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Some(answers))
}

/// Measures this build and another one.
pub(crate) async fn rows(program: &Path, report: &mut Report) -> Result<()> {
    let ours = std::env::current_exe()?;
    let mut builds = [Build::start(&ours).await?, Build::start(program).await?];
    // Answers of each question: ours, and the other build's.
    let mut answers = [(); 4].map(|()| [Vec::new(), Vec::new()]);
    // The first block is a warm-up.
    for block in 0..=BLOCKS {
        for ((_, question, times), answers) in QUESTIONS.into_iter().zip(&mut answers) {
            for time in 0..times {
                let order = if (block + time) % 2 == 0 { [0, 1] } else { [1, 0] };
                let both = ask_both(&mut builds, program, order, question).await?;
                if let Some([mine, theirs]) = both.filter(|_| block > 0) {
                    answers[0].push(mine);
                    answers[1].push(theirs);
                }
            }
        }
        if block % 10 == 0 {
            eprintln!("block {block} of {BLOCKS}");
        }
    }
    for build in builds {
        build.stop().await?;
    }
    let about = format!("the build {}", program.display());
    for ((name, ..), [mine, theirs]) in QUESTIONS.into_iter().zip(answers) {
        let row = |name: String, unit, better, value, peer, ratio| Row {
            name: format!("bridge.{name}.vs_before"),
            value,
            unit,
            better,
            peer: Some(about.clone()),
            peer_value: Some(peer),
            ratio: Some(ratio),
        };
        let (mut mine, mut theirs) = (mine.concat(), theirs.concat());
        if name == "chunks_per_s" {
            let ratios = mine.iter().zip(&theirs).map(|(mine, theirs)| mine / theirs);
            let ratio = median(&mut ratios.collect::<Vec<_>>());
            let (mine, theirs) = (median(&mut mine), median(&mut theirs));
            report.push(row(name.to_owned(), "frames/s", "higher", mine, theirs, ratio));
            continue;
        }
        for (percent, share) in [("p50", 0.50), ("p99", 0.99)] {
            let (mine, theirs) = (percentile(&mut mine, share), percentile(&mut theirs, share));
            let name = format!("{name}_{percent}");
            report.push(row(name, "ms", "lower", mine, theirs, theirs / mine));
        }
    }
    Ok(())
}
