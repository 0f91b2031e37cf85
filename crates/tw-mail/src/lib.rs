//! The `mail` block: POP3, IMAP and SMTP up to the login, authentication over HTTP, and the relay to a mail server.
//!
//! ```text
//! accept ─► Client ─► phases: PROXY protocol ─► access ─► TLS ─► greeting ─► commands ─► limits ─► login ─► relay ─► log
//!                                                                             ▲  │                  │
//!                                                                    STARTTLS └──┘                  ├─ auth_http: the auth server
//!                                                                                                   └─ upstream: the mail server
//! ```
//! [`phases`] is the life of a session. The dialogues with clients ([`dialogue`]), with the auth server ([`auth_http`]) and with mail
//! servers ([`upstream::login`]) have no I/O: bytes in, bytes and decisions out. Secrets of a login are wiped ([`secret`]), and no line
//! of a log has them. A session keeps the generation it began with, so a reload never cuts it.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod application;
pub mod auth_http;
pub mod client;
mod client_host;
pub mod config;
pub mod counters;
pub mod dialogue;
pub mod explain;
mod handshake;
mod health;
pub mod health_check;
pub mod load;
pub mod login_delay;
mod mail_loop;
pub mod phases;
pub mod plan;
pub mod protocol;
mod protocol_types;
pub mod secret;
pub mod session;
pub mod session_status;
pub mod settings;
pub mod upstream;
pub mod variables;

pub use load::MailBlocks;
pub use mail_loop::MailLoop;
pub use protocol::{Block, Mail};

tw_base::limits! {
    /// Limits of sessions of mail.
    pub const LIMITS;

    section "sessions of mail";
    use settings::server::LIMITS;
    use auth_http::LIMITS;
    use upstream::LIMITS;
    use phases::LIMITS;
    use login_delay::LIMITS;
    use health_check::LIMITS;
}
