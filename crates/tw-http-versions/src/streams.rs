//! Parts that HTTP/2 and HTTP/3 have in common: connections and their requests, heads as lists of fields, bodies, responses.

mod body_part;
mod client_cost;
mod connection_end;
mod connection_requests;
mod connection_settings;
mod intent;
mod pieces;
mod priority_updates;
mod protocol;
mod received_head;
mod request_head;
mod request_stream;
mod reset_reason;
mod response_head;
mod send_response;
mod serve_connection;
mod serve_request;
mod shutdown;
mod stream_body;
mod stream_end;
mod stream_loss;
#[cfg(test)]
mod tests;
mod tunnel_input;
mod write_buffer;

pub(super) use self::body_part::BodyPart;
pub(super) use self::client_cost::{Abuse, ClientCost};
pub(super) use self::connection_end::{EndReason, log_end};
pub(super) use self::connection_requests::{ConnectionRequests, IdleEnd};
pub(super) use self::connection_settings::ConnectionSettings;
pub(super) use self::intent::Intent;
pub(super) use self::priority_updates::{PriorityUpdates, UNSET_PRIORITY};
pub(super) use self::protocol::StreamProtocol;
pub(super) use self::received_head::ReceivedHead;
pub(super) use self::request_stream::{Progress, RequestStream, StreamState};
pub(super) use self::reset_reason::ResetReason;
pub(super) use self::send_response::{CLIENT_CLOSED_REQUEST, send_early_hints, send_response};
pub(super) use self::serve_connection::{IdleStep, StreamConnection, serve_connection};
#[cfg(test)]
pub(super) use self::serve_request::serve_request;
pub(super) use self::shutdown::{Shutdown, Stage};
pub(super) use self::stream_loss::StreamLoss;
pub(super) use self::tunnel_input::{TunnelInput, tunnel_error};

tw_base::limits! {
    /// Limits of connections that have streams.
    pub(crate) const LIMITS;

    use client_cost::LIMITS;
    use priority_updates::LIMITS;
}
