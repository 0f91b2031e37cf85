//! Automatic certificates (ACME, RFC 8555), on a thread beside the loops that may wait.
//!
//! ```text
//! AcmeConfig: issuers with their certificates ─► Agent: the thread ─► a task for each issuer
//!
//! task: state directory ─► CurrentCertificate ─► when it is due: Client ─► order ─► CurrentCertificate, state directory
//!                                │                                  └─► ChallengeResponses: served by any loop
//!                                └─► handshakes, on every loop
//! ```
//!
//! With a fleet, the module `shared` is between the nodes: a lease says which of them orders, and all take over certificates and answers.
//!
//! Nothing here knows how requests are served: a loop asks [`ChallengeResponses`] for a text or for the settings of a
//! handshake, and a [`CurrentCertificate`] for its certificate. Responses of an authority are not trusted: a certificate
//! that is not for our key and names, or has expired, is not used, and the one in use stays.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod account;
mod agent;
mod challenge_responses;
mod client;
mod command;
mod config;
mod current_certificate;
mod error;
mod generate;
mod http_client;
mod identifier;
mod issued;
mod jws;
mod key_type;
mod local;
mod message;
mod order;
mod renewal;
mod shared;
mod state;
mod task;
mod url;

pub use account::AccountKey;
pub use agent::{Agent, LogFn};
pub use challenge_responses::{ALPN, ChallengeResponses, HTTP_PREFIX};
pub use config::{
    Account, AcmeConfig, CertificateConfig, Challenge, ExternalAccount, Issuer, IssuerConfig, KeySource,
    Profile, TermsOfService, id as file_id,
};
pub use current_certificate::{CurrentCertificate, OrderState};
pub use error::Error;
pub use identifier::{Identifier, NameError};
pub use key_type::{KeyType, KeyWord};
pub use local::{IssuedLocally, LocalAuthority, is_local, local_domains};
pub use message::describe;
pub use tw_tls::BUNDLES;
pub use url::{Url, UrlError};

tw_base::limits! {
    /// Limits of everything here that an authority or a configuration can fill.
    pub const LIMITS;

    section "TLS";
    use http_client::LIMITS;
    use order::LIMITS;
    use client::LIMITS;
    use renewal::LIMITS;
    use shared::LIMITS;
    use command::LIMITS;
    use identifier::LIMITS;
}
