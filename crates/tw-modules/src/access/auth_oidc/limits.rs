//! Limits of logins and sessions.

use super::{
    discovery, endpoint, login, logout_token, pages, provider, sealed_state, session, session_table,
    used_once,
};

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of the sessions of one provider, and of their pairs in the table.
    directive "session_store", "the session used longest ago ends: its user logs in again";
    /// Bytes of the sessions of one provider (oidc_provider) without session_store.
    constant bytes session_table::SESSIONS_SIZE_MAX, "the session used longest ago ends: its user logs in again";
    /// Requests to one provider at the same time.
    constant count endpoint::REQUESTS_AT_ONCE, "502";
    /// Logins at one provider that are finished at the same time.
    constant count provider::LOGINS_AT_ONCE, "other logins wait, in turns by client, up to a minute";
    /// Logins that wait for that.
    constant count provider::LOGINS_WAITING_MAX, "503 with Retry-After; the error log says so";
    /// Logins of one address, or IPv6 network of 64 bits, among them.
    constant count provider::LOGINS_OF_CLIENT_MAX, "503 with Retry-After; the error log says so";
    /// Bytes of a response of a provider.
    constant bytes endpoint::RESPONSE_SIZE_MAX, "502";
    /// Time for which a provider may do nothing during a request.
    constant time endpoint::WAIT_TIME_MAX, "502";
    /// Time of a request to a provider on a connection.
    constant time endpoint::REQUEST_TIME_MAX, "502";
    /// Time for which the metadata and the keys of a provider are kept.
    constant time discovery::KEPT_TIME, "it is asked again; keys also when a token has another one";
    /// Time before a provider that failed is asked again.
    constant time discovery::RETRY_TIME, "it is asked again";
    /// Time of a login.
    constant secs sealed_state::LOGIN_SECS_MAX, "403: it has to begin again";
    /// Bytes of a URI that a login returns to.
    constant bytes sealed_state::URI_SIZE_MAX, "it returns to /";
    /// States of logins, and identifiers of logout tokens, that are remembered after their use.
    constant count used_once::USED_MAX, "half of them, the oldest, could be used again";
    /// Renewals of tokens at one provider at the same time.
    constant count provider::RENEWALS_AT_ONCE, "others wait; the requests of their sessions pass, unless the tokens have ended";
    /// Time before the end of tokens in which they are renewed; a quarter of their life if that is shorter.
    constant time session::RENEWAL_LEAD_MAX, "a request waits for the renewal";
    /// Bytes of a form with a logout token.
    constant bytes pages::LOGOUT_FORM_SIZE_MAX, "413";
    /// Age of a logout token.
    constant time logout_token::LOGOUT_TOKEN_AGE_MAX, "400";
    /// Sessions that one logout ends in a row.
    constant count session_table::END_BATCH, "the loop does something else in between";
    /// Bytes of the code of a login.
    constant bytes login::CODE_SIZE_MAX, "403";
}
