//! Tests of draft lengths under synthetic costs.

use super::super::Costs;
use super::{AFTER_REST, AFTER_REST_OF_ONE, AcceptanceStats, DraftBudget, GUESS, Step, choose};

/// Cost of a step that is memory-bound for the first few rows and then compute-bound.
fn bound_by_memory(rows: usize) -> f64 {
    (rows as f64 / 12.0).max(1.0) + 0.02 * rows as f64
}

/// Cost of a step of a model that fits into the caches, where each row costs.
fn bound_by_arithmetic(rows: usize) -> f64 {
    0.3 + 0.7 * rows as f64
}

/// Cost as measured for the target of the bundled pair, in steps of one token.
fn as_the_pair(rows: usize) -> f64 {
    0.75 + 0.25 * rows as f64
}

fn lengths(acceptances: &[f64], rows: usize, costs: &Costs, round: f64) -> Vec<usize> {
    let budget = |&acceptance| DraftBudget { acceptance, most: 8, now: 0, behind: 1 };
    let budgets: Vec<DraftBudget> = acceptances.iter().map(budget).collect();
    choose(&budgets, Step { rows, room: 256 - rows, costs }, &|_| round)
}

#[test]
fn a_draft_is_as_long_as_it_is_likely_to_be_right() {
    let costs = Costs::by(bound_by_memory);
    let of = |acceptance: f64| lengths(&[acceptance], 1, &costs, 0.05)[0];
    let lengths: Vec<usize> = [0.01, 0.3, 0.6, 0.9, 0.99].map(of).into();
    assert_eq!(lengths[0], 0);
    assert!(lengths.is_sorted() && lengths[2] >= 2 && lengths[4] == 8, "{lengths:?}");
}

#[test]
fn rows_that_cost_as_much_as_a_step_are_not_drafted() {
    let dear = Costs::by(bound_by_arithmetic);
    assert_eq!(lengths(&[0.8], 1, &dear, 0.3), [0]);
    // Together with a prompt that fills the step with work.
    let costs = Costs::by(bound_by_memory);
    assert_eq!(lengths(&[0.9; 4], 200, &costs, 0.05), [0; 4]);
    assert!(lengths(&[0.9; 4], 4, &costs, 0.05).iter().all(|length| *length >= 2));
    // With a drafter that takes as long as the model.
    assert_eq!(lengths(&[0.9], 1, &costs, 1.0), [0]);
}

#[test]
fn of_several_the_likelier_ones_have_the_longer_drafts() {
    let costs = Costs::by(bound_by_memory);
    let lengths = lengths(&[0.2, 0.95, 0.6], 3, &costs, 0.01);
    assert!(lengths[1] > lengths[2] && lengths[2] >= lengths[0], "{lengths:?}");
}

#[test]
fn there_is_never_more_than_room_for() {
    let costs = Costs::by(bound_by_memory);
    for room in [0, 1, 5] {
        let budgets = [DraftBudget { acceptance: 0.99, most: 8, now: 8, behind: 1 }; 3];
        let step = Step { rows: 3, room, costs: &costs };
        assert!(choose(&budgets, step, &|_| 0.0).iter().sum::<usize>() <= room);
    }
    let budgets = [DraftBudget { acceptance: 0.99, most: 2, now: 0, behind: 1 }];
    let step = Step { rows: 1, room: 100, costs: &costs };
    assert_eq!(choose(&budgets, step, &|_| 0.0), [2]);
}

#[test]
fn a_drafter_that_is_behind_must_gain_more() {
    let costs = Costs::by(bound_by_memory);
    let of = |rows: usize, behind| {
        let budget = DraftBudget { acceptance: 0.9, most: 4, now: 0, behind };
        let budgets = vec![budget; rows];
        let step = Step { rows, room: 200, costs: &costs };
        choose(&budgets, step, &|rows| 0.02 * rows as f64).iter().sum::<usize>()
    };
    // For one reply, the run of a prompt pays off; with many replies, each gains less than that.
    assert_eq!((of(1, 1), of(1, 1000)), (4, 4));
    assert!(of(10, 1) > 0);
    assert_eq!(of(10, 1000), 0);
}

#[test]
fn a_length_is_kept_until_another_is_clearly_better() {
    let costs = Costs::by(bound_by_memory);
    let with = |acceptance, now| {
        let budget = DraftBudget { acceptance, most: 8, now, behind: 1 };
        choose(&[budget], Step { rows: 1, room: 100, costs: &costs }, &|_| 0.05)[0]
    };
    let best = with(0.6, 0);
    for near in [best - 1, best + 1] {
        assert_eq!(with(0.6, near), near);
    }
    assert_eq!(with(0.6, 8), best);
}

/// Returns a pseudo-random number from 0 to 1.
fn draw(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f64 / (1u64 << 24) as f64
}

/// Returns the modeled cost of a token with `streams` replies whose draft tokens are right with
/// probability `right`.
fn cost_of_a_token(streams: usize, right: f64, costs: &Costs, round: f64) -> f64 {
    let (mut own, mut all) =
        (vec![AcceptanceStats::default(); streams], AcceptanceStats::default());
    let (mut made, mut cost, mut state) = (0, 0.0, 7);
    for _ in 0..3000 {
        let belief = all.acceptance(GUESS);
        let budget = |acceptance: &AcceptanceStats| DraftBudget {
            acceptance: acceptance.acceptance(belief),
            most: 8,
            now: acceptance.length,
            behind: 1,
        };
        let budgets: Vec<DraftBudget> = own.iter().map(budget).collect();
        let step = Step { rows: streams, room: 256 - streams, costs };
        let lengths = choose(&budgets, step, &|_| round);
        let (longest, drafted) = (lengths.iter().max().unwrap(), lengths.iter().sum::<usize>());
        cost += costs.of(streams + drafted) + *longest as f64 * round;
        for (acceptance, length) in own.iter_mut().zip(lengths) {
            acceptance.length = length;
            let accepted = (0..length).take_while(|_| draw(&mut state) < right).count();
            if length == 0 {
                acceptance.rest(AFTER_REST);
                all.rest(AFTER_REST_OF_ONE);
            }
            acceptance.learn(length, accepted);
            all.learn(length, accepted);
            made += 1 + accepted;
        }
    }
    cost / made as f64
}

#[test]
fn under_any_load_a_token_costs_no_more_than_without_drafts() {
    type Shape = fn(usize) -> f64;
    let shapes: [(Shape, f64); 3] =
        [(bound_by_memory, 0.05), (bound_by_arithmetic, 0.1), (as_the_pair, 0.08)];
    for (shape, round) in shapes {
        let costs = Costs::by(shape);
        for streams in [1, 2, 4, 8, 16, 32] {
            let plain = costs.of(streams) / streams as f64;
            for right in [0.0, 0.3, 0.6, 0.8, 0.9, 0.98] {
                let ratio = cost_of_a_token(streams, right, &costs, round) / plain;
                // The only cost is an occasional attempt to see whether drafts have become better.
                let most = match right {
                    0.0 => 1.02,
                    0.3 | 0.6 => 1.01,
                    _ => 1.0 + 1e-9,
                };
                assert!(ratio <= most, "{streams} streams, {right} right: {ratio}");
                if right > 0.95 && streams == 1 && round < 0.1 {
                    assert!(ratio < 0.55, "{ratio}");
                }
            }
        }
    }
}

#[test]
fn what_was_seen_counts_more_than_belief_and_gets_old() {
    let mut acceptance = AcceptanceStats::default();
    assert!((acceptance.acceptance(0.7) - 0.7).abs() < 1e-12);
    for _ in 0..30 {
        acceptance.learn(4, 0);
    }
    assert!(acceptance.acceptance(0.7) < 0.15);
    for _ in 0..300 {
        acceptance.rest(AFTER_REST);
    }
    assert!(acceptance.acceptance(0.7) > 0.6);
    assert_eq!((acceptance.drafted(), acceptance.accepted()), (120, 0));
}
