//! Modules that pass requests to servers of a group.

pub(crate) mod cgi;
pub(crate) mod fastcgi;
pub(crate) mod grpc;
pub(crate) mod health_check;
pub(crate) mod memcached;
pub(crate) mod pass_module;
pub(crate) mod proxy;
pub(crate) mod scgi;
pub(crate) mod tunnel;
pub(crate) mod uwsgi;
