//! Fairness between a tenant with many replies and another tenant.

use super::{LIMITS, Request, Work, World};

/// Returns the most tokens and steps that ten tokens of another tenant took, beside a tenant with
/// `replies` replies of this weight.
fn beside(replies: usize, weight: usize) -> (usize, usize) {
    let mut world = World::new(1_000_000);
    world.ask(Request::new(0, "flood", 20, 10_000).of(replies).heavy(weight));
    world.steps(40);
    let (mut run, mut most) = (0, 0);
    for asked in 1..20 {
        let begun = world.steps;
        world.ask(Request::new(asked, "other", 5, 9));
        let mut own = 0;
        while !world.ended.iter().any(|(ended, _)| *ended == asked) {
            own += world.step();
        }
        (run, most) = (run.max(own), most.max(world.steps - begun));
    }
    (run, most)
}

#[test]
fn m1_many_replies_of_one_tenant_slow_it_and_no_other() {
    // 15 tokens of its own, and two steps of the other's 60. Without debts there would be eleven
    // steps.
    let (run, steps) = beside(60, 1);
    assert!(run <= 15 + 2 * 60, "{run}");
    assert!(steps <= 12, "{steps}");
    // A few heavy replies count as many.
    let (run, _) = beside(4, 15);
    assert!(run <= 15 + 2 * 4, "{run}");
    // As many replies as places incur no debt, so no tenant sits out.
    let (run, _) = beside(4, 1);
    assert!(run >= 15 + 9 * 4, "{run}");
}

/// The request that came first and holds all memory frees that of some replies.
#[test]
fn m1_a_request_of_many_replies_gives_memory_to_another_tenant() {
    let mut world = World::new(400);
    world.ask(Request::new(0, "many", 20, 300).of(30));
    world.steps(40);
    let asked = world.steps;
    world.ask(Request::new(1, "other", 30, 10));
    world.steps(20);
    assert!(world.end_of(1) <= asked + 20, "{}", world.end_of(1));
    world.play();
    // A request with no more replies than the other yields nothing; otherwise neither would
    // complete.
    let mut world = World::new(400);
    world.ask(Request::new(0, "a", 20, 300).of(2));
    world.ask(Request::new(1, "b", 20, 300).of(2));
    world.play();
}

#[test]
fn m1_a_tenant_alone_runs_in_every_step_whatever_it_owes() {
    let mut world = World::new(1_000_000);
    world.ask(Request::new(0, "a", 20, 100).of(60).heavy(5));
    world.play();
    assert_eq!(world.end_of(0), 101);
    // Two tenants with equal debts take turns, and no step is empty.
    let mut world = World::new(1_000_000);
    world.ask(Request::new(0, "a", 20, 100).of(60));
    world.ask(Request::new(1, "b", 20, 100).of(60));
    world.play();
    assert!(world.steps <= 210, "{}", world.steps);
}

#[test]
fn a_prompt_with_log_probabilities_counts_twice_and_runs_in_short_chunks() {
    // Alone, it runs as many tokens a step as it may.
    let mut world = World::new(1_000_000);
    world.ask(Request::new(0, "a", 2000, 0).scored(8));
    assert_eq!((world.step(), world.step()), (8, 8));
    // Without that limit, its tokens take the room of two.
    let mut world = World::new(1_000_000);
    world.ask(Request::new(0, "a", 2000, 0).scored(usize::MAX));
    assert_eq!(world.step(), LIMITS.tokens / 2);
    // Beside another tenant's prompt, it runs half as many tokens.
    let mut world = World::new(1_000_000);
    world.ask(Request::new(0, "a", 100_000, 0).scored(usize::MAX));
    world.ask(Request::new(1, "b", 100_000, 0));
    world.steps(400);
    let (scored, plain) = (world.run(0), world.run(1));
    assert!(scored.abs_diff(plain / 2) <= LIMITS.tokens, "{scored} and {plain}");
    // Replies of another tenant run in every step beside it.
    let mut world = World::new(1_000_000);
    world.ask(Request::new(0, "a", 100_000, 0).scored(16));
    world.step();
    world.ask(Request::new(1, "b", 10, 50));
    world.steps(60);
    assert!(world.end_of(1) <= 53, "{}", world.end_of(1));
}

#[test]
fn a_prompt_with_log_probabilities_goes_on_in_the_room_of_one_token() {
    let work = |tokens| Work { tokens, together: 1, scored: Some(16) };
    for (tokens, room, within) in [(60, 0, 0), (60, 1, 1), (60, 3, 1), (60, 64, 16), (9, 64, 9)] {
        assert_eq!(work(tokens).within(room), within);
    }
    assert_eq!((work(60).cost(1, 1), work(60).cost(16, 64)), (1, 32));
}
