//! Annotations of ingress-nginx as directives of Tailwater.

pub(crate) mod access;
mod balancing;
pub mod canary;
mod firewall;
pub mod policy;
pub mod table;
mod traffic;
mod upstream;
pub mod value;

pub(crate) use balancing::balancing;
