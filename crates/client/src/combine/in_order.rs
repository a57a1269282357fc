//! Bounded concurrency with results in order.

use std::collections::VecDeque;
use std::future::Future;

use futures_util::stream::{FuturesUnordered, try_unfold};
use futures_util::{FutureExt, Stream, StreamExt};

/// Returns the results of a step for each item, in the order of the items.
///
/// At most `concurrency` items are between the last returned result and the newest running step; 0
/// counts as 1. Steps run while the stream is polled. An error ends the stream as soon as it is
/// known, before results of earlier items that still run. It drops the steps that run, and so does
/// dropping the stream.
///
/// ```
/// use std::convert::Infallible;
///
/// use futures_util::TryStreamExt;
/// use nsbridge_client::combine::in_order;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let squares = in_order([1, 2, 3], 2, |n| async move { Ok::<_, Infallible>(n * n) });
/// assert_eq!(squares.try_collect::<Vec<_>>().await, Ok(vec![1, 4, 9]));
/// # }
/// ```
pub fn in_order<T, R, E, F>(
    items: impl IntoIterator<Item = T>,
    concurrency: usize,
    mut step: impl FnMut(T) -> F,
) -> impl Stream<Item = Result<R, E>>
where
    F: Future<Output = Result<R, E>>,
{
    let work = Work {
        items: items.into_iter(),
        step: move |number: usize, item| step(item).map(move |result| (number, result)),
        concurrency: concurrency.max(1),
        first: 0,
        results: VecDeque::new(),
        running: FuturesUnordered::new(),
    };
    try_unfold(work, async |mut work| Ok(work.next().await?.map(|result| (result, work))))
}

/// Items, running steps and results that wait for earlier ones.
struct Work<I, S, F, R> {
    items: I,
    /// Starts the step with this number.
    step: S,
    concurrency: usize,
    /// Number of the first result.
    first: usize,
    results: VecDeque<Option<R>>,
    running: FuturesUnordered<F>,
}

impl<I, S, F, R, E> Work<I, S, F, R>
where
    I: Iterator,
    S: FnMut(usize, I::Item) -> F,
    F: Future<Output = (usize, Result<R, E>)>,
{
    async fn next(&mut self) -> Result<Option<R>, E> {
        loop {
            while self.results.len() < self.concurrency {
                let Some(item) = self.items.next() else { break };
                self.running.push((self.step)(self.first + self.results.len(), item));
                self.results.push_back(None);
            }
            if let Some(result) = self.results.pop_front_if(|result| result.is_some()) {
                self.first += 1;
                return Ok(result);
            }
            match self.running.next().await {
                Some((number, result)) => self.results[number - self.first] = Some(result?),
                None => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::time::Duration;

    use futures_util::{StreamExt, TryStreamExt};
    use tokio::time::sleep;

    use super::in_order;

    /// Step that records its number when it is dropped before its end.
    struct Guard<'a>(u64, &'a RefCell<Vec<u64>>, bool);

    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            if !self.2 {
                self.1.borrow_mut().push(self.0);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_the_allowed_steps_run_at_once_and_results_come_in_order() {
        for (concurrency, expected) in [(4, 4), (1, 1), (0, 1), (100, 50)] {
            let (running, most) = (Cell::new(0), Cell::new(0));
            let step = async |item: u64| {
                running.set(running.get() + 1);
                most.set(most.get().max(running.get()));
                sleep(Duration::from_millis(1 + item % 3)).await;
                running.set(running.get() - 1);
                Ok::<_, ()>(item)
            };
            let results: Vec<u64> = in_order(0..50, concurrency, step).try_collect().await.unwrap();
            assert_eq!((results, most.get()), ((0..50).collect(), expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_ends_the_stream_before_earlier_items_and_drops_what_runs() {
        let dropped = RefCell::new(Vec::new());
        let step = async |item: u64| {
            let mut guard = Guard(item, &dropped, false);
            sleep(Duration::from_secs([0, 1000, 1, 1000, 1000][item as usize])).await;
            guard.2 = true;
            if item == 2 { Err("two") } else { Ok(item) }
        };
        let began = tokio::time::Instant::now();
        let results: Vec<_> = in_order(0..5, 4, step).collect().await;
        assert_eq!(results, [Ok(0), Err("two")]);
        assert_eq!(began.elapsed(), Duration::from_secs(1));
        dropped.borrow_mut().sort_unstable();
        assert_eq!(*dropped.borrow(), [1, 3, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_the_stream_drops_what_runs() {
        let dropped = RefCell::new(Vec::new());
        let step = async |item: u64| {
            let mut guard = Guard(item, &dropped, false);
            // Not ready at once: then the others would not have begun.
            sleep(Duration::from_secs(1 + 1000 * item)).await;
            guard.2 = true;
            Ok::<_, ()>(item)
        };
        let mut results = Box::pin(in_order(0..3, 3, step));
        assert_eq!(results.next().await, Some(Ok(0)));
        assert!(dropped.borrow().is_empty());
        drop(results);
        dropped.borrow_mut().sort_unstable();
        assert_eq!(*dropped.borrow(), [1, 2]);
    }
}
