//! Authentication of logins over HTTP (nginx: ngx_mail_auth_http_module): a request with the login, and a response with the address
//! of the mail server.
//!
//! ```text
//! login ─► request ─► exchange: a server of the group, an idle or a new connection ─► response ─► mail server, error, or pause
//! ```

mod exchange;
pub mod request;
pub mod response;
pub mod settings;

pub(crate) use exchange::{AuthFailure, ask, receive, shown};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time of an authentication, from the connection to the end of the response's head.
    directive "auth_http_timeout", "the client gets an internal error";
    use exchange::LIMITS;
}
