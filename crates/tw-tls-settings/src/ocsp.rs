//! OCSP: responses that are stapled to own certificates, and checks of client certificates.

pub(crate) mod client_ocsp;
pub(crate) mod ocsp_client;
pub(crate) mod stapling;
pub(crate) mod stapling_task;
