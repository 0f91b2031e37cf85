//! Unidirectional streams of the peer (RFC 9114 section 6.2, RFC 9204 section 4.2).

use crate::ErrorCode;
use crate::config::UNKNOWN_STREAMS_MAX;
use crate::control::ControlStream;
use crate::error::{ConnectionError, qpack_error};
use crate::frame::stream_type;
use crate::qpack::decoder_stream::DecoderStream;
use crate::settings::End;
use crate::state::State;
use crate::transport::Signal;
use crate::varint;

/// A unidirectional stream of the peer.
#[derive(Debug)]
pub(crate) enum Unidirectional {
    /// Beginning of its type, and the number of bytes.
    Begin([u8; varint::SIZE_MAX], usize),
    Control(Box<ControlStream>),
    QpackEncoder,
    QpackDecoder(DecoderStream),
    /// Unknown type: its bytes are discarded.
    Unknown,
}

/// Streams of which each end has one, for as long as the connection lasts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Critical {
    Control,
    QpackEncoder,
    QpackDecoder,
}

impl Critical {
    pub(crate) const COUNT: usize = 3;
}

impl State {
    pub(crate) fn receive_unidirectional(
        &mut self,
        id: u64,
        mut bytes: &[u8],
        fin: bool,
    ) -> Result<(), ConnectionError> {
        let unidirectional = self.unidirectional.remove(&id);
        let mut stream = unidirectional.unwrap_or(Unidirectional::Begin([0; varint::SIZE_MAX], 0));
        if let Unidirectional::Begin(..) = stream {
            stream = self.begin_unidirectional(id, stream, &mut bytes)?;
        }
        match &mut stream {
            Unidirectional::Begin(..) | Unidirectional::Unknown => {}
            Unidirectional::Control(control) => self.receive_control(control, bytes)?,
            Unidirectional::QpackEncoder => {
                while !bytes.is_empty() {
                    let before = self.decoder.inserted();
                    self.decoder.receive_one(&mut bytes).map_err(qpack_error)?;
                    // Blocked sections are resumed before the next insertion, which may evict an entry that they need.
                    if !self.blocked.is_empty() && self.decoder.inserted() > before {
                        self.resume_blocked()?;
                    }
                }
                self.decoder.announce().map_err(qpack_error)?;
            }
            Unidirectional::QpackDecoder(decoder) => decoder.receive(bytes).map_err(qpack_error)?,
        }
        self.unidirectional.insert(id, stream);
        if fin { self.close_unidirectional(id) } else { Ok(()) }
    }

    /// Reads the type of a stream, which may be split at any position.
    fn begin_unidirectional(
        &mut self,
        id: u64,
        mut stream: Unidirectional,
        bytes: &mut &[u8],
    ) -> Result<Unidirectional, ConnectionError> {
        while let Unidirectional::Begin(head, came) = &mut stream
            && let Some((first, rest)) = bytes.split_first()
        {
            *bytes = rest;
            if let Some(place) = head.get_mut(*came) {
                *place = *first;
            }
            *came += 1;
            if let Some(which) = varint::take(&mut head.get(..*came).unwrap_or(head)) {
                stream = self.open_unidirectional(id, which)?;
            }
        }
        Ok(stream)
    }

    fn open_unidirectional(&mut self, id: u64, which: u64) -> Result<Unidirectional, ConnectionError> {
        match which {
            stream_type::CONTROL => {
                self.open_critical(Critical::Control)?;
                Ok(Unidirectional::Control(Box::default()))
            }
            stream_type::QPACK_ENCODER => {
                self.open_critical(Critical::QpackEncoder)?;
                Ok(Unidirectional::QpackEncoder)
            }
            stream_type::QPACK_DECODER => {
                self.open_critical(Critical::QpackDecoder)?;
                Ok(Unidirectional::QpackDecoder(DecoderStream::default()))
            }
            stream_type::PUSH => Err(match self.end {
                End::Server => {
                    ConnectionError::Local(ErrorCode::STREAM_CREATION_ERROR, "opened a push stream")
                }
                // This end has allowed no push at all.
                End::Client => ConnectionError::Local(ErrorCode::ID_ERROR, "opened a push stream"),
            }),
            _ => {
                self.unknown_streams += 1;
                if self.unknown_streams > UNKNOWN_STREAMS_MAX {
                    let words = "opened too many streams of unknown types";
                    return Err(ConnectionError::Local(ErrorCode::EXCESSIVE_LOAD, words));
                }
                let code = ErrorCode::STREAM_CREATION_ERROR;
                self.signals.push_back(Signal::StopSending { stream: id, code });
                Ok(Unidirectional::Unknown)
            }
        }
    }

    fn open_critical(&mut self, which: Critical) -> Result<(), ConnectionError> {
        match self.critical.get_mut(which as usize) {
            Some(is_open @ false) => {
                *is_open = true;
                Ok(())
            }
            _ => {
                let words = match which {
                    Critical::Control => "opened a second control stream",
                    Critical::QpackEncoder => "opened a second qpack encoder stream",
                    Critical::QpackDecoder => "opened a second qpack decoder stream",
                };
                Err(ConnectionError::Local(ErrorCode::STREAM_CREATION_ERROR, words))
            }
        }
    }

    /// Forgets a stream that has ended. The connection cannot go on without a critical one.
    pub(crate) fn close_unidirectional(&mut self, id: u64) -> Result<(), ConnectionError> {
        match self.unidirectional.remove(&id) {
            None | Some(Unidirectional::Begin(..) | Unidirectional::Unknown) => Ok(()),
            Some(_) => {
                Err(ConnectionError::Local(ErrorCode::CLOSED_CRITICAL_STREAM, "closed critical stream"))
            }
        }
    }
}
