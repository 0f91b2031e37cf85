//! The reference: every directive, variable, metric and limit of all modules, with what there is to say about it.
//!
//! ```text
//! records of the modules ─┐
//!                         ├─► chapters ─► docs/directives/*.md, docs/variables.md   (written by tests)
//! directives/MODULE.md ───┘           └─► tailwater help NAME                       (pages of a terminal)
//! ```
//! A record has one or two sentences, which editors of a configuration need. What users need beyond that (rules, an example, common
//! mistakes) is written by hand in the files of the folder `directives`, one for each module.

pub mod directives;
pub mod limits;
pub mod text;
pub mod variables;

mod page;

pub use page::{Lookup, look_up};

/// Modules of each protocol.
pub const MODULES: tw_app::Modules = tw_app::Modules {
    http: tw_modules::MODULES,
    stream: tw_modules::STREAM_MODULES,
    mail: tw_modules::MAIL_MODULES,
};
