//! Directives of the block and of its servers, except those of [`auth_http`](crate::auth_http::settings) and
//! [`proxy_*`](crate::upstream::settings).

pub mod protocols;
pub mod server;
pub mod starttls;
