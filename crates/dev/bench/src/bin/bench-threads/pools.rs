//! Pools that run the parts of a job: the engine's own, and forms of rayon.

#![expect(unsafe_code, reason = "kernels trust a pool to do each part once")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use nsbridge_kernels::ThreadPool;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

use crate::THREADS;

/// Way to run the parts of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Own,
    InstallEach,
    Iterator,
    IteratorOfOne,
    Counter,
    Halves,
}

impl Form {
    const ALL: [Self; 6] = [
        Self::Own,
        Self::InstallEach,
        Self::Iterator,
        Self::IteratorOfOne,
        Self::Counter,
        Self::Halves,
    ];

    /// Returns the last part of the names of its rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::InstallEach => "install",
            Self::Iterator => "par_iter",
            Self::IteratorOfOne => "par_iter_1",
            Self::Counter => "broadcast",
            Self::Halves => "broadcast_halves",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Own => "the engine's own pool",
            Self::InstallEach => "rayon, `install` for each section, from a thread outside",
            Self::Iterator => "rayon, `install` for the step, a parallel iterator over the parts",
            Self::IteratorOfOne => "the same, split down to single parts",
            Self::Counter => "rayon, `install` for the step, `broadcast`, parts from one counter",
            Self::Halves => "the same, each thread with a fixed half of the parts",
        }
    }
}

/// Pool of one form.
pub(crate) struct Pool {
    pub(crate) form: Form,
    /// Pool that the kernels see.
    kernels: ThreadPool,
    rayon: Option<Arc<rayon::ThreadPool>>,
}

impl Pool {
    fn new(form: Form) -> Result<Self> {
        if form == Form::Own {
            return Ok(Self { form, kernels: ThreadPool::new(THREADS), rayon: None });
        }
        let rayon = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(THREADS).build()?);
        let threads = rayon.clone();
        let run = move |parts, work: &(dyn Fn(usize) + Sync)| match form {
            Form::InstallEach => {
                threads.install(|| (0..parts).into_par_iter().for_each(work));
            }
            Form::IteratorOfOne => {
                (0..parts).into_par_iter().with_max_len(1).for_each(work);
            }
            Form::Counter => {
                let next = AtomicUsize::new(0);
                rayon::broadcast(|_| {
                    loop {
                        let part = next.fetch_add(1, Ordering::Relaxed);
                        if part >= parts {
                            break;
                        }
                        work(part);
                    }
                });
            }
            Form::Halves => {
                rayon::broadcast(|thread| {
                    let before = |thread| thread * parts / THREADS;
                    (before(thread.index())..before(thread.index() + 1)).for_each(work);
                });
            }
            Form::Own | Form::Iterator => (0..parts).into_par_iter().for_each(work),
        };
        // SAFETY: iterators, counter and halves give each part to one thread, and rayon returns
        // after the last of them.
        let kernels = unsafe { ThreadPool::on(THREADS, run) };
        Ok(Self { form, kernels, rayon: Some(rayon) })
    }

    /// Runs `work` on the thread from which the form begins jobs: a thread of rayon's, or this one.
    pub(crate) fn enter<T: Send>(&mut self, work: impl FnOnce(&mut ThreadPool) -> T + Send) -> T {
        match &self.rayon {
            Some(rayon) if self.form != Form::InstallEach => {
                rayon.install(|| work(&mut self.kernels))
            }
            _ => work(&mut self.kernels),
        }
    }
}

/// Creates a pool of each form, the engine's own first.
pub(crate) fn all() -> Result<Vec<Pool>> {
    Form::ALL.into_iter().map(Pool::new).collect()
}
