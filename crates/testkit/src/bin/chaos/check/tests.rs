//! Each check fails once, on a journal written by hand.

use crate::clock::SECOND;
use crate::journal::{Line, Run, What};
use crate::order::{lone_run, of_attempt};
use crate::plan::{Ask, Expect, Plan};

use super::copies::Copies;
use super::{Report, judge};

const SEED: u64 = 7;
const PIECES: usize = 4;

/// A round with one request, `r`, that is asked at second 1 and answered at second 9.
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

    /// The whole text, in one run of process 1.
    fn answered() -> Self {
        let whole = lone_run(SEED, PIECES);
        let round = Self::new().start(2.0, 1, 1).end(8.5, 1, 1);
        whole.into_iter().fold(round, |round, piece| round.piece(8.0, piece)).done(9.0)
    }

    fn at(mut self, second: f64, what: What) -> Self {
        self.lines.push(Line { at: (second * SECOND as f64) as u64, what });
        self
    }

    fn piece(self, second: f64, text: String) -> Self {
        self.at(second, What::Piece { n: 0, request: r(), index: 0, text })
    }

    fn done(self, second: f64) -> Self {
        self.at(second, What::Done { n: 0, request: r() })
    }

    fn start(self, second: f64, pid: u32, attempt: u32) -> Self {
        self.at(second, What::Start { run: run(pid, attempt), n: 0, resumed: 0 })
    }

    fn end(self, second: f64, pid: u32, attempt: u32) -> Self {
        let (run, how) = (run(pid, attempt), "ok".to_owned());
        self.at(second, What::End { run, n: 0, pieces: PIECES, how })
    }

    fn taking(self, second: f64, pid: u32) -> Self {
        self.at(second, What::Taking { pid })
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

    /// Lost, repeated, double runs, broken.
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

#[test]
fn a_restart_is_a_repetition_even_if_the_text_is_right_in_the_end() {
    let restarted = What::Restarted { n: 0, request: r(), kept: 0 };
    Round::answered().at(1.5, restarted).check([0, 1, 0, 0]);
}

#[test]
fn two_runs_in_one_process_at_once_are_a_double_run() {
    Round::answered().start(3.0, 1, 2).end(3.01, 1, 2).check([0, 0, 1, 0]);
    Round::answered().start(8.6, 1, 2).end(8.7, 1, 2).check([0, 0, 0, 0]);
}

#[test]
fn two_runs_in_two_processes_may_overlap_until_the_window_is_over() {
    // Process 1 subscribed again at second 3, so it has until second 8, and two more.
    let overlap = |end: f64| {
        let round = Round::new().start(2.0, 1, 1).taking(3.0, 1).end(end, 1, 1);
        let round = round.start(2.5, 2, 2).end(30.0, 2, 2);
        let whole = lone_run(SEED, PIECES).into_iter();
        whole.fold(round, |round, piece| round.piece(2.0, piece)).done(31.0)
    };
    overlap(9.9).check([0; 4]);
    overlap(10.1).check([0, 0, 1, 0]);
}

#[test]
fn a_worker_that_is_cut_again_has_its_window_again() {
    let overlap = |again: f64, end: f64| {
        let round = Round::new().start(2.0, 1, 1).taking(3.0, 1).taking(again, 1).end(end, 1, 1);
        let round = round.start(2.5, 2, 2).end(30.0, 2, 2);
        let whole = lone_run(SEED, PIECES).into_iter();
        whole.fold(round, |round, piece| round.piece(2.0, piece)).done(31.0)
    };
    overlap(7.0, 13.9).check([0; 4]);
    overlap(7.0, 14.1).check([0, 0, 1, 0]);
    overlap(9.0, 10.1).check([0, 0, 1, 0]);
}

#[test]
fn the_run_of_a_killed_process_ends_with_it() {
    let gone = What::Gone { pid: 1, name: "w1.0".into(), status: "killed".into() };
    let round = Round::new().start(2.0, 1, 1).at(3.0, gone).start(3.1, 2, 2).end(60.0, 2, 2);
    let whole = lone_run(SEED, PIECES).into_iter();
    whole.fold(round, |round, piece| round.piece(2.0, piece)).done(61.0).check([0; 4]);
}

#[test]
fn a_run_that_begins_after_the_end_is_a_double_run() {
    Round::answered().start(9.9, 2, 2).end(9.95, 2, 2).check([0; 4]);
    Round::answered().start(10.1, 2, 2).end(10.2, 2, 2).check([0, 0, 1, 0]);
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
    let round = |pieces: Vec<String>| {
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
