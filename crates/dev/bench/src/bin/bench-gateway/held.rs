//! Number of streams that the gateway holds at the pace of a reader.

use std::time::{Duration, Instant};

use anyhow::Result;
use nsbridge_bench::report::{Report, Row, median, percentile};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::gathered;
use crate::http::{Call, Stream};
use crate::place::Place;
use crate::words::Pace;

/// Time between two tokens of a stream: 10 tokens per second.
const EVERY: Duration = Duration::from_millis(100);

/// Tokens of a stream.
const TOKENS: usize = 60;

/// Numbers of streams that are tried, in this order.
const STREAMS: [usize; 8] = [50, 100, 200, 300, 400, 600, 800, 1000];

/// Maximum ratio of the 99th percentile of the gaps to their median.
const MAX_GAP_RATIO: f64 = 2.0;

/// Measures the highest number of streams with even gaps.
pub(crate) async fn streams(url: &str, report: &mut Report) -> Result<()> {
    let most = STREAMS.iter().copied().max().unwrap_or(1);
    let place = Place::start(url, Pace { tasks: most, every: EVERY }).await?;
    let (mut held, mut ratio) = (0, None);
    for streams in STREAMS {
        let mut gaps = gaps(&place, streams).await?;
        let (middle, late) = (median(&mut gaps), percentile(&mut gaps, 0.99));
        eprintln!("{streams} streams: gaps of {middle:.0} ms, p99 {late:.0} ms");
        if late > MAX_GAP_RATIO * middle {
            break;
        }
        (held, ratio) = (streams, Some(late / middle));
    }
    place.stop().await?;
    let ratio = ratio.map_or("none held".to_owned(), |ratio| format!("{ratio:.2}"));
    report.push(Row {
        name: "gateway.streams_at_10_tokens_per_s".to_owned(),
        value: held as f64,
        unit: "streams",
        better: "higher",
        peer: Some(format!("p99 of the gaps over their median {ratio}, at most {MAX_GAP_RATIO}")),
        peer_value: None,
        ratio: None,
    });
    Ok(())
}

/// Returns the times between tokens in ms, over all of these streams.
async fn gaps(place: &Place, streams: usize) -> Result<Vec<f64>> {
    let mut tasks = JoinSet::new();
    for number in 0..streams {
        let (address, call) = (place.address, Call::completion(&place.model, TOKENS));
        // Streams that begin together would also have their tokens together.
        let later = EVERY.mul_f64(10.0 * number as f64 / streams as f64);
        tasks.spawn(async move {
            sleep(later).await;
            let (mut times, mut gaps) = (None::<Instant>, Vec::with_capacity(TOKENS));
            let mut stream = Stream::connect(address).await?;
            let gap = |now: Instant| {
                if let Some(before) = times.replace(now) {
                    gaps.push((now - before).as_secs_f64() * 1000.0);
                }
            };
            stream.pieces(&call, gap).await?;
            anyhow::Ok(gaps)
        });
    }
    gathered(tasks).await
}
