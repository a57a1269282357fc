//! Pooling of a text's final hidden states into one vector.
//!
//! The rows of hidden states are read as the chunks of the text are run. Their sum is in f64 and in
//! order of position, so the bits of the mean do not depend on the chunks.

use std::fmt;

use futures_channel::oneshot;
use nsbridge_handler::{Error, Result};

use crate::options::Pooling;

/// Vector of one text, while its rows are computed.
pub(crate) struct Pool {
    pooling: Pooling,
    /// Number of tokens of the text, at least one.
    len: usize,
    /// First row that is still needed.
    next: usize,
    /// Sums of the rows so far.
    sums: Vec<f64>,
    /// `None` once the vector was sent.
    done: Option<oneshot::Sender<Vec<f32>>>,
}

impl Pool {
    /// Creates the pool of a text of `len` tokens, and the receiver of its vector.
    pub(crate) fn new(pooling: Pooling, len: usize) -> (Self, oneshot::Receiver<Vec<f32>>) {
        let (done, vector) = oneshot::channel();
        let next = match pooling {
            Pooling::Last => len - 1,
            Pooling::Mean => 0,
        };
        (Self { pooling, len, next, sums: Vec::new(), done: Some(done) }, vector)
    }

    /// Returns the first row that is still needed, or `None` if no further one is.
    pub(crate) fn first_row(&self) -> Option<usize> {
        (self.next < self.len).then_some(self.next)
    }

    /// Returns how many rows are needed of the first `run` tokens of the text.
    pub(crate) fn rows(&self, run: usize) -> usize {
        run.min(self.len).saturating_sub(self.next)
    }

    /// Reads the next rows of hidden states, and sends the vector after the last one.
    ///
    /// # Errors
    ///
    /// Returns an error if the vector has elements that are no numbers.
    pub(crate) fn read(&mut self, rows: &[&[f32]]) -> Result<()> {
        for row in rows {
            self.sums.resize(row.len(), 0.0);
            self.sums.iter_mut().zip(*row).for_each(|(sum, state)| *sum += f64::from(*state));
            self.next += 1;
        }
        if self.next < self.len {
            return Ok(());
        }
        let Some(done) = self.done.take() else { return Ok(()) };
        let count = match self.pooling {
            Pooling::Last => 1.0,
            Pooling::Mean => self.len as f64,
        };
        let vector: Vec<f32> = self.sums.iter().map(|sum| (sum / count) as f32).collect();
        if !vector.iter().all(|element| element.is_finite()) {
            return Err(Error::retry("the model's hidden states are no numbers"));
        }
        // A caller that is gone needs no vector.
        let _ = done.send(vector);
        Ok(())
    }
}

impl fmt::Debug for Pool {
    /// Omits the vector, because it tells about the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{Pool, Pooling};

    const ROWS: [&[f32]; 3] = [&[1.0, 8.0], &[2.0, -2.0], &[6.0, 3.0]];

    #[test]
    fn the_last_row_or_the_mean_of_all_is_the_vector_however_they_come() {
        for (pooling, first, vector) in
            [(Pooling::Last, 2, [6.0, 3.0]), (Pooling::Mean, 0, [3.0, 3.0])]
        {
            for chunk in 1..=3 {
                let (mut pool, mut received) = Pool::new(pooling, 3);
                assert_eq!(pool.first_row(), Some(first));
                for run in (0..3).step_by(chunk).map(|begun| (begun + chunk).min(3)) {
                    let (from, count) = (pool.first_row().unwrap(), pool.rows(run));
                    pool.read(&ROWS[from..from + count]).unwrap();
                }
                assert_eq!(pool.first_row(), None);
                assert_eq!(received.try_recv().unwrap().unwrap(), vector);
            }
        }
    }

    #[test]
    fn a_vector_of_no_numbers_is_not_sent() {
        let (mut pool, mut received) = Pool::new(Pooling::Last, 1);
        assert!(pool.read(&[&[f32::NAN]]).is_err());
        drop(pool);
        assert!(received.try_recv().is_err());
    }
}
