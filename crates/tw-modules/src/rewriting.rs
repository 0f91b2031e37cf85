//! Modules that change what a request asks for: its address, its fields, its URI.

pub(crate) mod headers_more;
pub(crate) mod internal_redirect;
pub(crate) mod real_ip;
pub(crate) mod rewrite;
pub(crate) mod try_files;
