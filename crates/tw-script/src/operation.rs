//! Questions of a script, which the host answers. A script gets nothing but what its own request may have: the host checks each of them.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::bounded;
use crate::file::{FileCommand, FileError, FileValue};
use crate::process::Token;
use crate::snapshot::{Field, HttpSnapshot, ResponseHead};

/// Request that an operation is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// Request or session of the call.
    Main,
    /// A finished subrequest of the call, by the token of its [`Operation::Subrequest`].
    Subrequest(Token),
}

/// Question of a script. The comment says which [`Reply`] answers it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Operation {
    /// `r.variables[name]`: [`Reply::Value`], `None` if the variable is not found or has no value.
    Variable {
        /// Request of the variable.
        subject: Subject,
        /// Name without `$`.
        name: ByteBuf,
    },
    /// Value of the function that [`Reply::Function`] has named: the answer is that to [`Variable`](Self::Variable) with the same subject and
    /// name.
    VariableValue {
        /// Number of the variable that the function computes, as the host has named it.
        variable: u16,
        /// Result of the function; `None` after an exception, which the process has logged.
        value: Option<ByteBuf>,
        /// Request of the variable that the script reads.
        subject: Subject,
        /// Name of the variable that the script reads.
        name: ByteBuf,
    },
    /// `r.variables[name] = value`: [`Reply::Done`].
    SetVariable {
        /// Request of the variable.
        subject: Subject,
        /// Name without `$`.
        name: ByteBuf,
        /// Value.
        value: ByteBuf,
    },
    /// `r.jsVarNames()`: [`Reply::Names`].
    VariableNames,
    /// `r.headersOut`, `r.status` where the snapshot has none: [`Reply::ResponseHead`].
    ResponseHead,
    /// `r.requestText`, `r.requestBuffer`: [`Reply::Value`], `None` if there is no body; an error if it is in a file.
    RequestBody,
    /// `r.readRequestText()` and others: [`Reply::Value`] with the whole body, empty if there is none.
    ReadRequestBody,
    /// `r.subrequest()`: [`Reply::Subresponse`] when it has ended; [`Reply::Done`] at once if it is detached.
    Subrequest {
        /// URI.
        uri: ByteBuf,
        /// Query.
        args: ByteBuf,
        /// Method; `GET` if it is empty.
        method: ByteBuf,
        /// Body; that of the request if it is absent.
        body: Option<ByteBuf>,
        /// Set if nobody waits for the response.
        is_detached: bool,
    },
    /// `ngx.fetch()`: [`Reply::Fetched`].
    Fetch(Box<FetchRequest>),
    /// `ngx.shared`: [`Reply::Dictionary`].
    Dictionary {
        /// Name of the zone.
        name: String,
        /// The command.
        command: DictionaryCommand,
    },
    /// `fs`: [`Reply::File`].
    File(FileCommand),
}

/// Answer to an [`Operation`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Success without a value.
    Done,
    /// Bytes, or none.
    Value(Option<ByteBuf>),
    /// Names of the variables of `js_var`.
    Names(#[serde(deserialize_with = "bounded::list")] Vec<ByteBuf>),
    /// The value of a variable depends on one of `js_set`: the process calls this function of the script with the request of the call, as
    /// [`CallKind::Set`](crate::CallKind::Set) does, while the first function waits, and sends [`Operation::VariableValue`].
    Function {
        /// Number of the variable that the function computes.
        variable: u16,
        /// The function.
        function: String,
    },
    /// Head of the response.
    ResponseHead(ResponseHead),
    /// A finished subrequest.
    Subresponse(Box<Subresponse>),
    /// Response of another server.
    Fetched(Box<FetchResponse>),
    /// Result of a command of a dictionary.
    Dictionary(DictionaryValue),
    /// Result of a command of `fs`.
    File(FileValue),
}

/// Failure of an [`Operation`], which becomes an exception or a rejected promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperationError {
    /// `Error` with this text.
    Error(String),
    /// `TypeError` with this text.
    Type(String),
    /// `SharedMemoryError`: the dictionary is full.
    SharedMemory(String),
    /// Failed file operation.
    File(FileError),
}

/// A finished subrequest. Its snapshot has the head of its response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subresponse {
    /// Request and head of the response.
    pub snapshot: HttpSnapshot,
    /// Body (`responseText`, `responseBuffer`), within `subrequest_output_buffer_size`; `None` if there is none.
    pub body: Option<ByteBuf>,
}

/// A request of `ngx.fetch()`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchRequest {
    /// URL.
    pub url: ByteBuf,
    /// Method.
    pub method: ByteBuf,
    /// Header fields; names and values are checked by the host, too.
    #[serde(deserialize_with = "bounded::list")]
    pub fields: Vec<Field>,
    /// Body.
    pub body: Option<ByteBuf>,
    /// Buffer of the response in bytes (`buffer_size`); `js_fetch_buffer_size` if it is absent.
    pub buffer_size: Option<u64>,
    /// Bytes of the body (`max_response_body_size`); `js_fetch_max_response_buffer_size` if it is absent.
    pub response_size_max: Option<u64>,
    /// Verification of the certificate (`verify`); `js_fetch_verify` if it is absent.
    pub is_verified: Option<bool>,
}

/// A response of `ngx.fetch()`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchResponse {
    /// Status.
    pub status: u16,
    /// Reason phrase.
    pub reason: ByteBuf,
    /// Header fields.
    #[serde(deserialize_with = "bounded::list")]
    pub fields: Vec<Field>,
    /// Body.
    pub body: ByteBuf,
}

/// A value in a dictionary, and results of its commands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum DictionaryValue {
    /// No such key.
    None,
    /// String.
    String(ByteBuf),
    /// Number: a value, a size, a time in milliseconds.
    Number(f64),
    /// Outcome of `add`, `delete`, `has` and `replace`.
    Bool(bool),
    /// Keys.
    Keys(#[serde(deserialize_with = "bounded::list")] Vec<ByteBuf>),
    /// Keys and strings.
    Strings(#[serde(deserialize_with = "bounded::list")] Vec<(ByteBuf, ByteBuf)>),
    /// Keys and numbers.
    Numbers(#[serde(deserialize_with = "bounded::list")] Vec<(ByteBuf, f64)>),
}

/// Command of a dictionary. Times are in milliseconds; without one, that of the zone holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum DictionaryCommand {
    /// `get`: the value.
    Get {
        /// Key.
        key: ByteBuf,
    },
    /// `has`: a bool.
    Has {
        /// Key.
        key: ByteBuf,
    },
    /// `set`: nothing.
    Set {
        /// Key.
        key: ByteBuf,
        /// A string or a number, of the type of the zone.
        value: DictionaryValue,
        /// Time to live.
        timeout_ms: Option<u64>,
    },
    /// `add`: a bool.
    Add {
        /// Key.
        key: ByteBuf,
        /// Value.
        value: DictionaryValue,
        /// Time to live.
        timeout_ms: Option<u64>,
    },
    /// `replace`: a bool.
    Replace {
        /// Key.
        key: ByteBuf,
        /// Value.
        value: DictionaryValue,
    },
    /// `delete`: a bool.
    Delete {
        /// Key.
        key: ByteBuf,
    },
    /// `pop`: the value.
    Pop {
        /// Key.
        key: ByteBuf,
    },
    /// `incr`: the new number.
    Incr {
        /// Key.
        key: ByteBuf,
        /// Summand.
        delta: f64,
        /// Value of an absent key.
        init: f64,
        /// Time to live.
        timeout_ms: Option<u64>,
    },
    /// `clear`: nothing.
    Clear,
    /// `size`: a number.
    Size,
    /// `freeSpace`: a number.
    FreeSpace,
    /// `ttl`: a number, or nothing if the key is absent; an error if the zone has no `timeout`.
    Ttl {
        /// Key.
        key: ByteBuf,
    },
    /// `keys`.
    Keys {
        /// Most keys.
        count_max: u32,
    },
    /// `items`: strings or numbers.
    Items {
        /// Most pairs.
        count_max: u32,
    },
}
