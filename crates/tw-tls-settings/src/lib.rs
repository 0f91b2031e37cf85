//! Settings of TLS: those of the servers of a configuration, and those that connections to upstream servers share with them.
//!
//! ```text
//! directives ─► Ssl ─┬─► server: ServerTls, ClientAuthentication ─► handshakes with clients ─► TlsInfo ─► variables
//!                    │      ├─ certificates: files, ACME, names with variables
//!                    │      ├─ ocsp: responses about own certificates and those of clients
//!                    │      └─ tickets: keys, which go to the next process or come from a fleet
//!                    └─► for upstream servers, too: certificates, TlsParameters, KeyLogFile, SignPool
//! ```
//! Nothing here knows a connection. Handshakes with clients are in `tw-accept`, those with upstream servers in `tw-connect`; a server is one of a
//! [`SecureProtocol`]. Certificates and keys are files of the configuration: the master reads them, with rights that the worker has not,
//! and sends them to the worker with the configuration.

mod certificates;
mod directives;
mod key_log;
mod ocsp;
mod protocol;
mod server;
mod tickets;
mod tls_info;
mod variables;

pub use certificates::certificate_file;
pub use certificates::certificate_resolver::ServerSignature;
pub use certificates::dynamic_certificate::{
    CertificateCache, CertificateNames, CertificateReader, DynamicCertificate, is_dynamic,
};
pub use certificates::preloaded_keys::preload_keys;
pub use certificates::watched_certificate::{
    CertificateFiles, CertificateVersion, WatchedCertificate, renew,
};
pub use directives::Ssl;
pub use directives::raw::{EarlyData, Raw};
pub use directives::sign_pool::{POOL, SignPool, default_pool, pool_settings};
pub use directives::tls_parameters::{TlsParameters, read_protocol_versions};
pub use key_log::KeyLogFile;
pub use ocsp::client_ocsp::{ClientOcsp, RevocationStatus};
pub use ocsp::ocsp_client::OcspClient;
pub use ocsp::stapling::Stapling;
pub use ocsp::stapling_task::{StaplingHost, keep_stapled};
pub use protocol::SecureProtocol;
pub use server::client_authentication::{ClientAuthentication, ClientRefusal};
pub use server::server_tls::{ServerTls, warm_up};
pub use tickets::fleet_secrets;
pub use tickets::ticket_keys_handover::{export_keys, inherit_keys};
pub use tls_info::{ClientCertificate, ClientHelloInfo, TlsInfo, TlsSession};
pub use variables::TlsVariables;

tw_base::limits! {
    /// Limits of TLS settings.
    pub const LIMITS;

    section "TLS";
    use directives::LIMITS;
    use server::server_tls::LIMITS;
    use tickets::ticket_keys_handover::LIMITS;
    use certificates::dynamic_certificate::LIMITS;
    use ocsp::client_ocsp::LIMITS;
}
