//! Faults of workers that run the LLM engine: a target on two ranks with a draft, loaded from a
//! bucket.

use std::path::Path;

use anyhow::Result;
use nsbridge_llama::{Arithmetic, Llama, Options};
use nsbridge_protocol::TextInput;
use nsbridge_testkit::s3::S3Server;

use crate::engine::Lone;
use crate::follow::{gone, left_in_order, left_with};
use crate::plan::Ask;
use crate::stage::{Stage, base};

/// Target model and draft model.
const PAIR: [&str; 2] = ["tale-7m", "tale-1m"];

const BUCKET: &str = "models";

/// Prompts of the requests.
const BEGINNINGS: [&str; 3] =
    ["Once a bear went to the sea", "The smallest boat of all", "In the winter, Mia"];

/// Number of requests submitted before each fault, more than one worker takes.
const EACH: usize = 8;

/// Rank timeout (`tensor_parallel_timeout`), in seconds.
const TIMEOUT: u32 = 2;

/// Kills a worker, terminates one, and stops the thread of rank 1 in one and of rank 0 in one, all
/// under load. Every text must be that of one rank without a draft. Each second round has the native
/// arithmetic, which a CPU without its instructions computes as the portable one.
pub(super) fn ranks(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.taken_up = 4;
    stage.plan.rules.resumed = 4;
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/models");
    let (arithmetic, name) = match stage.plan.round % 2 {
        0 => (Arithmetic::Portable, "portable"),
        _ => (Arithmetic::Native, "native"),
    };
    let options = Options { arithmetic: Some(arithmetic), ..Options::default() };
    let lone = Lone::<Llama>::of(options, &models.join(PAIR[0]))?;
    for n in 0..4 * EACH {
        let input = TextInput {
            max_tokens: Some(400),
            temperature: Some(0.8),
            ignore_eos: true,
            ..TextInput::prompt(BEGINNINGS[n % BEGINNINGS.len()])
        };
        let n = stage.ask(Ask::of_engine(&input)?);
        let ask = &mut stage.plan.asks[n];
        ask.reply = Some(lone.run(&ask.order, ask.seed)?);
    }
    drop(lone);
    let bucket = bucket(&models)?;
    stage.settings.grace_s = 1;
    stage.settings.more = format!(
        "[handler.engine]\narithmetic = \"{name}\"\ntensor_parallel_degree = 2\ntensor_parallel_timeout = {TIMEOUT}\n\
         speculative_adaptive = false\nmax_rolling_batch_size = 6\n\
         [models]\ntarget = \"s3://{BUCKET}/{}\"\ndraft = \"s3://{BUCKET}/{}\"\n",
        PAIR[0], PAIR[1]
    );
    stage.settings.environment = vec![
        ("AWS_ENDPOINT_URL", bucket.endpoint()),
        ("AWS_ACCESS_KEY_ID", bucket.access_key().to_owned()),
        ("AWS_SECRET_ACCESS_KEY", bucket.secret_key().to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
    ];
    stage.start_workers(2)?;

    let killed = in_the_middle(stage, 0)?;
    stage.kill(base(&killed))?;
    let left = in_the_middle(stage, 1)?;
    stage.terminate(base(&left))?;
    stage.until("a worker to leave", |lines| gone(lines, &left, 1))?;
    stage.until("it to leave in good order", |lines| left_in_order(lines, &left))?;
    for (turn, thread, rank) in [(2, "nsbridge-rank-1", 1), (3, "nsbridge-engine", 0)] {
        let hung = in_the_middle(stage, turn)?;
        let suspended = stage.suspend(base(&hung), thread)?;
        stage.until("a worker with a rank that hangs to leave", |lines| gone(lines, &hung, 1))?;
        drop(suspended);
        let status = "exit status: 1";
        stage.until("it to leave with an error", |lines| left_with(lines, &hung, status))?;
        stage.said(&hung, &format!("rank {rank} of 2 did not answer within"))?;
    }
    // The bucket must outlive all restarts, so the round finishes before the bucket is dropped.
    stage.finish()
}

/// Submits the requests of one fault and returns a process that is in the middle of one of them.
/// Each fault has requests of its own, submitted when it is due: otherwise a fast worker could
/// finish them all while another worker hangs.
fn in_the_middle(stage: &mut Stage, fault: usize) -> Result<String> {
    let mine = EACH * fault..EACH * (fault + 1);
    stage.start_client_for(&mine.clone().collect::<Vec<_>>())?;
    let (least, most) = (40, 200);
    let moment = stage.random.between(least, most);
    stage.runner_in_the_middle(mine, moment)
}

/// Starts an S3 server with both models.
fn bucket(models: &Path) -> Result<S3Server> {
    let server = S3Server::start()?;
    for name in PAIR {
        for file in std::fs::read_dir(models.join(name))? {
            let file = file?;
            let key = format!("{name}/{}", file.file_name().to_string_lossy());
            server.put(BUCKET, &key, std::fs::read(file.path())?);
        }
    }
    Ok(server)
}
