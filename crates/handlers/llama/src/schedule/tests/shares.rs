//! Many replies of one tenant beside another.

use super::{Request, World};

/// What the steps of another's ten tokens ran, beside a tenant with `replies` of this weight.
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
    // Its own 15 tokens, and two steps of the other's 60; it would be eleven without debts.
    let (run, steps) = beside(60, 1);
    assert!(run <= 15 + 2 * 60, "{run}");
    assert!(steps <= 12, "{steps}");
    // Few that are heavy are as many.
    let (run, _) = beside(4, 15);
    assert!(run <= 15 + 2 * 4, "{run}");
    // As many as there are places are no trouble: nobody waits.
    let (run, _) = beside(4, 1);
    assert!(run >= 15 + 9 * 4, "{run}");
}

/// Whoever came first and has all memory for its replies gives some back.
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
    // One that has no more than the other gives nothing: neither would come to an end.
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
    // Two that owe the same take turns, and no step is empty.
    let mut world = World::new(1_000_000);
    world.ask(Request::new(0, "a", 20, 100).of(60));
    world.ask(Request::new(1, "b", 20, 100).of(60));
    world.play();
    assert!(world.steps <= 210, "{}", world.steps);
}
