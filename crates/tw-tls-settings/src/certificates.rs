//! Certificates and keys: read from files, from variables in each handshake, or ordered by ACME; and the choice among them.

pub(crate) mod acme_certificate;
pub mod certificate_file;
pub(crate) mod certificate_metrics;
pub(crate) mod certificate_resolver;
pub(crate) mod dynamic_certificate;
mod late_key;
pub(crate) mod preloaded_keys;
pub(crate) mod watched_certificate;
