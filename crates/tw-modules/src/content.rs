//! Modules that answer requests themselves.

pub(crate) mod autoindex;
pub(crate) mod echo;
pub(crate) mod empty_gif;
pub(crate) mod fancyindex;
pub(crate) mod index;
pub(crate) mod mirror;
pub(crate) mod precompressed;
pub(crate) mod random_index;
pub(crate) mod static_files;
#[cfg(debug_assertions)]
pub(crate) mod trap;
pub(crate) mod upload_progress;
