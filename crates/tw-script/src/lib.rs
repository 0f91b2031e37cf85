//! Messages between a loop (the host) and its script process, which runs JavaScript. No I/O and no clock: bytes are arguments.
//!
//! ```text
//! frame      length and bytes of one message
//! host       messages of the host: modules, calls, answers
//! process    messages of the script process: operations, effects, results
//! snapshot   the part of a request or session that a call brings along
//! operation  questions of a script, which the host answers
//! file       commands of `fs`
//! effect     changes that a script makes, without an answer
//! ```
//! A script process may be under an attacker's control. Its messages are decoded within named limits, and none of them can panic. The
//! host still checks every number in them: an operation or an effect that names a call which is not running is refused.
//!
//! ```text
//! host                                        script process
//!                                        <──  Hello
//! Load { script, modules, sources }      ──>
//!                                        <──  Loaded { script, Ok }          or MissingImport: Load again with its source
//! Call { call, script, function }        ──>
//!                                        <──  Operation { call, token }      the process may wait for this answer only
//! Reply { call, token }                  ──>
//!                                        <──  Effect { call }
//!                                        <──  Done { call, outcome }
//! Release { context }                    ──>                                 at the end of the request
//! Unload { script }                      ──>                                 at the end of the generation
//! ```

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod bounded;
mod effect;
mod file;
mod frame;
mod host;
mod operation;
mod process;
mod snapshot;

pub use effect::{Effect, LogLevel};
pub use file::{FileCommand, FileEntry, FileError, FileKind, FileStatus, FileValue};
pub use frame::{FrameError, FrameReader, encode};
pub use host::{
    Call, CallKind, ContextId, Dictionary, DictionaryType, Environment, Event, FileDirectory, HostMessage,
    Import, Load, Module, ScriptId, Settings, Source,
};
pub use operation::{
    DictionaryCommand, DictionaryValue, FetchRequest, FetchResponse, Operation, OperationError, Reply,
    Subject, Subresponse,
};
pub use process::{CallId, Exception, LoadError, Outcome, Overrun, ProcessMessage, Token};
/// Bytes in a message: values of the server need not be UTF-8.
pub use serde_bytes::ByteBuf;
pub use snapshot::{Field, HttpSnapshot, ResponseHead, Snapshot, StreamSnapshot};

/// Version of the messages; both programs of one installation have the same.
pub const PROTOCOL: u32 = 4;

tw_base::limits! {
    /// Limits of the messages.
    pub const LIMITS;

    use frame::LIMITS;
    use bounded::LIMITS;
}
