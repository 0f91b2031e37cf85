//! Parts that several modules have in common.

pub(crate) mod coding;
#[cfg(test)]
pub(crate) mod second_protocol;
