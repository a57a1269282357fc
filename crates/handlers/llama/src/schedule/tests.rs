//! Tests of the scheduler with a memory that only counts tokens.

mod shares;

use std::sync::Arc;

use proptest::prelude::*;

use super::{Candidate, Limits, Memory, Schedule, Tenant, Work};

const LIMITS: Limits = Limits { tokens: 64, prompts: 64, places: 4 };

/// Request that is being answered: a prompt, then the tokens of each reply, one a step.
#[derive(Clone, Debug)]
struct Request {
    name: usize,
    tenant: &'static str,
    priority: i32,
    prompt: usize,
    /// Replies that have not ended, and those of them that run.
    replies: usize,
    going: usize,
    length: usize,
    made: usize,
    /// Tokens that were run, and tokens with reserved memory.
    run: usize,
    held: usize,
    /// Number of steps for which its client does not read.
    away: usize,
    weight: usize,
    /// Most tokens of a step, if the prompt's tokens need log-probabilities.
    scored: Option<usize>,
    /// Text that the prompt begins with, and its tokens.
    prefix: Option<(usize, usize)>,
}

impl Request {
    fn new(name: usize, tenant: &'static str, prompt: usize, length: usize) -> Self {
        let (priority, replies, going, made, run, held, away) = (0, 1, 1, 0, 0, 0, 0);
        let weight = 1;
        Self {
            name,
            tenant,
            priority,
            prompt,
            replies,
            going,
            length,
            made,
            run,
            held,
            away,
            weight,
            scored: None,
            prefix: None,
        }
    }

    fn begins_with(self, text: usize, tokens: usize) -> Self {
        Self { prefix: Some((text, tokens)), ..self }
    }

    /// Returns the number of tokens of another request's prompt that are of use for this one.
    fn in_common(&self, other: &Self) -> usize {
        let (Some((own, tokens)), Some((theirs, of_other))) = (self.prefix, other.prefix) else {
            return 0;
        };
        let equal = if own == theirs { tokens.min(of_other) } else { 0 };
        equal.min(self.prompt - 1).min(other.prompt)
    }

    fn scored(self, most: usize) -> Self {
        Self { scored: Some(most), ..self }
    }

    fn of(self, replies: usize) -> Self {
        Self { replies, going: replies, ..self }
    }

    fn heavy(self, weight: usize) -> Self {
        Self { weight, ..self }
    }

    fn before(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    fn work(&self) -> Work {
        let tokens = self.prompt + self.made * self.going - self.run;
        let together = if self.made == 0 { 1 } else { self.going };
        let scored = self.scored.filter(|_| self.run + 1 < self.prompt);
        if self.away > 0 { Work::default() } else { Work { tokens, together, scored } }
    }

    /// Ends the running replies that have all their tokens. Returns true if these were the last
    /// ones.
    fn ends(&mut self) -> bool {
        if self.made <= self.length {
            return false;
        }
        self.replies -= self.going;
        // The waiting replies start from the end of the prompt.
        (self.going, self.made) = (self.replies, 1);
        (self.run, self.held) = (self.prompt, self.prompt);
        self.replies == 0
    }
}

#[derive(Default)]
struct World {
    schedule: Schedule,
    requests: Vec<(Request, Tenant)>,
    memory: usize,
    /// Names of the requests that ended, and the steps in which they did.
    ended: Vec<(usize, usize)>,
    steps: usize,
    /// True if a client did not read at some time.
    away: bool,
    /// Most tokens of prompts beside replies, if they are bounded.
    prompts: Option<usize>,
}

struct Counted<'a>(&'a mut Vec<(Request, Tenant)>, usize);

impl Memory for Counted<'_> {
    fn begin(&mut self, index: usize) -> Work {
        let others =
            self.0.iter().map(|(other, _)| other.run.min(self.0[index].0.in_common(other)));
        let known = others.max().unwrap_or_default();
        let request = &mut self.0[index].0;
        request.run = known.max(request.run);
        request.work()
    }

    fn awaits_prefix(&self, index: usize, other: usize) -> bool {
        let (own, other) = (&self.0[index].0, &self.0[other].0);
        other.run < own.in_common(other)
    }

    fn reserve(&mut self, index: usize, tokens: usize) -> bool {
        let held: usize = self.0.iter().map(|(request, _)| request.held).sum();
        let request = &mut self.0[index].0;
        let more = (request.run + tokens).saturating_sub(request.held);
        if held + more > self.1 {
            return false;
        }
        request.held += more;
        true
    }

    fn preempt(&mut self, index: usize) {
        let request = &mut self.0[index].0;
        (request.run, request.held) = (0, 0);
    }

    fn shrink(&mut self, index: usize) -> Option<Work> {
        let request = &mut self.0[index].0;
        if request.going == 1 {
            return None;
        }
        for tokens in [&mut request.run, &mut request.held] {
            *tokens -= tokens.saturating_sub(request.prompt) / request.going;
        }
        request.going -= 1;
        Some(request.work())
    }
}

impl World {
    fn new(memory: usize) -> Self {
        Self { memory, ..Self::default() }
    }

    fn ask(&mut self, request: Request) {
        let tenant = self.schedule.begin(&Arc::from(request.tenant));
        self.requests.push((request, tenant));
    }

    /// Runs one step and returns the number of its tokens.
    fn step(&mut self) -> usize {
        self.steps += 1;
        self.away |= self.requests.iter().any(|(request, _)| request.away > 0);
        let candidate = |(request, tenant): &(Request, Tenant)| Candidate {
            tenant: *tenant,
            priority: request.priority,
            work: request.work(),
            weight: request.weight,
            begun: request.held > 0,
        };
        let candidates: Vec<_> = self.requests.iter().map(candidate).collect();
        let mut memory = Counted(&mut self.requests, self.memory);
        let limits = Limits { prompts: self.prompts.unwrap_or(LIMITS.prompts), ..LIMITS };
        let counts = self.schedule.plan(&candidates, limits, &mut memory);
        let parts = || candidates.iter().zip(&counts).filter(|(_, count)| **count > 0);
        let has_reply = parts().any(|(own, _)| own.begun && own.work.goes_on());
        let of_prompts = parts().filter(|(own, count)| **count > own.work.together);
        let prompts: usize = of_prompts.map(|(_, count)| count).sum();
        assert!(!has_reply || prompts <= limits.prompts, "{prompts} beside replies");
        assert!(counts.iter().sum::<usize>() <= LIMITS.tokens);
        let begun = self.requests.iter().filter(|(request, _)| request.held > 0).count();
        assert!(begun <= LIMITS.places || self.away, "{begun} have begun");
        for ((request, _), count) in self.requests.iter_mut().zip(&counts) {
            let Work { tokens, together, .. } = request.work();
            assert!(request.run + count <= request.held.max(*count));
            assert!(*count == tokens || *count + together <= tokens || *count == 0);
            request.run += count;
            request.away = request.away.saturating_sub(1);
            if *count > 0 && *count == tokens {
                request.made += 1;
            }
        }
        for (over, tenant) in self.requests.extract_if(.., |(request, _)| request.ends()) {
            self.schedule.end(tenant);
            self.ended.push((over.name, self.steps));
        }
        counts.iter().sum()
    }

    /// Returns how many tokens were run of the request of this name.
    fn run(&self, name: usize) -> usize {
        self.requests.iter().find(|(request, _)| request.name == name).expect("it runs").0.run
    }

    fn steps(&mut self, steps: usize) {
        (0..steps).for_each(|_| {
            self.step();
        });
    }

    fn play(&mut self) {
        while !self.requests.is_empty() {
            assert!(self.steps < 100_000, "it never ends");
            let away = self.requests.iter().any(|(request, _)| request.away > 0);
            assert!(self.step() > 0 || away, "nobody runs");
        }
        assert!(self.schedule.names.is_empty());
    }

    fn end_of(&self, name: usize) -> usize {
        self.ended.iter().find(|(ended, _)| *ended == name).expect("it has ended").1
    }
}

/// Allows one step per waiting tenant, and the step in which the prompt runs.
#[test]
fn a_flood_delays_anothers_prompt_by_two_steps_at_most() {
    for flood in [LIMITS.places - 1, LIMITS.places, 100] {
        let mut world = World::new(1_000_000);
        for name in 0..flood {
            world.ask(Request::new(name, "flood", 2000, 20));
        }
        for before in [1, 10, 20, 30, 50] {
            world.steps(before);
            let asked = world.steps;
            world.ask(Request::new(1000 + before, "other", 30, 0));
            world.steps(2);
            assert!(world.end_of(1000 + before) - asked <= 2, "beside {flood}");
        }
        world.play();
    }
}

#[test]
fn a_place_is_taken_from_a_tenant_with_several_for_one_with_none() {
    let mut world = World::new(1_000_000);
    for name in 0..10 {
        world.ask(Request::new(name, "flood", 5, 500));
    }
    world.steps(20);
    world.ask(Request::new(100, "other", 30, 0));
    world.steps(2);
    assert!(world.end_of(100) <= 22);
    assert_eq!(world.schedule.preemptions(), 1);
}

#[test]
fn many_tenants_wait_for_each_other_a_step_each_and_no_longer() {
    let mut world = World::new(1_000_000);
    let tenants = ["a", "b", "c", "d"];
    for name in 0..100 {
        world.ask(Request::new(name, tenants[name % 2], 2000, 3));
    }
    world.steps(30);
    let asked = world.steps;
    world.ask(Request::new(1000, "c", 40, 0));
    world.ask(Request::new(1001, "d", 40, 0));
    world.steps(tenants.len() + 1);
    assert!(world.end_of(1000) - asked <= tenants.len() + 1);
    assert!(world.end_of(1001) - asked <= tenants.len() + 1);
    world.play();
}

#[test]
fn tenants_share_alike_whatever_they_ask_for() {
    let mut world = World::new(1_000_000);
    for name in 0..3 {
        world.ask(Request::new(name, "three", 50_000, 0));
    }
    world.ask(Request::new(3, "one", 50_000, 0));
    world.steps(400);
    let run = |tenant: &str| -> usize {
        let of = world.requests.iter().filter(|(request, _)| request.tenant == tenant);
        of.map(|(request, _)| request.run).sum()
    };
    assert_eq!((run("three"), run("one")), (200 * LIMITS.tokens, 200 * LIMITS.tokens));
}

#[test]
fn who_was_away_has_not_saved_anything_up() {
    let mut world = World::new(1_000_000);
    world.ask(Request::new(0, "here", 50_000, 0));
    world.steps(100);
    world.ask(Request::new(1, "away", 50_000, 0));
    world.steps(20);
    assert_eq!(world.requests[0].0.run, 110 * LIMITS.tokens);
}

#[test]
fn replies_that_go_on_are_never_behind_prompts() {
    let mut world = World::new(1_000_000);
    world.ask(Request::new(0, "a", 10, 50).of(LIMITS.places));
    world.step();
    for name in 1..4 {
        world.ask(Request::new(name, "b", 10_000, 5));
    }
    world.steps(50);
    assert_eq!(world.end_of(0), 51);
}

#[test]
fn prompts_beside_replies_are_bounded_and_alone_they_are_not() {
    let mut world = World { prompts: Some(10), ..World::new(1_000_000) };
    world.ask(Request::new(0, "a", 10, 20));
    world.step();
    world.ask(Request::new(1, "b", 1000, 0));
    world.steps(20);
    assert_eq!((world.end_of(0), world.run(1)), (21, 200));
    world.steps(5);
    assert_eq!(world.run(1), 200 + 5 * LIMITS.tokens);
}

#[test]
fn prompts_that_begin_alike_are_computed_once() {
    let tokens = |tenants: [&'static str; 4], texts: [usize; 4]| {
        let mut world = World::new(1_000_000);
        for name in 0..4 {
            world.ask(Request::new(name, tenants[name], 520, 2).begins_with(texts[name], 500));
        }
        let mut tokens = 0;
        while !world.requests.is_empty() {
            tokens += world.step();
        }
        tokens
    };
    let replies = 4 * 2;
    assert_eq!(tokens(["a"; 4], [7; 4]), 500 + 4 * 20 + replies);
    assert_eq!(tokens(["a"; 4], [7, 7, 8, 8]), 2 * 500 + 4 * 20 + replies);
    // Tenants do not wait for each other, whose turns may be long in coming.
    assert!(tokens(["a", "b", "c", "d"], [7; 4]) > 3 * 500);
}

#[test]
fn who_waits_for_a_prefix_lets_others_begin() {
    let mut world = World::new(1_000_000);
    for name in 0..2 {
        world.ask(Request::new(name, "a", 5000, 0).begins_with(7, 4000));
    }
    world.ask(Request::new(2, "a", 30, 0));
    world.ask(Request::new(3, "b", 30, 0));
    world.steps(3);
    assert!(world.end_of(3) <= 2);
    world.play();
    assert!(world.end_of(0) < world.end_of(1));
}

#[test]
fn a_prefix_that_nobody_computes_any_more_is_not_waited_for() {
    let mut world = World::new(1_000_000);
    for name in 0..2 {
        world.ask(Request::new(name, "a", 1000, 0).begins_with(7, 900));
    }
    world.steps(2);
    assert_eq!((world.run(0), world.run(1)), (2 * LIMITS.tokens, 0));
    world.requests[0].0.away = 1000;
    world.steps(14);
    assert_eq!(world.ended.len(), 1);
    assert_eq!(world.end_of(1), 16);
}

#[test]
fn replies_of_one_request_go_on_together_or_not_at_all() {
    let mut world = World::new(1_000_000);
    for name in 0..4 {
        world.ask(Request::new(name, "a", 30, 6).of(25));
    }
    world.play();
    // Two of them fill a step, so a third does not fit.
    assert_eq!(world.end_of(0), world.end_of(1));
    assert!(world.end_of(1) + 6 <= world.end_of(2));
}

#[test]
fn who_came_last_gives_back_and_the_oldest_ends_first() {
    let mut world = World::new(150);
    for name in 0..3 {
        world.ask(Request::new(name, "a", 40, 60));
    }
    world.play();
    assert!(world.schedule.preemptions() > 0);
    assert!(world.end_of(0) < world.end_of(1) && world.end_of(1) < world.end_of(2));
    assert_eq!(world.end_of(0), 61, "as if it were alone");
}

#[test]
fn the_last_gives_back_and_not_the_next() {
    // Memory for two of them.
    let mut world = World::new(220);
    for name in 0..3 {
        world.ask(Request::new(name, "a", 40, 60));
    }
    world.play();
    assert!(world.schedule.preemptions() > 0);
    assert!(world.end_of(1) <= world.end_of(0) + 1);
}

#[test]
fn replies_that_have_no_room_together_run_in_turns() {
    // Memory for two replies of the first request and one of the second.
    let mut world = World::new(125);
    world.ask(Request::new(0, "a", 20, 50).of(5));
    world.ask(Request::new(1, "a", 60, 50).of(2));
    world.play();
    assert_eq!(world.ended.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [0, 1]);
    // First two replies and one; then those of the second request in sequence, beside the last
    // reply of the first request.
    assert!((4 * 51..=5 * 51 + 10).contains(&world.steps), "{}", world.steps);
}

#[test]
fn all_replies_of_a_request_run_together_where_there_is_room_once_others_gave_theirs() {
    let mut world = World::new(220);
    world.ask(Request::new(0, "a", 100, 60));
    world.ask(Request::new(1, "a", 20, 20).of(3));
    world.ask(Request::new(2, "a", 20, 50).of(4));
    world.steps(60);
    assert!(world.requests.iter().all(|(request, _)| request.going == request.replies));
    world.play();
    assert!(world.end_of(2) <= world.end_of(0) + 60);
}

#[test]
fn a_request_begins_when_there_is_memory_for_all_of_its_prompt() {
    let mut world = World::new(300);
    world.ask(Request::new(0, "a", 150, 60));
    world.ask(Request::new(1, "a", 200, 0));
    world.play();
    assert_eq!(world.schedule.preemptions(), 0);
}

#[test]
fn nobody_overtakes_one_that_waits_for_memory() {
    let mut world = World::new(300);
    world.ask(Request::new(0, "a", 150, 60));
    world.steps(3);
    world.ask(Request::new(1, "b", 250, 0));
    // Each of them is its tenant's first request.
    let tenants = ["c", "d", "e", "f", "g", "h", "i", "j"];
    for name in 100..150 {
        world.ask(Request::new(name, tenants[name % 8], 40, 8));
        world.steps(2);
    }
    assert!(world.end_of(1) <= world.end_of(0) + 10);
    world.play();
}

#[test]
fn a_client_that_does_not_read_holds_nobody_up() {
    let mut world = World::new(150);
    world.ask(Request::new(0, "a", 100, 10));
    world.steps(2);
    world.requests[0].0.away = 1000;
    world.ask(Request::new(1, "a", 100, 10));
    world.steps(20);
    assert_eq!(world.ended.len(), 1);
    assert_eq!(world.schedule.preemptions(), 1);
}

#[test]
fn priority_is_an_order_within_a_tenant_and_no_advantage_over_others() {
    let play = |priorities: [i32; 3]| {
        let mut world = World::new(1_000_000);
        for name in 0..6 {
            world.ask(Request::new(name, "a", 100, 30).before(priorities[0]));
        }
        world.ask(Request::new(10, "b", 100, 30));
        world.steps(20);
        world.ask(Request::new(20, "a", 100, 30).before(priorities[1]));
        world.ask(Request::new(21, "a", 100, 30).before(priorities[2]));
        world.play();
        world
    };
    let (plain, world) = (play([0, 0, 0]), play([5, -1, -2]));
    assert_eq!(world.end_of(10), plain.end_of(10));
    for name in 3..6 {
        assert!(world.end_of(20) < world.end_of(name), "it takes the place of {name}");
    }
    assert!(world.end_of(21) <= world.end_of(20));
    assert!(plain.end_of(20) > plain.end_of(5));
}

#[test]
fn a_tenant_without_memory_is_before_the_second_request_of_another() {
    let mut world = World::new(400);
    for name in 0..3 {
        world.ask(Request::new(name, "flood", 120, 200));
    }
    world.steps(10);
    world.ask(Request::new(10, "other", 100, 5));
    world.steps(8);
    assert!(world.end_of(10) <= 18);
    assert!(world.schedule.preemptions() > 0);
    world.play();
    assert!(world.end_of(0) < world.end_of(2));
}

#[test]
fn an_account_is_anothers_when_its_tenant_has_gone() {
    let mut schedule = Schedule::default();
    let names: Vec<Arc<str>> = ["a", "b", "c"].into_iter().map(Arc::from).collect();
    let a = schedule.begin(&names[0]);
    let b = schedule.begin(&names[1]);
    assert_eq!(schedule.begin(&names[0]), a);
    schedule.end(a);
    schedule.end(b);
    assert_eq!(schedule.begin(&names[2]), b);
    assert_eq!(schedule.begin(&names[0]), a);
    assert_eq!(schedule.accounts.len(), 2);
}

proptest! {
    #[test]
    fn everybody_comes_to_an_end_with_memory_for_the_longest_reply(
        requests in prop::collection::vec(
            (
                0..3usize, 1..300usize, 0..40usize, 1..5usize, 0..60usize, -1..2i32,
                prop::option::of((0..2usize, 0..300usize)),
            ),
            1..30,
        ),
        spare in 0..400usize,
        prompts in prop::option::of(1..64usize),
    ) {
        let longest = requests.iter().map(|(_, prompt, length, ..)| prompt + length);
        let longest = longest.max().unwrap();
        let mut world = World { prompts, ..World::new(longest + spare) };
        for (name, (tenant, prompt, length, replies, away, priority, prefix)) in
            requests.into_iter().enumerate()
        {
            let request = Request::new(name, ["a", "b", "c"][tenant], prompt, length);
            let request = request.of(replies).before(priority);
            let prefix = prefix.map(|(text, tokens)| (text, tokens.min(prompt)));
            world.ask(Request { away, prefix, ..request });
        }
        world.play();
    }
}
