//! WebDAV (RFC 4918): `dav_methods` changes files, `dav_ext_methods` adds properties and locks.

mod dav;
mod dav_ext;

pub use dav::Dav;
pub use dav_ext::DavExt;
