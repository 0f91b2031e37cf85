//! Certificates that come by themselves (ACME, RFC 8555), beside the loops: on a thread that may wait.
//!
//! ```text
//! Job: issuers, and the certificates wanted of each ─► Agent: the thread ─► a task for each issuer
//!
//! task: state directory ─► Slot ─► when it is due: Client ─► order ─► Slot, state directory
//!                           │                        └─► Answers: what the authority asks us, any loop says
//!                           └─► handshakes, on every loop
//! ```
//!
//! Nothing here knows how requests are served: a loop asks an [`Answers`] for a text or for the settings of a handshake, and a
//! [`Slot`] for the certificate of now. What an authority says is not believed: a certificate that is not for our key and
//! our names, or is over, is not taken, and the one that is used stays.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod account;
mod agent;
mod answers;
mod carrier;
mod client;
mod command;
mod error;
mod identifier;
mod issued;
mod job;
mod jws;
mod key_type;
mod local;
mod made;
mod message;
mod order;
mod renewal;
mod slot;
mod state;
mod task;
mod url;

pub use account::AccountKey;
pub use agent::{Agent, Say};
pub use answers::{ALPN, Answers, HTTP_PREFIX};
pub use carrier::{BUNDLES, trusting};
pub use error::Error;
pub use identifier::{Identifier, NameError};
pub use job::{
    Account, Challenge, ExternalAccount, Issuer, Job, KeySource, Profile, Terms, Wanted, Work, id as file_id,
};
pub use key_type::{KeyType, Word as KeyWord};
pub use local::{IssuedLocally, LocalAuthority, is_local, local_domains};
pub use message::said;
pub use slot::Slot;
pub use url::{Url, UrlError};

/// Limits of everything here that an authority or a configuration can fill.
pub const LIMITS: &[&[tw_base::Limit]] =
    &[carrier::LIMITS, order::LIMITS, client::LIMITS, renewal::LIMITS, command::LIMITS, identifier::LIMITS];
