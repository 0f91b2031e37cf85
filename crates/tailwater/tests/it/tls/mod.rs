//! TLS to clients: handshakes, certificates, sessions, OCSP.

mod bad_handshakes;
mod certificate_files;
mod certificate_variables;
mod certificate_watch;
mod fingerprints;
mod listen_ssl;
mod negotiation;
mod ocsp;
mod real_clients;
mod signatures_and_tickets;
