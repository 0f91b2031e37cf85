//! Every module, one file each, and THE LIST.
//!
//! The order of [`MODULES`] is the order in which handlers of one phase run, and in which header filters see a response.

mod autoindex;
mod block;
mod dav;
mod forwarded;
mod geo;
mod headers;
mod index;
mod log;
mod map;
pub mod metrics;
mod names;
mod returns;
mod split_clients;
mod static_files;
mod try_files;

use tw_server::module::Module;

/// All modules of the http context. A new module is a new file and one line here.
pub static MODULES: [Module; 12] = [
    // Variables.
    Module::http::<map::Map>("map"),
    Module::http::<geo::Geo>("geo"),
    Module::http::<split_clients::SplitClients>("split_clients"),
    // Rewrite phases.
    Module::http::<returns::Return>("rewrite"),
    // Precontent.
    Module::http::<try_files::TryFiles>("try_files"),
    // Content: the first that does not pass answers.
    Module::http::<metrics::Metrics>("metrics"),
    Module::http::<index::Index>("index"),
    Module::http::<autoindex::Autoindex>("autoindex"),
    Module::http::<dav::Dav>("dav"),
    Module::http::<static_files::Static>("static"),
    // Header filters.
    Module::http::<headers::Headers>("headers"),
    // Log handlers.
    Module::http::<log::AccessLog>("log"),
];
