//! Ingress controller for Kubernetes.
//!
//! ```text
//! API server ─► watches ─► Store ─► site::build ─► Site ─► Applier ─► tailwater -t, files, reload or API
//!                                                           └► journal: log lines and Events; status of Ingress objects
//! ```
//!
//! Threads wait, each for one thing; there is no event loop. A text of an object becomes a word of the configuration by `quote` alone.

pub mod annotation;
pub mod cluster;
pub mod controller;
pub mod gateway_status;
pub mod journal;
pub mod options;
pub mod quote;
pub mod server;
pub mod site;
pub mod status;
