//! Modules of stream alone.

pub(crate) mod stream_health_check;
pub(crate) mod stream_mqtt;
pub(crate) mod stream_pass;
pub(crate) mod stream_proxy;
pub(crate) mod stream_return;
pub(crate) mod stream_set;
pub(crate) mod stream_ssl_preread;
