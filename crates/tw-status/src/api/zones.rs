//! Zones of the servers of `stream` and `mail` as JSON.

use std::collections::BTreeMap;

use serde::Serialize;
use tw_mail::Mail;
use tw_request::request::Request;
use tw_stream::Stream;

use super::response::{ApiError, json};
use crate::session_zone::{SessionZone, ZoneProtocol};

/// A zone; the names are nginx's.
#[derive(Serialize)]
struct ZoneView<D> {
    processing: u64,
    connections: u64,
    sessions: SessionsView,
    discarded: u64,
    received: u64,
    sent: u64,
    #[serde(flatten)]
    details: D,
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

/// Numbers that no protocol but `mail` has.
#[derive(Serialize)]
pub(super) struct MailView {
    logins: BTreeMap<&'static str, u64>,
    failures: BTreeMap<&'static str, u64>,
}

/// Numbers that no other protocol has.
#[derive(Serialize)]
pub(super) struct NoDetails {}

/// A protocol whose zones can be shown.
pub(super) trait ShownZone: ZoneProtocol {
    /// Numbers that only its zones have.
    type View: Serialize;

    /// Numbers of `zone` that only this protocol has.
    fn details(zone: &SessionZone<Self>) -> Self::View;
}

impl ShownZone for Stream {
    type View = NoDetails;

    fn details(_: &SessionZone<Self>) -> NoDetails {
        NoDetails {}
    }
}

impl ShownZone for Mail {
    type View = MailView;

    fn details(zone: &SessionZone<Self>) -> MailView {
        MailView {
            logins: zone.logins().map(|(result, count)| (result.word(), count)).collect(),
            failures: zone.failures().map(|(status, count)| (status.cause(), count)).collect(),
        }
    }
}

/// All zones of a protocol by their names.
pub(super) fn all<P: ShownZone>(r: &Request) -> Vec<u8> {
    let zones = r.generation().process.shared_objects.of_type::<SessionZone<P>>();
    json(&zones.into_iter().map(|(_, zone)| (&*zone.name, view(zone))).collect::<BTreeMap<_, _>>())
}

/// Description of one zone of a protocol.
pub(super) fn zone<P: ShownZone>(r: &Request, name: &str) -> Result<Vec<u8>, ApiError> {
    let zones = &r.generation().process.shared_objects;
    let zone = zones.find::<SessionZone<P>>(name.as_bytes()).ok_or(ApiError::NO_ZONE)?;
    Ok(json(&view(&zone)))
}

fn view<P: ShownZone>(zone: &SessionZone<P>) -> ZoneView<P::View> {
    let now = zone.snapshot();
    let [successful, client_error, server_error] = now.sessions;
    let total = now.sessions.iter().sum();
    ZoneView {
        processing: now.active,
        connections: now.accepted,
        sessions: SessionsView { successful, client_error, server_error, total },
        discarded: now.discarded,
        received: now.received,
        sent: now.sent,
        details: P::details(zone),
    }
}
