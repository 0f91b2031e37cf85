//! Modules that change responses on their way to the client.

pub(crate) mod addition;
pub(crate) mod brotli;
pub(crate) mod charset;
pub(crate) mod gunzip;
pub(crate) mod gzip;
pub(crate) mod headers;
pub(crate) mod slice;
pub(crate) mod ssi;
pub(crate) mod sub;
pub(crate) mod subs_filter;
pub(crate) mod userid;
pub(crate) mod zstd;
