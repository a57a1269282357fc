//! Fairness between a tenant with many replies and another tenant.

use super::{Request, World};

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
