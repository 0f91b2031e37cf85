//! Every module, one file each, and THE LIST.
//!
//! The order of [`MODULES`] is the order in which handlers of one phase run, and in which header filters see a response.

mod index;
mod metrics;
mod returns;
mod static_files;

use tw_server::module::Module;

/// All modules of the http context. A new module is a new file and one line here.
pub static MODULES: [Module; 4] = [
    // Rewrite phases.
    Module::http::<returns::Return>("rewrite"),
    // Content: the first that does not pass answers.
    Module::http::<metrics::Metrics>("metrics"),
    Module::http::<index::Index>("index"),
    Module::http::<static_files::Static>("static"),
];
