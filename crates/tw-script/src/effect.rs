//! Changes that a script makes, which need no answer. The host applies them in their order, before it answers a later operation of the same
//! call, and refuses those that the kind of the call does not allow.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::bounded;

/// Change without an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Line of the error log: `r.log`, `r.warn`, `r.error`, `ngx.log`, `console`. Its call may be 0: modules were loaded, or `njs.on('exit')`
    /// ran at the end of a context.
    Log {
        /// Level.
        level: LogLevel,
        /// Text.
        message: ByteBuf,
    },
    /// `r.status = …`.
    SetStatus {
        /// Status; the host checks its range.
        status: u16,
    },
    /// `r.headersOut[name] = …`: replaces all fields of this name.
    SetResponseField {
        /// Name.
        name: ByteBuf,
        /// Values; none removes the field.
        #[serde(deserialize_with = "bounded::list")]
        values: Vec<ByteBuf>,
    },
    /// `r.return()`: the whole response. A status of 0 to 999 was checked.
    Return {
        /// Status.
        status: u16,
        /// Text or, for 301, 302, 303, 307 and 308, the location. `None` is the page of an error.
        text: Option<ByteBuf>,
    },
    /// `r.sendHeader()`.
    SendHeader,
    /// `r.send()`: a part of the body.
    Send {
        /// Bytes.
        data: ByteBuf,
    },
    /// `r.finish()`.
    Finish,
    /// `r.internalRedirect()`, which takes place when the call has ended.
    InternalRedirect {
        /// URI with its query, escaped, or `@name`.
        uri: ByteBuf,
    },
    /// `r.decline()` of `js_access`.
    Decline,
    /// `njs.on('exit')`: the host calls the script once more at the end of the request, by a call of [`CallKind::Exit`](crate::CallKind::Exit).
    ExitHook,
    /// `r.sendBuffer()` of a body filter, in place of the piece of the running event.
    SendBuffer {
        /// Bytes.
        data: ByteBuf,
        /// Last piece; the flag of the event if it is absent.
        is_last: Option<bool>,
        /// Sent at once.
        is_flushed: Option<bool>,
    },
    /// `r.done()` of a body filter: further pieces pass without the script. The host cancels the call.
    FilterDone,
    /// `s.send()`: bytes for one direction of a stream.
    StreamSend {
        /// Bytes.
        data: ByteBuf,
        /// Direction: set from the client to the upstream server.
        from_client: bool,
        /// Last piece; the flag of the event if it is absent.
        is_last: Option<bool>,
        /// Sent at once.
        is_flushed: Option<bool>,
    },
    /// `s.on()` and `s.off()`: the events that the script wants from now on.
    Subscribe {
        /// Pieces from the client.
        from_client: bool,
        /// Pieces from the upstream server.
        from_upstream: bool,
    },
    /// `s.done()`, `s.allow()`, `s.deny()`, `s.decline()` of `js_access` and `js_preread`. Takes place when the call has ended.
    StreamDone {
        /// 0 (continue), -5 (next handler), 403, or another status.
        code: i32,
    },
}

/// Level of a line in the error log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogLevel {
    /// `debug`.
    Debug,
    /// `info`.
    Info,
    /// `warn`.
    Warn,
    /// `error`.
    Error,
}
