//! `/v1/sealed`: frames of proxies, passed on unread ([`crate::sealed::proxy`] is the other end).

mod request;
mod session;

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::response::Response;
use nsbridge_gateway_access::{Caller, Meter};

use self::session::Session;
use crate::error::{ApiError, Result};
use crate::sealed::wire::MOST_MESSAGE;
use crate::state::App;

/// Opens a session of a proxy.
pub(crate) async fn open(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(meter): Extension<Meter>,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response> {
    let Some(sealed) = app.sealed.clone() else {
        let message = "this gateway takes no sealed requests: `[server] sealed` is false";
        return Err(ApiError::unserved(message));
    };
    let upgrade = upgrade.map_err(|_| {
        let message = "this page is for a proxy: run `nsbridge proxy`";
        ApiError::bad_request(message).coded("upgrade_required")
    })?;
    let place = sealed.places.account(&caller.tenant);
    if !place.take(1) {
        let message = "as many proxies of this tenant are connected as this gateway takes";
        return Err(ApiError::unavailable(message, std::time::Duration::from_secs(5)));
    }
    let away = |_| ApiError::from(nsbridge_client::Error::Closed);
    let connection = sealed.broker.connect("nsbridge gateway relay").await.map_err(away)?;
    let upgrade = upgrade.max_message_size(MOST_MESSAGE).max_frame_size(MOST_MESSAGE);
    let memory = app.memory.account(&caller.tenant);
    Ok(upgrade.on_upgrade(move |socket| async move {
        meter.start(memory);
        let session = Session::new(app, caller, sealed, connection, meter);
        session.run(socket).await;
        drop(place);
    }))
}
