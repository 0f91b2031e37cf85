//! Filter of a session over datagrams: each datagram of either side is a piece of its own, and so is each that the filter sends.

use std::collections::VecDeque;
use std::task::Context;

use bytes::Bytes;
use tw_connect::relay::RelaySide;

use crate::plan::FilterPiece;
use crate::session::StreamSession;
use crate::session_filter::{FilterOutput, FilterQueue, check_output};
use crate::status::SessionStatus;

/// Filter of the datagrams of one session.
pub(super) struct DatagramFilter {
    queue: FilterQueue,
    /// PROXY protocol header, which the first datagram for the server has in front.
    header: Vec<u8>,
}

impl DatagramFilter {
    pub(super) fn new(queue: FilterQueue, header: Vec<u8>) -> Self {
        Self { queue, header }
    }

    /// Returns true if the filter has not seen all datagrams of this side.
    pub(super) fn is_busy(&self, side: RelaySide) -> bool {
        self.queue.is_busy(side)
    }

    /// Gives a datagram of the client to the filter, or to the server if the filter does not want it.
    ///
    /// # Errors
    /// End of the session, whose reason was logged.
    pub(super) fn take_from_client(
        &mut self,
        s: &StreamSession,
        datagram: Bytes,
        outgoing: &mut VecDeque<Bytes>,
    ) -> Result<(), SessionStatus> {
        if !self.queue.wants(RelaySide::Client) {
            outgoing.push_back(self.with_header(datagram));
            return Ok(());
        }
        self.queue.push(s, RelaySide::Client, FilterPiece { data: datagram, is_last: false })
    }

    /// Returns true if the filter wants the datagrams of the server.
    pub(super) fn wants_from_server(&self) -> bool {
        self.queue.wants(RelaySide::Server)
    }

    /// Gives datagrams of the server to the filter, each of them `size` bytes long but the last one.
    ///
    /// # Errors
    /// End of the session, whose reason was logged.
    pub(super) fn take_from_server(
        &mut self,
        s: &StreamSession,
        datagrams: &[u8],
        size: Option<u16>,
    ) -> Result<(), SessionStatus> {
        let size = size.map_or(datagrams.len(), usize::from).max(1);
        for datagram in datagrams.chunks(size) {
            let data = Bytes::copy_from_slice(datagram);
            self.queue.push(s, RelaySide::Server, FilterPiece { data, is_last: false })?;
        }
        Ok(())
    }

    /// Takes what the filter sends: to the server by way of `outgoing`. Returns the datagrams for the client.
    ///
    /// # Errors
    /// End of the session, whose reason was logged.
    pub(super) fn poll(
        &mut self,
        s: &mut StreamSession,
        cx: &mut Context<'_>,
        outgoing: &mut VecDeque<Bytes>,
    ) -> Result<Vec<Bytes>, SessionStatus> {
        let mut to_server = Vec::new();
        let mut to_client = Vec::new();
        self.queue.poll(s, cx, |output| match output {
            FilterOutput::Bytes(_, data) if data.is_empty() => {}
            FilterOutput::Bytes(RelaySide::Server, data) => to_server.push(data),
            FilterOutput::Bytes(RelaySide::Client, data) => to_client.push(data),
            FilterOutput::End(_) => {}
        })?;
        for datagram in to_server {
            let datagram = self.with_header(datagram);
            outgoing.push_back(datagram);
        }
        check_output(s, outgoing.iter().map(Bytes::len).sum())?;
        Ok(to_client)
    }

    fn with_header(&mut self, datagram: Bytes) -> Bytes {
        match std::mem::take(&mut self.header) {
            header if header.is_empty() => datagram,
            mut header => {
                header.extend_from_slice(&datagram);
                header.into()
            }
        }
    }
}
