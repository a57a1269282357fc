//! Connections without requests, which are closed whatever else their clients send.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use nsbridge_gateway_access::Meter;
use tokio::time::{Instant, sleep_until};
use tower_service::Service;

/// Time without a new request after which a connection that has had one is closed.
const IDLE: Duration = Duration::from_secs(120);

/// Routes of one connection, which note the time of each request.
#[derive(Clone, Debug)]
pub(super) struct TrackedRoutes {
    routes: Router,
    requests: Requests,
    meter: Meter,
}

/// Time of the last request of a connection.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    began: Instant,
    /// Milliseconds from the beginning to the last request, plus one; 0 if there was none.
    last: Arc<AtomicU64>,
}

impl TrackedRoutes {
    pub(super) fn new(routes: Router, meter: Meter) -> (Self, Requests) {
        let requests = Requests { began: Instant::now(), last: Arc::default() };
        (Self { routes, requests: requests.clone(), meter }, requests)
    }
}

impl Requests {
    /// Waits until the connection has had no request for long: within `first` of its beginning, or
    /// for two minutes.
    pub(super) async fn quiet(self, first: Duration) {
        loop {
            let last = self.last.load(Ordering::Relaxed);
            let due = match last.checked_sub(1) {
                None => self.began + first,
                Some(last) => self.began + Duration::from_millis(last) + IDLE,
            };
            if Instant::now() >= due {
                return;
            }
            sleep_until(due).await;
        }
    }

    /// Returns true if the connection has had a request.
    pub(super) fn were_made(&self) -> bool {
        self.last.load(Ordering::Relaxed) > 0
    }

    fn note(&self) {
        let millis = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.last.store(millis + 1, Ordering::Relaxed);
    }
}

impl<B> Service<Request<B>> for TrackedRoutes
where
    Router: Service<Request<B>>,
{
    type Response = <Router as Service<Request<B>>>::Response;
    type Error = <Router as Service<Request<B>>>::Error;
    type Future = <Router as Service<Request<B>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.routes.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        self.requests.note();
        request.extensions_mut().insert(self.meter.clone());
        self.routes.call(request)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::Router;
    use tokio::time::{Instant, advance};

    use super::{IDLE, Meter, TrackedRoutes};

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_quiet_long_after_its_last_request() {
        let second = Duration::from_secs(1);
        let (_, requests) = TrackedRoutes::new(Router::new(), Meter::default());
        let began = Instant::now();
        requests.clone().quiet(10 * second).await;
        assert_eq!(began.elapsed().as_secs(), 10);
        let (_, requests) = TrackedRoutes::new(Router::new(), Meter::default());
        let began = Instant::now();
        advance(5 * second).await;
        requests.note();
        requests.clone().quiet(10 * second).await;
        assert_eq!(began.elapsed().as_secs(), 5 + IDLE.as_secs());
    }
}
