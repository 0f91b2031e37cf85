//! Parts that several modules have in common.

pub(crate) mod access_refusal;
pub(crate) mod address_source;
pub(crate) mod block;
pub(crate) mod cached_files;
pub(crate) mod changed_body;
pub(crate) mod coding;
pub(crate) mod date_format;
pub(crate) mod forwarded;
pub(crate) mod jose;
pub(crate) mod mapped_values;
pub(crate) mod refusal;
pub(crate) mod required_values;
#[cfg(test)]
pub(crate) mod second_protocol;
pub(crate) mod secret;
pub(crate) mod small_body;
pub(crate) mod trusted_proxies;
pub(crate) mod turn_queue;
pub(crate) mod types;
pub(crate) mod verified_tls;
pub(crate) mod zone;
