//! The mail server that the auth server has named: connection, login, relay (nginx: ngx_mail_proxy_module).
//!
//! ```text
//! connect ─► PROXY protocol header ─► login: greeting, commands, responses ─► relay (tw-connect)
//! ```

mod connect;
pub mod login;
mod relaying;
pub mod settings;

pub(crate) use connect::{LoggedIn, MailServer, UpstreamRefusal, log_in};
pub(crate) use relaying::relay_session;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time without traffic after the login.
    directive "proxy_timeout", "the session ends";
    /// Bytes of a response of the mail server during the login, and of each direction that are kept for a side that does not take them.
    directive "proxy_buffer", "the client gets an internal error; later, the other side waits";
}
