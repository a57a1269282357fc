//! Pieces that hold the time at which they were made.

use nsbridge_handler::{AsyncHandler, AsyncJob, Finish, Models, Result};
use rustix::time::{ClockId, clock_gettime};

use crate::flood::Order;

/// Returns the time of the clock that Python calls `time.monotonic_ns`.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns a piece of this many bytes.
fn piece(bytes: usize) -> String {
    let mut piece = format!("@{} ", now());
    while piece.len() < bytes {
        piece.push('x');
    }
    piece
}

/// Returns the times in milliseconds from the making of the pieces in `data` until `received`.
pub(crate) fn delays(data: &[u8], received: u64) -> impl Iterator<Item = f64> {
    data.split(|byte| *byte == b'@').skip(1).map(move |rest| {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
        let made = digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
        received.saturating_sub(made) as f64 / 1e6
    })
}

/// Handler in Rust that does what `model/model.py` does.
#[derive(Debug)]
pub(crate) struct Stamped;

impl AsyncHandler for Stamped {
    type Options = ();
    type Input = Order;
    type Output = String;

    async fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    async fn handle(&self, order: Order, job: &mut AsyncJob<String>) -> Result<Finish> {
        for _ in 0..order.pieces {
            if order.every_ms > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(order.every_ms)).await;
            }
            job.emit(piece(order.bytes)).await?;
        }
        Ok(Finish::STOP)
    }

    fn tasks(&self) -> usize {
        crate::STREAMS
    }
}

#[cfg(test)]
mod tests {
    use super::{delays, now, piece};

    #[test]
    fn a_piece_tells_its_age_wherever_it_stands() {
        let before = now();
        let two = format!("data: {}\n{}", piece(64), piece(64));
        assert_eq!(two.len(), 6 + 64 + 1 + 64);
        let ages: Vec<f64> = delays(two.as_bytes(), before + 5_000_000).collect();
        assert!(ages.len() == 2 && ages.iter().all(|age| *age <= 5.0), "{ages:?}");
    }
}
