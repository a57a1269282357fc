//! Thread pool for tokenization, chat templates and grammars, shared fairly between tenants.
//!
//! All calls of a handler run on one thread, so work that takes milliseconds must run elsewhere.
//! The work of a call is bounded and cannot be interrupted, so fairness is a matter of order. The
//! next task belongs to the tenant whose tasks have cost least (start-time fair queueing, as in
//! [`schedule`](crate::schedule)), and a tenant never occupies all threads.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use nsbridge_handler::{Error, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::process::setpriority_process;

use crate::panics::{Panicked, caught};

/// Stack size of a thread, in bytes. Compiling a grammar recurses as deep as its schema, whose
/// depth is bounded by that of JSON.
const STACK: usize = 16 << 20;

/// Nice value of the threads, so that the threads that compute steps, at 0, take precedence.
const NICE: i32 = 10;

/// Thread pool. After this handle is dropped, each thread ends with its current task.
pub(crate) struct Workers(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Waiting tasks and the consumption of each tenant.
#[derive(Default)]
struct Queue {
    accounts: HashMap<Arc<str>, Account>,
    /// Virtual time: the value of `given` of the last chosen tenant before that task was charged.
    clock: u64,
    /// Start times of the running tasks, each with a number of its own.
    running: Vec<(u64, Instant)>,
    begun: u64,
    ended: bool,
}

#[derive(Default)]
struct Account {
    given: u64,
    running: usize,
    tasks: VecDeque<Task>,
}

struct Task {
    cost: u64,
    work: Box<dyn Work>,
}

/// Type-erased work of a task.
trait Work: Send {
    /// Returns true if the caller does not wait for the result any more.
    fn is_given_up(&self) -> bool;

    fn run(self: Box<Self>);
}

struct Job<T, F> {
    done: oneshot::Sender<Result<Result<T>, Panicked>>,
    work: F,
}

impl<T: Send, F: FnOnce() -> Result<T> + Send> Work for Job<T, F> {
    fn is_given_up(&self) -> bool {
        self.done.is_canceled()
    }

    fn run(self: Box<Self>) {
        let Self { done, work } = *self;
        let _ = done.send(caught(work));
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Workers")
    }
}

impl Workers {
    /// Starts `threads` threads, at least two.
    ///
    /// # Errors
    ///
    /// Returns an error if the system cannot start a thread.
    pub(crate) fn start(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new() });
        // From here on, an error drops the handle, which ends the threads started before.
        let workers = Self(shared);
        let threads = threads.max(2);
        for _ in 0..threads {
            let shared = workers.0.clone();
            let thread = std::thread::Builder::new().name("nsbridge-prepare".to_owned());
            thread.stack_size(STACK).spawn(move || {
                // Steps take precedence, because all requests wait for a step and only one waits
                // for this work. If the system refuses the nice value, steps take a little longer.
                let _ = setpriority_process(None, NICE);
                shared.work(threads - 1);
            })?;
        }
        Ok(workers)
    }

    /// Runs the work on one of the threads, in its tenant's turn. `cost` is the tenant's charge, in
    /// bytes of input. Dropping the future cancels work that has not begun.
    ///
    /// # Errors
    ///
    /// Returns the error of the work, or an error if it panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        tenant: Arc<str>,
        cost: u64,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (done, finished) = oneshot::channel();
        let task = Task { cost, work: Box::new(Job { done, work }) };
        self.0.lock().push(tenant, task);
        self.0.changed.notify_one();
        finished.await.map_err(Error::retry)??
    }
}

impl Workers {
    /// Returns a message if a task has run for longer than `limit`. It cannot be ended, and the
    /// tasks of all tenants need its thread.
    pub(crate) fn stuck(&self, limit: Duration) -> Option<String> {
        let queue = self.0.lock();
        let longest = queue.running.iter().map(|(_, begun)| begun.elapsed()).max();
        longest.filter(|longest| *longest > limit).map(|_| {
            format!("the preparation of a prompt did not end within {} s", limit.as_secs_f64())
        })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.ended = true;
        queue.accounts.clear();
        drop(queue);
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No panic leaves the queue in an inconsistent state.
        self.queue.lock()
    }

    /// Runs tasks until the end. A tenant runs at most `most` tasks at once.
    fn work(&self, most: usize) {
        let mut queue = self.lock();
        while !queue.ended {
            let Some((tenant, task)) = queue.next(most) else {
                self.changed.wait(&mut queue);
                continue;
            };
            queue.begun += 1;
            let number = queue.begun;
            queue.running.push((number, Instant::now()));
            drop(queue);
            task.work.run();
            queue = self.lock();
            queue.running.retain(|(other, _)| *other != number);
            queue.end(&tenant);
            // Another task of this tenant may have waited for this one.
            self.changed.notify_one();
        }
    }
}

impl Queue {
    fn push(&mut self, tenant: Arc<str>, task: Task) {
        let clock = self.clock;
        let account = self.accounts.entry(tenant).or_default();
        if account.tasks.is_empty() && account.running == 0 {
            // An idle tenant gains no credit, and what it was charged before is not forgotten.
            account.given = account.given.max(clock);
        }
        account.tasks.push_back(task);
    }

    /// Returns the next task, of the tenant with the lowest consumption.
    fn next(&mut self, most: usize) -> Option<(Arc<str>, Task)> {
        for account in self.accounts.values_mut() {
            account.tasks.retain(|task| !task.work.is_given_up());
        }
        let may = |account: &Account| account.running < most && !account.tasks.is_empty();
        let waiting = self.accounts.iter_mut().filter(|(_, account)| may(account));
        let least =
            waiting.min_by(|one, other| (one.1.given, one.0).cmp(&(other.1.given, other.0)));
        let (tenant, account) = least?;
        let task = account.tasks.pop_front()?;
        self.clock = self.clock.max(account.given);
        account.given = account.given.saturating_add(task.cost.max(1));
        account.running += 1;
        Some((tenant.clone(), task))
    }

    fn end(&mut self, tenant: &Arc<str>) {
        if let Some(account) = self.accounts.get_mut(tenant) {
            account.running -= 1;
        }
        let idle = |account: &Account| account.running == 0 && account.tasks.is_empty();
        if self.accounts.values().all(idle) {
            // All tenants are idle, so there is no consumption to compare.
            self.accounts.clear();
        } else {
            let clock = self.clock;
            self.accounts.retain(|_, account| !idle(account) || account.given > clock);
        }
    }
}

#[cfg(test)]
mod tests;
