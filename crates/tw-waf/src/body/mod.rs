//! Parsers of bodies: each calls its receiver for every value.

pub(crate) mod json;
pub(crate) mod multipart;
pub(crate) mod urlencoded;
pub(crate) mod xml;
