//! Messages of the script process.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::effect::Effect;
use crate::host::ScriptId;
use crate::operation::Operation;

/// Number of a call on one socket, chosen by the host.
pub type CallId = u64;
/// Number of an operation of one call, chosen by the process; the answer names it.
pub type Token = u64;

/// Message of the script process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ProcessMessage {
    /// The first message on a socket.
    Hello {
        /// Version of the messages: [`PROTOCOL`](crate::PROTOCOL).
        protocol: u32,
    },
    /// Answer to [`HostMessage::Load`](crate::HostMessage::Load).
    Loaded {
        /// The script.
        script: ScriptId,
        /// Reason if the modules cannot be used.
        result: Result<(), LoadError>,
    },
    /// Question of a script, which needs one [`HostMessage::Reply`](crate::HostMessage::Reply). The process may wait for it and serve
    /// nothing else meanwhile.
    Operation {
        /// The call.
        call: CallId,
        /// Number of the operation.
        token: Token,
        /// The question.
        operation: Operation,
    },
    /// Change without an answer.
    Effect {
        /// The call.
        call: CallId,
        /// The change.
        effect: Effect,
    },
    /// The function of an [`Event`](crate::Event) has returned; effects in front of this message belong to it. Also sent by a
    /// [`CallKind::Content`](crate::CallKind::Content) call that goes on, when a callback has returned that has sent a part of the response.
    Handled {
        /// The call.
        call: CallId,
    },
    /// The call has ended, and nothing follows for it.
    Done {
        /// The call.
        call: CallId,
        /// Result of the call.
        outcome: Outcome,
    },
    /// Question of a script outside of calls: while its modules are loaded, and from `njs.on('exit')`. Only dictionaries and files are
    /// answered, with a reply to the call 0. The process waits for it.
    ScriptOperation {
        /// The script.
        script: ScriptId,
        /// Number of the operation.
        token: Token,
        /// The question.
        operation: Operation,
    },
    /// Last words of a process: a callback has used more CPU time than it may, inside of a native function that cannot be interrupted. The
    /// process ends itself at once. A process that ends without them had not the time to say so, or was ended from outside.
    Overrun(Overrun),
}

/// Callback that has ended its process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overrun {
    /// The call; 0 while modules were loaded.
    pub call: CallId,
    /// Script of the call.
    pub script: ScriptId,
    /// Function whose callback was running: the word in the configuration.
    pub function: String,
    /// File with the definition of the function, empty if it is not known.
    pub file: String,
    /// Line of the definition, 0 if it is not known.
    pub line: u32,
}

/// End of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The function has returned, its promises are settled, and nothing is pending.
    Value(
        /// Result as a string: for `js_set`, the value. `None` for `undefined` and `null`.
        Option<ByteBuf>,
    ),
    /// An exception that nobody caught, or a rejected promise that nobody handled.
    Exception(Exception),
    /// The call was not started: its script is not loaded or is unloaded. It may be sent again, to another process.
    NotStarted(
        /// Reason.
        String,
    ),
}

/// An exception.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exception {
    /// Message with the name of its class, such as `TypeError: not a function`.
    pub message: String,
    /// Stack, one line for each function; may be empty.
    pub stack: String,
    /// Innermost function of a script, empty if it is not known.
    pub function: String,
    /// File, empty if it is not known.
    pub file: String,
    /// Line, 0 if it is not known.
    pub line: u32,
    /// Limit that was reached, such as `js_timeout`; empty for an exception of the script's own.
    pub limit: String,
    /// Set if this is the reason of a rejected promise that nobody has handled.
    pub is_rejection: bool,
}

/// Reason why modules cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoadError {
    /// An `import` statement names a module that is not among the sources. The host sends the [`Load`](crate::Load) again with its source
    /// and an [`Import`](crate::Import), or reports that there is no such file.
    MissingImport {
        /// Path of the module with the statement.
        referrer: String,
        /// Word behind `from`.
        specifier: String,
    },
    /// A syntax error, or an exception while a module ran.
    Exception {
        /// Path of the source, empty if it is not known.
        file: String,
        /// Line, from 1; 0 if it is not known.
        line: u32,
        /// Column, from 1; 0 if it is not known.
        column: u32,
        /// Message with the name of its class.
        message: String,
    },
}
