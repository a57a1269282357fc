//! Tests of the checker: each check fails on a handwritten journal.

use nsbridge_protocol::{FinishReason, Priority};
use serde_json::{Value, json};

use crate::clock::SECOND;
use crate::journal::{Line, Run, What};
use crate::order::{Piece, lone_run, of_attempt};
use crate::plan::{Ask, Expect, Pace, Plan};

use super::copies::Copies;
use super::{Report, judge};

const SEED: u64 = 7;
const PIECES: usize = 4;

/// Round with one request, `r`, that is submitted at second 1 and answered at second 9.
struct Round {
    plan: Plan,
    lines: Vec<Line>,
}

impl Round {
    fn new() -> Self {
        let mut ask = Ask::new(PIECES, 10);
        ask.seed = SEED;
        let plan = Plan { scenario: "test".to_owned(), asks: vec![ask], ..Plan::default() };
        Self { plan, lines: Vec::new() }.at(1.0, What::Asked { n: 0, request: r() })
    }

    /// Creates a round whose request gets the whole text in one run of process 1.
    fn answered() -> Self {
        let whole = lone_run(SEED, PIECES);
        let round = Self::new().start(2.0, 1, 1).end(8.5, 1, 1);
        whole.into_iter().fold(round, |round, piece| round.piece(8.0, piece)).done(9.0)
    }

    fn at(mut self, second: f64, what: What) -> Self {
        self.lines.push(Line { at: (second * SECOND as f64) as u64, what });
        self
    }

    fn piece(self, second: f64, piece: Piece) -> Self {
        let Piece { text, choice, finish_reason } = piece;
        self.at(second, What::Piece { n: 0, request: r(), index: 0, text, choice, finish_reason })
    }

    /// Creates a round whose request has this input, and gets these pieces from an undisturbed run.
    fn of_engine(input: Value, pieces: Vec<Piece>) -> Self {
        let mut round = Self::new().start(2.0, 1, 1).end(8.5, 1, 1);
        let ask = &mut round.plan.asks[0];
        (ask.order.input, ask.reply) = (Some(input), Some(pieces.clone()));
        pieces.into_iter().fold(round, |round, piece| round.piece(8.0, piece)).done(9.0)
    }

    /// Adds a run of process 2 from `start` to `end`, whose text the request gets.
    fn continued(self, start: f64, end: f64) -> Self {
        let round = self.start(start, 2, 2).end(end, 2, 2);
        let whole = lone_run(SEED, PIECES).into_iter();
        whole.fold(round, |round, piece| round.piece(2.0, piece)).done(end + 1.0)
    }

    fn done(self, second: f64) -> Self {
        self.at(second, What::Done { n: 0, request: r() })
    }

    fn start(self, second: f64, pid: u32, attempt: u32) -> Self {
        self.at(second, What::Start { run: run(pid, attempt), n: 0, resumed: 0 })
    }

    fn end(self, second: f64, pid: u32, attempt: u32) -> Self {
        self.end_with(second, pid, attempt, "ok")
    }

    fn end_with(self, second: f64, pid: u32, attempt: u32, how: &str) -> Self {
        let (run, how) = (run(pid, attempt), how.to_owned());
        self.at(second, What::End { run, n: 0, pieces: PIECES, how })
    }

    fn gone(self, second: f64, pid: u32, status: &str) -> Self {
        let (name, status) = (format!("w{pid}.0"), status.to_owned());
        self.at(second, What::Gone { pid, name, status })
    }

    fn taking(self, second: f64, pid: u32) -> Self {
        self.at(second, What::Taking { pid })
    }

    fn not_taking(self, second: f64, pid: u32) -> Self {
        self.at(second, What::NotTaking { pid })
    }

    fn frame(self, seq: u64, hash: u64) -> Self {
        let stream = "s".to_owned();
        self.at(5.0, What::Frame { request: r(), stream, seq, hash, open: None })
    }

    fn judge(mut self) -> Report {
        self.lines.push(Line { at: 0, what: What::Plan(self.plan.clone()) });
        self.lines.push(Line { at: 1000 * SECOND, what: What::Over });
        self.lines.sort_by_key(|line| line.at);
        judge(&self.lines, &Copies::default()).unwrap()
    }

    /// Compares the numbers of lost, repeated, double runs and broken.
    #[track_caller]
    fn check(self, expected: [usize; 4]) {
        let report = self.judge();
        let Report { lost, repeated, double_runs, broken, .. } = &report;
        let counts = [lost, repeated, double_runs, broken].map(Vec::len);
        assert_eq!(counts, expected, "{report:#?}");
        assert_eq!(report.is_good(), expected == [0; 4]);
    }
}

fn r() -> String {
    "r".to_owned()
}

fn run(pid: u32, attempt: u32) -> Run {
    Run { pid, call: u64::from(attempt), worker: format!("w{pid}.0"), request: r(), attempt }
}

#[test]
fn a_round_without_a_fault_is_good() {
    Round::answered().check([0; 4]);
}

#[test]
fn a_request_without_its_end_is_lost() {
    Round::new().start(2.0, 1, 1).end(3.0, 1, 1).check([1, 0, 0, 0]);
    let failed = What::Failed { n: 0, request: r(), code: "late".into(), message: "x".into() };
    Round::new().at(3.0, failed).check([1, 0, 0, 0]);
}

#[test]
fn a_text_that_ends_early_is_lost_and_is_not_the_lone_runs() {
    let first = lone_run(SEED, 1).remove(0);
    Round::new().piece(2.0, first).done(3.0).check([1, 1, 0, 0]);
}

#[test]
fn a_repeated_piece_is_found() {
    let first = lone_run(SEED, 1).remove(0);
    Round::new().piece(2.0, first.clone()).piece(2.1, first).check([1, 1, 0, 0]);
}

/// Returns a piece of one of several replies.
fn of(choice: u32, text: &str, finish_reason: Option<FinishReason>) -> Piece {
    Piece { text: text.to_owned(), choice, finish_reason }
}

#[test]
fn a_reply_to_a_schema_is_one_document_of_it() {
    let check = |text: &str, broken: usize| {
        let schema = json!({ "type": "object", "required": ["a"] });
        let format = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
        let input = json!({ "prompt": "x", "response_format": format });
        let pieces = text.split_inclusive(':').map(|text| of(0, text, None)).collect();
        Round::of_engine(input, pieces).check([0, 0, 0, broken]);
    };
    check(r#"{"a":1}"#, 0);
    check(r#"{"a":{"a":1}}"#, 0);
    check(r#"{"a":1}{"a":1}"#, 1);
    check(r#"{"a":{"a":1}"#, 1);
    check(r#"{"b":1}"#, 1);
    check("", 1);
}

#[test]
fn a_reply_with_calls_has_whole_ones() {
    let check = |text: &str, broken: usize| {
        let calls = json!({ "begin": "<", "end": ">", "schema": { "type": "object" } });
        let format = json!({ "type": "tool_calls", "tool_calls": calls });
        let input = json!({ "prompt": "x", "response_format": format });
        Round::of_engine(input, vec![of(0, text, None)]).check([0, 0, 0, broken]);
    };
    check(r#"He asks: < {"a":1} >, and that is all."#, 0);
    check(r#"<{}>, <{}>"#, 0);
    for text in ["He asks nothing.", "<", "<{}", "<{}{}>", "<{}>, <{", "<1>", "<{}>, <>"] {
        check(text, 1);
    }
}

#[test]
fn each_of_several_replies_ends_with_its_last_piece() {
    let stop = Some(FinishReason::Stop);
    let check = |pieces: Vec<Piece>, broken: usize| {
        let input = json!({ "prompt": "x", "n": 2 });
        Round::of_engine(input, pieces).check([0, 0, 0, broken]);
    };
    check(vec![of(0, "a", None), of(1, "b", stop), of(0, "c", stop)], 0);
    check(vec![of(0, "a", stop), of(1, "b", None)], 1);
    check(vec![of(0, "a", stop), of(1, "b", stop), of(0, "c", stop)], 1);
    check(vec![of(0, "a", stop)], 1);
    check(vec![of(0, "a", stop), of(1, "b", stop), of(2, "c", stop)], 1);
}

#[test]
fn a_piece_of_another_reply_is_not_the_lone_runs() {
    let input = json!({ "prompt": "x", "n": 2 });
    let stop = Some(FinishReason::Stop);
    let mut round = Round::of_engine(input, vec![of(0, "a", stop), of(1, "a", stop)]);
    round.plan.asks[0].reply = Some(vec![of(1, "a", stop), of(0, "a", stop)]);
    round.check([1, 1, 0, 0]);
}

#[test]
fn a_restart_is_a_repetition_even_if_the_text_is_right_in_the_end() {
    let restarted = What::Restarted { n: 0, request: r(), kept: 0 };
    Round::answered().at(1.5, restarted).check([0, 1, 0, 0]);
}

#[test]
fn the_seed_of_a_request_through_a_gateway_is_that_of_its_first_run() {
    let of = |first: u64, later: u64| {
        let mut round = Round::answered();
        round.plan.asks[0].seed = 0;
        round.plan.rules.through_gateways = true;
        let seed = |seed| What::Seed { request: r(), seed };
        round.at(2.0, seed(first)).at(3.0, seed(later))
    };
    of(SEED, 9).check([0; 4]);
    of(9, SEED).check([1, 1, 0, 0]);
}

#[test]
fn two_runs_in_one_process_at_once_are_a_double_run() {
    Round::answered().start(3.0, 1, 2).end(3.01, 1, 2).check([0, 0, 1, 0]);
    Round::answered().start(8.6, 1, 2).end(8.7, 1, 2).check([0, 0, 0, 0]);
}

#[test]
fn two_runs_in_two_processes_may_overlap_until_the_window_is_over() {
    // Process 1 subscribes again at second 3. Its window ends at second 8, plus two seconds of
    // tolerance.
    let overlap = |end: f64| {
        let round = Round::new().start(2.0, 1, 1).taking(3.0, 1).end(end, 1, 1);
        round.continued(2.5, 30.0)
    };
    overlap(9.9).check([0; 4]);
    overlap(10.1).check([0, 0, 1, 0]);
}

#[test]
fn a_worker_that_is_cut_again_has_its_window_again() {
    let overlap = |again: f64, end: f64| {
        let round = Round::new().start(2.0, 1, 1).taking(3.0, 1).taking(again, 1).end(end, 1, 1);
        round.continued(2.5, 30.0)
    };
    overlap(7.0, 13.9).check([0; 4]);
    overlap(7.0, 14.1).check([0, 0, 1, 0]);
    overlap(9.0, 10.1).check([0, 0, 1, 0]);
}

#[test]
fn a_worker_that_loses_its_connection_within_its_window_has_it_again_when_it_is_back() {
    let overlap = |lost: f64, end: f64| {
        let round = Round::new().start(2.0, 1, 1).taking(3.0, 1).not_taking(lost, 1);
        round.taking(10.0, 1).end(end, 1, 1).continued(2.5, 30.0)
    };
    overlap(7.9, 16.9).check([0; 4]);
    overlap(7.9, 17.1).check([0, 0, 1, 0]);
    overlap(8.1, 10.1).check([0, 0, 1, 0]);
}

#[test]
fn the_window_begins_with_the_subscription_after_the_one_that_delivered_the_run() {
    // Process 1 subscribes at second 2.1, which the run began with, and again at second 10.
    let overlap = |lost: f64, end: f64| {
        let round = Round::new().start(2.0, 1, 1).taking(2.1, 1).not_taking(lost, 1);
        round.taking(10.0, 1).end(end, 1, 1).continued(9.5, 30.0)
    };
    overlap(9.0, 16.9).check([0; 4]);
    overlap(9.0, 17.1).check([0, 0, 1, 0]);
    // The newer run began while process 1 had its delivery.
    overlap(9.8, 11.6).check([0, 0, 1, 0]);
}

#[test]
fn the_run_of_a_killed_process_ends_with_it() {
    let gone = What::Gone { pid: 1, name: "w1.0".into(), status: "killed".into() };
    Round::new().start(2.0, 1, 1).at(3.0, gone).continued(3.1, 60.0).check([0; 4]);
}

#[test]
fn a_run_that_begins_after_the_end_is_a_double_run() {
    Round::answered().start(9.9, 2, 2).end(9.95, 2, 2).check([0; 4]);
    Round::answered().start(10.1, 2, 2).end(10.2, 2, 2).check([0, 0, 1, 0]);
}

#[test]
fn a_worker_that_loses_its_connection_while_it_asks_hears_no_cancel() {
    let late = |lost: f64, start: f64, how: &str| {
        let round = Round::answered().not_taking(lost, 2).taking(9.5, 2);
        let busy = (0..20).map(|n| 9.0 + f64::from(n) * 0.3);
        let round = busy.fold(round, |round, at| round.taking(at, 9));
        round.start(start, 2, 2).end_with(start + 0.1, 2, 2, how)
    };
    let canceled = "the client canceled the request";
    late(8.9, 12.0, canceled).check([0; 4]);
    late(8.9, 12.0, "ok").check([0, 0, 1, 0]);
    late(6.9, 12.0, canceled).check([0, 0, 1, 0]);
    late(9.4, 15.1, canceled).check([0, 0, 1, 0]);
}

#[test]
fn a_machine_that_stands_still_lets_nobody_answer() {
    let canceled = |round: Round| {
        round.start(12.0, 2, 2).end_with(12.1, 2, 2, "the client canceled the request")
    };
    canceled(Round::answered()).check([0; 4]);
    let busy = (0..10).map(|n| 9.0 + f64::from(n) * 0.3);
    canceled(busy.fold(Round::answered(), |round, at| round.taking(at, 9))).check([0, 0, 1, 0]);
}

#[test]
fn a_client_that_hears_nothing_cannot_stop_what_begins() {
    let hears = |hears: bool| What::Listening { pid: 9, hears };
    let cut_off = |until: f64| {
        let round = Round::answered().at(0.5, hears(true)).at(9.5, hears(false));
        round.at(until, hears(true)).start(15.0, 2, 2).end(15.1, 2, 2)
    };
    cut_off(16.0).check([0; 4]);
    cut_off(14.1).check([0; 4]);
    cut_off(13.9).check([0, 0, 1, 0]);
}

#[test]
fn one_nonce_with_two_contents_is_found() {
    Round::answered().frame(0, 1).frame(1, 2).frame(1, 2).check([0; 4]);
    Round::answered().frame(0, 1).frame(1, 2).frame(1, 3).check([0, 0, 0, 1]);
}

#[test]
fn two_texts_may_not_be_mixed() {
    let [one, two] = [1, 2].map(|attempt| lone_run(of_attempt(SEED, attempt), PIECES));
    let round = |pieces: Vec<Piece>| {
        let mut round = Round::new();
        round.plan.asks[0].expect = Expect::OneOfSeveral;
        pieces.into_iter().fold(round, |round, piece| round.piece(2.0, piece)).done(3.0)
    };
    round(two.clone()).check([0; 4]);
    round([&one[..2], &two[2..]].concat()).check([0, 1, 0, 0]);
}

#[test]
fn a_cancelled_run_must_stop_in_time() {
    let round = |end: f64| {
        let mut round = Round::new().start(2.0, 1, 1).end(end, 1, 1);
        round.plan.asks[0].expect = Expect::Cancelled(500);
        round.at(3.0, What::Cancelled { n: 0, request: r() })
    };
    round(3.4).check([0; 4]);
    round(3.6).check([0, 0, 0, 1]);
}

#[test]
fn a_late_run_must_stop_in_time() {
    let round = |end: f64, code: &str| {
        let mut round = Round::new().start(2.0, 1, 1).end(end, 1, 1);
        (round.plan.asks[0].timeout_ms, round.plan.asks[0].expect) = (3000, Expect::Deadline(500));
        let (request, code, message) = (r(), code.to_owned(), String::new());
        round.at(4.0, What::Failed { n: 0, request, code, message })
    };
    for code in ["late", "deadline"] {
        round(4.4, code).check([0; 4]);
        round(4.6, code).check([0, 0, 0, 1]);
    }
    round(4.4, "model-failed").check([1, 0, 0, 0]);
}

#[test]
fn a_run_whose_client_died_must_stop_in_time() {
    let round = |end: f64| {
        let client = What::Client { pid: 9, name: "c1".into(), reply_queue: "q".into() };
        let gone = What::Gone { pid: 9, name: "c1".into(), status: "killed".into() };
        let mut round = Round::new().at(0.5, client).at(3.0, gone);
        round.plan.asks[0].expect = Expect::Abandoned(20_000);
        round.start(2.0, 1, 1).end(end, 1, 1)
    };
    round(22.9).check([0; 4]);
    round(23.1).check([0, 0, 0, 1]);
}

#[test]
fn a_fault_that_hits_nothing_proves_nothing() {
    let mut round = Round::answered();
    round.plan.rules.taken_up = 1;
    round.check([0, 0, 0, 1]);
    let mut round = Round::answered();
    round.plan.rules.resumed = 1;
    round.check([0, 0, 0, 1]);
    let mut round = Round::answered();
    round.plan.rules.sent_again = 1;
    round.frame(0, 1).check([0, 0, 0, 1]);
    let mut round = Round::answered();
    round.plan.rules.stalled_ms = 2000;
    round.check([0, 0, 0, 1]);
}

#[test]
fn an_interactive_request_that_waits_for_its_first_piece_is_found() {
    for (most, priority, broken) in [
        (6_000, Priority::Interactive, 1),
        (8_000, Priority::Interactive, 0),
        (6_000, Priority::Bulk, 0),
    ] {
        let mut round = Round::answered();
        round.plan.rules.prompt_ms = Some(most);
        round.plan.asks[0].priority = priority;
        round.check([0, 0, 0, broken]);
    }
}

#[test]
fn a_second_run_for_no_reason_is_found() {
    let mut round = Round::answered().start(8.6, 2, 2).end(8.7, 2, 2);
    round.plan.rules.one_run_each = true;
    round.check([0, 0, 0, 1]);
}

#[test]
fn more_attempts_than_faults_are_found() {
    let round = |attempt: &str| {
        let open = Some("00".repeat(80) + attempt);
        let frame = What::Frame { request: r(), stream: "s".to_owned(), seq: 0, hash: 0, open };
        let mut round = Round::answered().at(3.0, frame);
        round.plan.rules.most_attempts = Some(4);
        round
    };
    round("00000004").check([0; 4]);
    round("00000005").check([0, 0, 0, 1]);
}

#[test]
fn dead_letters_are_those_that_are_meant() {
    let dead = |reason: &str| What::Dead { request: r(), reason: reason.to_owned() };
    Round::answered().at(9.5, dead("poison")).check([0, 0, 0, 1]);
    let mut round = Round::answered();
    round.plan.rules.dead = Some((1, "poison".to_owned()));
    round.at(9.5, dead("poison")).check([0; 4]);
}

#[test]
fn a_round_that_could_not_be_played_is_not_good() {
    Round::answered().at(5.0, What::Broken { why: "no node".to_owned() }).check([0, 0, 0, 1]);
}

#[test]
fn a_worker_that_is_told_to_leave_must_leave_in_good_order() {
    let told =
        || Round::answered().at(9.2, What::Fault { fault: "terminate".into(), on: "w1".into() });
    told().gone(9.3, 1, "exit status: 0").check([0; 4]);
    told().gone(9.3, 1, "exit status: 1").check([0, 0, 0, 1]);
    told().gone(9.3, 2, "exit status: 0").check([0, 0, 0, 1]);
    // The next process of this worker may be killed later.
    told().gone(9.3, 1, "exit status: 0").gone(9.4, 1, "signal: 9 (SIGKILL)").check([0; 4]);
    // An end before the signal does not count.
    told().gone(9.1, 1, "exit status: 0").check([0, 0, 0, 1]);
}

#[test]
fn workers_must_have_died_while_a_request_waited_to_run_alone() {
    let alone = || What::Alone { pid: 2, request: r() };
    let round = |died: usize| {
        let mut round = Round::answered();
        round.plan.rules.died_waiting = died;
        round
    };
    round(1).at(1.1, alone()).gone(1.2, 2, "killed").check([0; 4]);
    round(2).at(1.1, alone()).gone(1.2, 2, "killed").check([0, 0, 0, 1]);
    // Another process died, or this one died after the request had begun to run in it.
    round(1).at(1.1, alone()).gone(1.2, 3, "killed").check([0, 0, 0, 1]);
    let ran = round(1).at(1.1, alone()).start(1.2, 2, 2).gone(1.3, 2, "killed");
    ran.check([0, 0, 0, 1]);
}

#[test]
fn a_run_without_a_client_beside_another_is_of_another_job_where_copies_are_forged() {
    let beside = |lone: usize, how: &str| {
        let mut round = Round::answered().start(3.0, 1, 2).end_with(4.0, 1, 2, how);
        round.plan.rules.without_client = lone;
        round
    };
    beside(1, "the client is gone").check([0; 4]);
    beside(2, "the client is gone").check([0, 0, 0, 1]);
    beside(0, "the client is gone").check([0, 0, 1, 0]);
    beside(1, "ok").check([0, 0, 1, 1]);
}

/// Creates a round with two requests: an undisturbed one from second 10 to 20, and one from second
/// 30 on that moves to another process between seconds 32 and 34.
fn two(end: Option<f64>) -> Round {
    let request = |n: usize| ["r", "s"][n].to_owned();
    let mut round = Round { plan: Plan::default(), lines: Vec::new() };
    for n in 0..2 {
        let mut ask = Ask::new(PIECES, 10);
        ask.seed = SEED;
        round.plan.asks.push(ask);
        let begun = [10.0, 30.0][n];
        round = round.at(begun, What::Asked { n, request: request(n) });
        let text = lone_run(SEED, PIECES).into_iter().enumerate();
        let when = [[11.0, 11.2, 11.3, 11.4], [31.0, 32.0, 34.0, 34.5]][n];
        round = text.fold(round, |round, (index, Piece { text, choice, finish_reason })| {
            let request = request(n);
            let piece = What::Piece { n, request, index, text, choice, finish_reason };
            round.at(when[index], piece)
        });
        if let Some(end) = [Some(20.0), end][n] {
            round = round.at(end, What::Done { n, request: request(n) });
        }
    }
    for (pid, from, until) in [(1, 30.5, 32.5), (2, 33.5, 36.0)] {
        let run = Run { request: request(1), ..run(pid, pid) };
        let (resumed, pieces, how) = (0, PIECES, "ok".to_owned());
        round = round.at(from, What::Start { run: run.clone(), n: 1, resumed });
        round = round.at(until, What::End { run, n: 1, pieces, how });
    }
    round.plan.rules.pace = Some(Pace { undisturbed: 1, at_most: 1.3 });
    round
}

#[test]
fn faults_may_not_make_replies_much_longer() {
    two(Some(42.9)).check([0; 4]);
    two(Some(43.1)).check([0, 0, 0, 1]);
    // The duration is unknown without an end; the request is lost too.
    two(None).check([1, 0, 0, 1]);
}

#[test]
fn the_gaps_of_replies_and_of_their_hand_overs_are_told() {
    let notes = two(Some(36.0)).judge().notes;
    assert_eq!(
        notes,
        ["-0: 1 replies took 10.00 s undisturbed, and 1 took 6.00 s with faults, 0.60 times as \
          long; the longest gap of a reply is 2.00 s at worst and 2.00 s in the median \
          (undisturbed 8.60 and 8.60 s), that of 1 hand-overs 2.00 s at worst and 2.00 s in the \
          median"]
    );
}
