//! `gunzip`: unpacks gzip responses for clients that do not accept gzip (nginx: ngx_http_gunzip_filter_module). Header
//! filter, before everything that reads a body.
//!
//! Output is bounded by the room for one piece, whatever the ratio of the packed bytes.

mod members;

use std::io;
use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use tw_conf::{Buffers, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_http::HeaderName;
use tw_module_support::changed_body::{refuse_ranges, remove_length};
use tw_phases::content_coding::is_gzip_allowed;
use tw_request::body::{Body, Pull};
use tw_request::plan::{HeaderFilter, LocalFuture, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use zlib_rs::{InflateError, InflateFlush};

use self::members::{MemberState, Members};

const ALL: u32 = HTTP | SERVER | LOCATION;
const BUFFERS: Buffers = Buffers { count: 32, size: 4096 };
/// Bytes of packed input that are taken at a time.
const PIECE: usize = 16 << 10;
/// zlib's number for "neither input nor output was of use".
const BUF_ERROR: i32 = -5;

/// `gunzip` as written.
#[derive(Default)]
pub(crate) struct Raw {
    on: Setting<bool>,
    buffers: Setting<Buffers>,
}

/// `gunzip` at one location.
pub(crate) struct Gunzip {
    on: bool,
    buffers: Buffers,
}

impl Settings<Http> for Gunzip {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::flag("gunzip", ALL)
            .default("off")
            .doc("Unpacks responses packed with gzip for clients that do not accept it.")
            .set(|raw, node, _| raw.on.set_flag(node)),
        record::buffers("gunzip_buffers", ALL)
            .default("32 4k")
            .doc("Maximum number of bytes that are decompressed at a time: number times size.")
            .set(|raw, node, _| raw.buffers.set_buffers(node)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self {
            on: raw.on.or(outer.map(|o| o.on), false),
            buffers: raw.buffers.or(outer.map(|o| o.buffers), BUFFERS),
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.on {
            plan.add_header_filter(self.clone());
        }
    }
}

impl HeaderFilter for Gunzip {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        let coding = r.response.fields.get_known(HeaderName::ContentEncoding).unwrap_or_default();
        if !coding.eq_ignore_ascii_case(b"gzip") {
            return body;
        }
        r.response.varies_by_coding = true;
        if is_gzip_allowed(r) {
            return body;
        }
        r.response.fields.remove_known(HeaderName::ContentEncoding);
        remove_length(r);
        refuse_ranges(r);
        r.response.weaken_etag();
        Body::Pull(Box::new(Unpacked {
            body,
            room: self.buffers.count.saturating_mul(self.buffers.size),
            input: Bytes::new(),
            members: Members::new(),
            is_over: false,
        }))
    }
}

/// A body that is unpacked as it is pulled.
struct Unpacked {
    body: Body,
    /// Most bytes that are made at a time.
    room: usize,
    /// Packed bytes that were pulled and not yet taken.
    input: Bytes,
    members: Members,
    /// Set at the end of the packed body.
    is_over: bool,
}

impl Pull for Unpacked {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            if self.is_over {
                return Ok(None);
            }
            if self.input.is_empty() {
                match self.body.next(PIECE, r).await? {
                    Some(piece) => self.input = piece,
                    None if self.members.place() == MemberState::Ended => {
                        self.is_over = true;
                        return Ok(None);
                    }
                    None => return self.rest(want),
                }
            }
            // Input without output gives an empty piece, so that other tasks run before the next one.
            self.unpack(want).map(Some)
        })
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        self.body.run_ahead(cx);
    }

    fn flushes(&self) -> bool {
        self.body.flushes()
    }

    fn holds_head(&self) -> bool {
        self.body.holds_head()
    }
}

impl Unpacked {
    /// Unpacks as much of the input as there is room for.
    fn unpack(&mut self, want: usize) -> io::Result<Bytes> {
        self.members.unpack(&mut self.input, self.room.min(want)).map(Bytes::from).map_err(|error| {
            // nginx's message has the flush mode that it would have passed to zlib.
            let flush = if self.body.is_empty() { InflateFlush::Finish } else { InflateFlush::NoFlush };
            io::Error::other(format!("inflate() failed: {}, {}", flush as i32, code(error)))
        })
    }

    /// Output left in the decoder when there is no more input: nothing, if the body is whole.
    fn rest(&mut self, want: usize) -> io::Result<Option<Bytes>> {
        let out = self.unpack(want)?;
        if out.is_empty() && self.members.place() == MemberState::Open {
            return Err(io::Error::other(format!("inflate() returned {BUF_ERROR} on response end")));
        }
        Ok(Some(out))
    }
}

/// zlib's number of an error.
fn code(error: InflateError) -> i32 {
    match error {
        InflateError::NeedDict { .. } => 2,
        InflateError::StreamError => -2,
        InflateError::DataError => -3,
        InflateError::MemError => -4,
    }
}
