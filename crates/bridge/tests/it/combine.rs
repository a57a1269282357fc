//! Requests in steps: their seeds, their deadline, their trace and their end.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use nsbridge_handler::{Finish, Handler, Job, JobInfo, Models, Result};
use nsbridge_protocol::{ModelName, TraceParent};
use nsbridge_queue::Broker;
use nsbridge_testkit::system::client::combine::{
    Error, Flow, Gate, Retrieval, answer, cited, judged, retrieve, step_seed,
};
use nsbridge_testkit::system::client::{
    Client, Error as ClientError, ErrorCode, Event, JudgeInput, JudgeLabel, TextInput, TextPiece,
};
use nsbridge_testkit::system::{Running, Setup};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::script::until;
use crate::stories;

stories! {
    text_that_passes_the_judge_is_returned_in_parts,
    a_judge_cuts_the_writer_off,
    a_prompt_that_does_not_pass_is_never_written_about,
    a_label_without_a_score_lets_nothing_pass,
    all_steps_share_deadline_and_trace_and_each_has_its_own_seed,
    a_flow_ends_at_its_deadline,
    dropping_a_flow_cancels_every_step_in_flight,
    the_first_error_of_a_map_cancels_the_other_items,
    an_answer_is_written_from_the_nearest_passages,
    a_reply_of_another_kind_is_refused,
}

/// Run of a handler, as it saw it.
#[derive(Clone, Debug)]
struct Run {
    seed: u64,
    input: Value,
    trace: Option<TraceParent>,
    deadline: SystemTime,
    /// True if the run was told to stop.
    stopped: bool,
}

type Runs = Arc<Mutex<Vec<Run>>>;

/// Runs of each model. The options of a handler are data, so they name the model.
static RUNS: LazyLock<Mutex<HashMap<String, Runs>>> = LazyLock::new(Mutex::default);

fn runs_of(model: &str) -> Runs {
    let mut all = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    all.entry(model.to_owned()).or_default().clone()
}

/// Handler that judges, embeds or writes, by the fields of the input.
#[derive(Debug)]
struct Roles(Runs);

impl Handler for Roles {
    type Options = String;
    type Input = Value;
    type Output = Value;

    fn load(model: String, _models: Models) -> Result<Self> {
        Ok(Self(runs_of(&model)))
    }

    fn handle(&self, input: Value, job: &mut Job<Value>) -> Result<Finish> {
        let JobInfo { seed, trace, deadline, .. } = *job.info();
        let run = Run { seed, input: input.clone(), trace, deadline, stopped: false };
        let index = {
            let mut runs = self.runs();
            runs.push(run);
            runs.len() - 1
        };
        let pause = Duration::from_secs_f64(input["temperature"].as_f64().unwrap_or(0.0));
        for piece in pieces(&input, seed)? {
            std::thread::sleep(pause);
            if let Err(stop) = job.emit(piece) {
                self.runs()[index].stopped = true;
                return Err(stop.into());
            }
        }
        Ok(Finish::STOP)
    }

    fn threads(&self) -> usize {
        4
    }
}

impl Roles {
    fn runs(&self) -> MutexGuard<'_, Vec<Run>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pieces(input: &Value, seed: u64) -> Result<Box<dyn Iterator<Item = Value>>> {
    if let Some(text) = input["text"].as_str() {
        // The score is the number of characters above 300, in thousands.
        let long = text.chars().count().saturating_sub(300) as f64 / 1000.0;
        let scores = json!({ "long": long.min(1.0), "rude": 0.0 });
        return Ok(Box::new(std::iter::repeat_n(scores, 1 + usize::from(text == "twice"))));
    }
    if let Some(texts) = input["input"].as_array() {
        let count = |text: &str, letter| text.matches(letter).count();
        let vector = |text: &str| json!([count(text, 'a'), count(text, 'b'), count(text, 'c')]);
        let first = usize::from(texts[0] == "wrong");
        let pieces = texts.iter().enumerate().map(|(at, text)| {
            let embedding = vector(text.as_str().unwrap_or_default());
            json!({ "index": first + at, "embedding": embedding })
        });
        // In another order than the texts.
        let pieces: Vec<Value> = pieces.rev().collect();
        return Ok(Box::new(pieces.into_iter()));
    }
    if let Some(content) = input["messages"][0]["content"].as_str() {
        return Ok(Box::new([json!({ "token": 1, "text": content })].into_iter()));
    }
    if input["min_p"].as_f64() == Some(0.5) {
        return Err(nsbridge_handler::Error::bad_input("not this one"));
    }
    let most = input["max_tokens"].as_u64().unwrap_or(0);
    Ok(Box::new((0..most).map(move |token| json!({ "token": token, "text": word(seed, token) }))))
}

/// Returns a word of ten characters, of which some have two bytes.
fn word(seed: u64, token: u64) -> String {
    format!("é{:08x} ", (seed ^ token.rotate_left(20)) as u32)
}

struct Place {
    setup: Setup,
    runs: Runs,
    client: Client,
    _worker: Running,
}

impl Place {
    async fn new(broker: Arc<dyn Broker>) -> Self {
        let setup = Setup::new().unwrap();
        let (model, runs) = (setup.model.to_string(), runs_of(setup.model.as_str()));
        let _worker = setup.worker::<Roles>(broker.clone(), model).await.unwrap();
        let client = setup.client(broker).await.unwrap();
        Self { setup, runs, client, _worker }
    }

    fn flow(&self) -> Flow {
        Flow::new(&self.client, self.setup.tenant()).unwrap().seed(7)
    }

    fn model(&self) -> ModelName {
        self.setup.model.clone()
    }

    fn gate(&self, limit: f64) -> Gate {
        Gate::new(self.model(), [("long", limit)]).every(50)
    }

    fn runs(&self) -> Vec<Run> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the run of the request whose input has this text.
    #[track_caller]
    fn run(&self, text: &str) -> Run {
        let mut runs = self.runs().into_iter().filter(|run| run.input["text"] == text);
        runs.next().unwrap()
    }

    async fn until_stopped(&self, count: usize) {
        let stopped = || self.runs().iter().filter(|run| run.stopped).count();
        until("the end of the runs", async || stopped() == count).await;
    }
}

fn endless() -> TextInput {
    TextInput { max_tokens: Some(1_000_000), temperature: Some(0.005), ..TextInput::prompt("on") }
}

fn tokens(most: u32) -> TextInput {
    TextInput { max_tokens: Some(most), ..TextInput::default() }
}

async fn text_that_passes_the_judge_is_returned_in_parts(broker: Arc<dyn Broker>) {
    let place = Place::new(broker).await;
    let flow = place.flow();
    let mut parts = judged(&flow, "Once a bear", place.gate(1.0), place.model(), tokens(23));
    let mut text = Vec::new();
    while let Some(part) = parts.next().await {
        text.push(part.unwrap());
    }
    let lengths: Vec<usize> = text.iter().map(|part| part.chars().count()).collect();
    assert_eq!(lengths, [50, 50, 50, 50, 30]);
    // The judge has read the prompt in step 0.
    let expected: String = (0..23).map(|token| word(step_seed(7, 1), token)).collect();
    assert_eq!(text.concat(), expected);
    assert!(parts.next().await.is_none());
    drop(parts);
    let read =
        place.runs().into_iter().filter_map(|run| Some(run.input["text"].as_str()?.to_owned()));
    let whole: Vec<String> = (1..=5).map(|count| text[..count].concat()).collect();
    assert_eq!(read.collect::<Vec<_>>(), [&["Once a bear".to_owned()][..], &whole].concat());
    assert_eq!(flow.steps(), 7);
}

async fn a_judge_cuts_the_writer_off(broker: Arc<dyn Broker>) {
    let place = Place::new(broker).await;
    let flow = place.flow();
    let mut parts = judged(&flow, "Once", place.gate(0.1), place.model(), endless());
    let mut passed = String::new();
    let cut = loop {
        match parts.next().await.unwrap() {
            Ok::<String, _>(part) => passed += &part,
            Err(Error::CutOff(cut)) => break cut,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!((&*cut.label, cut.limit, &cut.text), ("long", 0.1, &passed));
    // A score of 0.1 passes.
    assert_eq!((passed.chars().count(), cut.score), (400, 0.15));
    assert!(parts.next().await.is_none());
    // The flow and the stream of parts still live.
    place.until_stopped(1).await;
}

async fn a_prompt_that_does_not_pass_is_never_written_about(broker: Arc<dyn Broker>) {
    let place = Place::new(broker).await;
    let flow = place.flow();
    let prompt = "x".repeat(1000);
    let mut parts = judged(&flow, prompt, place.gate(0.1), place.model(), tokens(5));
    let cut = parts.next().await.unwrap();
    assert!(matches!(cut, Err(Error::CutOff(cut)) if cut.text.is_empty() && cut.score == 0.7));
    assert!(parts.next().await.is_none());
    assert_eq!(place.runs().len(), 1);
}

async fn a_label_without_a_score_lets_nothing_pass(broker: Arc<dyn Broker>) {
    let place = Place::new(broker).await;
    let flow = place.flow();
    let gate = Gate::new(place.model(), [("rude", 1.0), ("typo", 1.0)]);
    let mut parts = judged(&flow, "Once", gate, place.model(), tokens(5));
    let refused = parts.next().await.unwrap();
    assert!(matches!(refused, Err(Error::NoScore { label }) if label == "typo"));
    let no_number = Gate::new(place.model(), [("rude", f64::NAN)]);
    let mut parts = judged(&flow, "Once", no_number, place.model(), tokens(5));
    assert!(matches!(parts.next().await.unwrap(), Err(Error::CutOff(_))));
    assert_eq!(place.runs().len(), 2);
}

async fn all_steps_share_deadline_and_trace_and_each_has_its_own_seed(broker: Arc<dyn Broker>) {
    let place = Place::new(broker).await;
    let caller: TraceParent =
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap();
    let flow = place.flow().trace(caller).timeout(Duration::from_secs(60));
    let labels = vec![JudgeLabel::new("long").meaning("a long text")];
    let first = flow.judge(place.model(), JudgeInput { labels, ..JudgeInput::text("first") });
    // The number of a step is that of the call; the second one runs first.
    let second = flow.judge(place.model(), JudgeInput::text("second")).await.unwrap();
    assert_eq!(second.0["long"], 0.0);
    first.await.unwrap();
    // A slow step: its request has the same deadline all the same.
    let step = async |part: Flow, text: &str| {
        sleep(Duration::from_millis(if text == "a" { 2000 } else { 0 })).await;
        part.judge(place.model(), JudgeInput::text(text)).await?;
        Ok::<_, Error>(text.to_owned())
    };
    assert_eq!(flow.map(["a", "b"], 2, step).await.unwrap(), ["a", "b"]);
    let seeds = ["first", "second", "a", "b"].map(|text| place.run(text).seed);
    let part = |number| step_seed(step_seed(7, number), 0);
    assert_eq!(seeds, [step_seed(7, 0), step_seed(7, 1), part(2), part(3)]);
    assert_eq!(place.run("first").input["labels"][0]["description"], "a long text");
    let runs = place.runs();
    assert!(runs.iter().all(|run| run.trace.is_some_and(|span| span.trace == caller.trace)));
    let ends = || runs.iter().map(|run| run.deadline);
    let apart = ends().max().unwrap().duration_since(ends().min().unwrap()).unwrap();
    assert!(apart < Duration::from_secs(1), "{apart:?}");
}

async fn a_flow_ends_at_its_deadline(broker: Arc<dyn Broker>) {
    let place = Place::new(broker).await;
    let flow = place.flow().timeout(Duration::from_millis(100));
    until("its deadline", async || flow.left().is_err()).await;
    let late = |result| matches!(result, Err(Error::Client(ClientError::Deadline { .. })));
    assert!(late(flow.judge(place.model(), JudgeInput::text("late")).await.map(drop)));
    let step = async |part: Flow, text: &str| {
        part.judge(place.model(), JudgeInput::text(text)).await.map(drop)
    };
    assert!(late(flow.map(["late"], 1, step).await.map(drop)));
    assert!(place.runs().is_empty());
}

async fn dropping_a_flow_cancels_every_step_in_flight(broker: Arc<dyn Broker>) {
    let place = Place::new(broker).await;
    let flow = place.flow();
    let mut reply = flow.text(place.model(), endless()).await.unwrap();
    reply.next().await.unwrap().unwrap();
    // A part that is not dropped at the end of its step.
    let step = async |part: Flow, ()| Ok::<_, Error>(part);
    let part = flow.map([()], 1, step).await.unwrap().remove(0);
    let mut inner = part.text(place.model(), endless()).await.unwrap();
    inner.next().await.unwrap().unwrap();
    let ended = part.judge(place.model(), JudgeInput::text("ended")).await;
    assert!(ended.is_ok());
    drop(flow);
    for reply in [&mut reply, &mut inner] {
        let last = async {
            loop {
                match reply.next().await.unwrap() {
                    Ok(Event::Piece(TextPiece { .. })) => {}
                    last => break last,
                }
            }
        };
        let last = timeout(Duration::from_secs(20), last).await.expect("the end of the reply");
        assert!(matches!(last, Err(ClientError::Closed)), "{last:?}");
    }
    place.until_stopped(2).await;
    let refused = part.judge(place.model(), JudgeInput::text("late")).await;
    assert!(matches!(refused, Err(Error::Client(ClientError::Closed))), "{refused:?}");
    assert!(place.runs().iter().all(|run| run.input["text"] != "late"));
}

async fn the_first_error_of_a_map_cancels_the_other_items(broker: Arc<dyn Broker>) {
    let place = Place::new(broker).await;
    let flow = place.flow();
    let step = async |part: Flow, min_p: f32| {
        let wrong = min_p == 0.5;
        if wrong {
            until("the other item", async || place.runs().len() == 1).await;
        }
        let input = TextInput { min_p: Some(min_p), ..endless() };
        let (pieces, _) = part.text(place.model(), input).await?.collect().await?;
        Ok::<_, ClientError>(pieces.len())
    };
    let error = flow.map([0.25, 0.5], 2, step).await.unwrap_err();
    assert!(matches!(error, ClientError::Failed { code: ErrorCode::BadInput, .. }), "{error}");
    // The flow still lives.
    place.until_stopped(1).await;
}

async fn an_answer_is_written_from_the_nearest_passages(broker: Arc<dyn Broker>) {
    let place = Place::new(broker).await;
    let flow = place.flow();
    let passages = ["bb", "aab", "cc", "abc"];
    let found = retrieve(&flow, "aa", &passages, place.model(), 2).await.unwrap();
    let texts: Vec<&str> = found.iter().map(|passage| &*passage.text).collect();
    assert_eq!(texts, ["aab", "abc"]);
    assert!((found[0].score - 2.0 / 5_f64.sqrt()).abs() < 1e-9);
    let models = Retrieval::new(place.model(), place.model()).count(1);
    let (pieces, _) = answer(&flow, "aa", &passages, &models, cited).await.unwrap();
    assert_eq!(pieces[0].text, "Sources:\n[1] aab\n\nQuestion: aa");
    assert_eq!(flow.steps(), 3);
}

async fn a_reply_of_another_kind_is_refused(broker: Arc<dyn Broker>) {
    let place = Place::new(broker).await;
    let flow = place.flow();
    let refused = flow.judge(place.model(), JudgeInput::text("twice")).await;
    assert!(matches!(refused, Err(Error::NoJudgment)), "{refused:?}");
    let refused = flow.embed(place.model(), ["wrong"]).await;
    assert!(matches!(refused, Err(Error::NoEmbedding)), "{refused:?}");
    assert_eq!(flow.embed(place.model(), ["aac"]).await.unwrap(), [[2.0, 0.0, 1.0]]);
}
