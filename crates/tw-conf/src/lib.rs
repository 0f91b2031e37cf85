//! Parser of `nginx.conf`: words, blocks, `include`, directive records, settings and diagnostics.
//!
//! [`Reader`] turns text into a [`Tree`] of [`Node`]s whose words are bytes with a [`Span`]. The server walks the
//! tree and has [`check`] compare every node with its [`DirectiveInfo`]. The record's setter stores the value as
//! written in a [`Setting`]. Every mistake is a [`ConfError`] with nginx's words, and [`Diagnostic`] shows it with
//! its place. [`reject`] makes the error for a directive without a record.
//!
//! This crate knows no directive of any module. Source of the grammar and of the texts: nginx 1.31.

mod advice;
mod context;
mod diagnostic;
mod directive;
mod environment;
mod error;
mod glob;
mod known;
mod lexer;
mod lua;
mod missing;
mod narrow;
pub mod network;
mod reader;
mod setting;
mod source;
mod span;
mod suggest;
mod tree;
pub mod units;

tw_base::limits! {
    /// The limits kept here, for documents.
    pub const LIMITS;

    section "logs and the configuration";
    use lexer::LIMITS;
    use reader::LIMITS;
}

pub use advice::advise;
pub use context::*;
pub use diagnostic::Diagnostic;
pub use directive::{Args, Cx, Directive, DirectiveInfo, Setter, check, full_name, record};
pub use error::{ConfError, Diagnostics, Level, MachineCheck, MachineSubject, MissingFeature, said_once};
pub use glob::expand_names;
pub use known::{
    NginxDirective, NginxVariables, is_built_in, known_variables, missing_directive, missing_module,
    missing_variable, module_of, module_of_file, nginx_directives, reject,
};
pub use lexer::MAX_PARAMETER_SIZE;
pub use missing::MissingList;
pub use network::Network;
pub use reader::{MAX_BLOCK_DEPTH, MAX_INCLUDE_DEPTH, MAX_INCLUDES, Reader};
pub use setting::{Buffers, IneffectiveDirectives, Setting};
pub use source::{ConfFiles, MemoryFiles, RecordedFiles, SystemFiles};
pub use span::{Origin, SourceFile, Sources, Span};
pub use suggest::{Guess, nearest};
pub use tree::{Node, Tree, Word, write_nodes};
