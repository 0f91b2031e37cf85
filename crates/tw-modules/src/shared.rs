//! Compression of bodies, for several modules.

pub(crate) mod coding;
#[cfg(test)]
pub(crate) mod second_protocol;
