//! Codec of a tunnel (CONNECT, RFC 9110 section 9.3.6): bytes pass in both directions unparsed.

use bytes::Bytes;
use tw_connect::failure::UpstreamFailure;

use super::{Codec, Event};
use tw_request::upstream_response::UpstreamResponse;

/// Reads nothing.
#[derive(Clone, Copy, Debug)]
pub struct ConnectTunnel;

impl Codec for ConnectTunnel {
    fn read(&mut self, input: &mut Bytes, _: &mut UpstreamResponse) -> Result<Event, UpstreamFailure> {
        let piece = std::mem::take(input);
        Ok(if piece.is_empty() { Event::NeedMore } else { Event::Body(piece) })
    }

    fn closed(&mut self) -> Result<(), UpstreamFailure> {
        Ok(())
    }

    fn remaining(&self) -> Option<u64> {
        None
    }

    fn keeps_alive(&self) -> bool {
        false
    }

    fn is_connect(&self) -> bool {
        true
    }

    fn is_tunnel(&self) -> bool {
        true
    }
}
