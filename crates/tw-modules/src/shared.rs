//! Parts that several modules have in common.

pub(crate) mod coding;
pub(crate) mod jose;
#[cfg(test)]
pub(crate) mod second_protocol;
