//! Variables and templates of requests: the types of tw-core with a request as their session.

use crate::protocol::Session;

pub use tw_core::vars::{EvalStatus, Preparations, Value, names_in};

/// `$realpath_root`, which the disk is asked for before the handlers run.
pub const REALPATH_ROOT: Preparations = Preparations(1);
/// `$request_body_file`, for which a file of the body has a name.
pub const NAMED_BODY_FILE: Preparations = Preparations(2);

/// Text with variables of a request.
pub type Template = tw_core::vars::Template<Session>;
/// Tags of lines of the error log.
pub type LogTags = tw_core::log::LogTags<Session>;
/// A variable of requests as a module declares it.
pub type VarDef = tw_core::vars::VarDef<Session>;
/// Function of a computed variable.
pub type VarKind = tw_core::vars::VarKind<Session>;
/// A variable bound at load.
pub type Var = tw_core::vars::Var<Session>;
/// A computed variable that a module defines at load.
pub type Computed = tw_core::vars::Computed<Session>;
/// Source of the value of a slot.
pub type SlotKind = tw_core::vars::SlotKind<Session>;
/// The slots of a configuration.
pub type Slots = tw_core::vars::Slots<Session>;
/// Destination of a new value of a variable.
pub type VarTarget = tw_core::vars::VarTarget<Session>;
/// All names known while a configuration is loaded.
pub type VarTable = tw_core::vars::VarTable<Session>;
