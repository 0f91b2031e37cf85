//! Messages of the host.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::bounded;
use crate::operation::{OperationError, Reply};
use crate::process::{CallId, Token};
use crate::snapshot::{Field, Snapshot};

/// Number of a loaded script on one socket, chosen by the host: one list of `js_import` of one generation.
///
/// Locations with the same list share it. The host never uses a number again.
pub type ScriptId = u64;

/// Number of a context on one socket, chosen by the host: everything of one request (or session) shares global variables, as in nginx.
///
/// The number of a request does for all its calls of one script; after an internal redirect to a location with other modules the
/// request has one context for each script. 0 is a context for one call, which is free as soon as that call has ended.
pub type ContextId = u64;

/// Message of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum HostMessage {
    /// Compiles modules. The answer is [`ProcessMessage::Loaded`](crate::ProcessMessage::Loaded).
    Load(Box<Load>),
    /// Frees a script. Calls of it that are running continue to their end; new ones are refused.
    Unload {
        /// The script.
        script: ScriptId,
    },
    /// Starts a call.
    Call(Box<Call>),
    /// The answer to an operation.
    Reply {
        /// Call of the operation.
        call: CallId,
        /// Number of the operation.
        token: Token,
        /// Result of the operation.
        result: Result<Reply, OperationError>,
    },
    /// The next piece of a body or of a stream, for filters. The answer is [`ProcessMessage::Handled`](crate::ProcessMessage::Handled), or
    /// [`ProcessMessage::Done`](crate::ProcessMessage::Done) if the call of a body filter ends with this piece. There is no answer if the call has ended
    /// meanwhile.
    Event(Event),
    /// Ends a call whose result nobody needs any more, such as when the client is gone. The process sends nothing more for it, but
    /// messages that cross this one may still arrive; the host ignores them.
    Cancel {
        /// The call.
        call: CallId,
    },
    /// The request has ended: its contexts are free for others or dropped.
    Release {
        /// The context.
        context: ContextId,
    },
}

/// Modules to compile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Number of the script.
    pub script: ScriptId,
    /// Modules of `js_import`, in the order of the configuration.
    #[serde(deserialize_with = "bounded::list")]
    pub modules: Vec<Module>,
    /// Sources: of `modules`, and of everything that they import.
    #[serde(deserialize_with = "bounded::list")]
    pub sources: Vec<Source>,
    /// Files behind the words of `import` statements.
    #[serde(deserialize_with = "bounded::list")]
    pub imports: Vec<Import>,
    /// Limits and rules.
    pub settings: Settings,
    /// Values of global objects.
    pub environment: Environment,
}

/// Module of a `js_import` directive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// Name in calls: `name.function`.
    pub name: String,
    /// Path of its source.
    pub path: String,
}

/// Text of a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Path, unique in a [`Load`]; messages name it.
    pub path: String,
    /// Text, UTF-8 in all but faulty files.
    pub text: ByteBuf,
}

/// An `import` statement and the file behind it.
///
/// The host does not parse sources: it learns of each one by
/// [`LoadError::MissingImport`](crate::LoadError::MissingImport) and sends the [`Load`] again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// Path of the module with the statement.
    pub referrer: String,
    /// The word behind `from`.
    pub specifier: String,
    /// Path of the source.
    pub path: String,
}

/// Limits of the contexts of one script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// CPU time of one callback, in milliseconds (`js_timeout`).
    pub timeout_ms: u32,
    /// Memory of one context, in bytes (`js_memory`).
    pub memory_size: u64,
    /// Contexts that are kept for later requests (`js_context_reuse`); 0 makes a new one for each request.
    pub context_reuse_count: u32,
}

/// Values of `ngx`, `process` and `njs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of nginx whose configuration is understood, such as `1.31.6` (`ngx.version`).
    pub version: String,
    /// Version as a number, such as 1031006 (`ngx.version_number`).
    pub version_number: u32,
    /// Name of the build (`ngx.build`).
    pub build: String,
    /// Path of the configuration (`ngx.conf_file_path`).
    pub conf_file_path: String,
    /// Directory of the configuration (`ngx.conf_prefix`).
    pub conf_prefix: String,
    /// Directory of the server (`ngx.prefix`).
    pub prefix: String,
    /// First error log (`ngx.error_log_path`).
    pub error_log_path: String,
    /// Number of the loop (`ngx.worker_id`).
    pub worker_id: u32,
    /// Process of the loops (`process.pid`).
    pub pid: u32,
    /// Master (`process.ppid`).
    pub ppid: u32,
    /// Arguments of the server (`process.argv`).
    #[serde(deserialize_with = "bounded::list")]
    pub argv: Vec<ByteBuf>,
    /// Environment that scripts may see (`process.env`): names and values.
    #[serde(deserialize_with = "bounded::list")]
    pub env: Vec<Field>,
    /// Dictionaries of `ngx.shared`.
    #[serde(deserialize_with = "bounded::list")]
    pub dictionaries: Vec<Dictionary>,
    /// Directory in which relative paths of `fs` begin.
    pub file_base: ByteBuf,
    /// Directories of `js_fs_path`, for a program that checks modules without a host.
    #[serde(deserialize_with = "bounded::list")]
    pub file_directories: Vec<FileDirectory>,
}

/// A `js_fs_path`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDirectory {
    /// Absolute path.
    pub path: ByteBuf,
    /// Set if files may be changed.
    pub is_writable: bool,
}

/// A `js_shared_dict_zone`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dictionary {
    /// Name of the zone.
    pub name: String,
    /// Size of the zone in bytes (`capacity`).
    pub capacity: u64,
    /// Type of its values.
    pub kind: DictionaryType,
    /// Set if values expire (`timeout=`); without it, a timeout of one value is an error.
    pub has_timeout: bool,
}

/// Type of the values of a dictionary (`type=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DictionaryType {
    /// Strings.
    String,
    /// Numbers.
    Number,
}

/// Purpose of a call, which decides what the script may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallKind {
    /// `js_content`.
    Content,
    /// `js_set` of http and stream; its result is the value. The function may not wait.
    Set,
    /// `js_access` of http.
    Access,
    /// `js_header_filter`. The function may not wait.
    HeaderFilter,
    /// `js_body_filter`: the function runs once for each [`Event`], with a string. It may not wait.
    BodyFilter,
    /// `js_body_filter … buffer_type=buffer`: the same with a `Buffer`.
    BodyBufferFilter,
    /// `js_periodic` of http and stream.
    Periodic,
    /// `js_access` of stream.
    StreamAccess,
    /// `js_preread`.
    StreamPreread,
    /// `js_filter` of stream: the function runs once and registers callbacks for [`Event`]s.
    StreamFilter,
    /// `njs.on('exit')`: functions that the script has registered run at the end of the request. They may not wait.
    Exit,
}

/// Start of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Number of the call, not in use on this socket.
    pub call: CallId,
    /// Script with the function.
    pub script: ScriptId,
    /// Context of the request.
    pub context: ContextId,
    /// `module.function`, or deeper: `module.object.function`.
    pub function: String,
    /// Purpose.
    pub kind: CallKind,
    /// Request or session. The process takes it over whole at every call, so that values which changed meanwhile are right.
    pub snapshot: Snapshot,
}

/// A piece of a body or of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The call: of `BodyFilter`, `BodyBufferFilter`, `StreamAccess`, `StreamPreread` or `StreamFilter`.
    pub call: CallId,
    /// Bytes; may be empty.
    pub data: ByteBuf,
    /// Set for the last piece of this direction.
    pub is_last: bool,
    /// Direction of a stream: set from the client to the upstream server (`upload`, `upstream`). A body filter ignores it.
    pub from_client: bool,
}
