//! Zones of `stream` servers as JSON.

use std::collections::BTreeMap;

use serde::Serialize;
use tw_server::http::request::Request;

use super::response::{ApiError, json};
use crate::stream::stream_status_zone::StreamZone;

/// A zone; the names are nginx's.
#[derive(Serialize)]
struct ZoneView {
    processing: u64,
    connections: u64,
    sessions: SessionsView,
    discarded: u64,
    received: u64,
    sent: u64,
}

#[derive(Serialize)]
struct SessionsView {
    #[serde(rename = "2xx")]
    successful: u64,
    #[serde(rename = "4xx")]
    client_error: u64,
    #[serde(rename = "5xx")]
    server_error: u64,
    total: u64,
}

/// All zones by their names.
pub(super) fn all(r: &Request) -> Vec<u8> {
    let zones = r.generation().process.shared_objects.of_type::<StreamZone>();
    json(&zones.into_iter().map(|(_, zone)| (&*zone.name, ZoneView::of(zone))).collect::<BTreeMap<_, _>>())
}

/// Description of one zone.
pub(super) fn zone(r: &Request, name: &str) -> Result<Vec<u8>, ApiError> {
    let zone =
        r.generation().process.shared_objects.find::<StreamZone>(name.as_bytes()).ok_or(ApiError::NO_ZONE)?;
    Ok(json(&ZoneView::of(&zone)))
}

impl ZoneView {
    fn of(zone: &StreamZone) -> Self {
        let now = zone.snapshot();
        let [successful, client_error, server_error] = now.sessions;
        let total = now.sessions.iter().sum();
        Self {
            processing: now.active,
            connections: now.accepted,
            sessions: SessionsView { successful, client_error, server_error, total },
            discarded: now.discarded,
            received: now.received,
            sent: now.sent,
        }
    }
}
