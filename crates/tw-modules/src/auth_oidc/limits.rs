//! Limits of logins and sessions.

use tw_base::Limit;

use super::{
    discovery, endpoint, login, logout_token, pages, provider, renewal, sealed_state, session, session_table,
    used_once,
};

pub(super) const LIMITS: &[Limit] = &[
    Limit::directive(
        "session_store",
        "Bytes of the sessions of one provider, and of their pairs in the table",
        "the session used longest ago ends: its user logs in again",
    ),
    Limit::bytes(
        "SESSIONS_SIZE_MAX",
        session_table::SESSIONS_SIZE_MAX,
        "Bytes of the sessions of one provider (oidc_provider) without session_store",
        "the session used longest ago ends: its user logs in again",
    ),
    Limit::count(
        "REQUESTS_AT_ONCE",
        endpoint::REQUESTS_AT_ONCE as u64,
        "Requests to one provider at the same time",
        "502",
    ),
    Limit::count(
        "LOGINS_AT_ONCE",
        provider::LOGINS_AT_ONCE as u64,
        "Logins at one provider that are finished at the same time",
        "other logins wait, in turns by client, up to a minute",
    ),
    Limit::count(
        "LOGINS_WAITING_MAX",
        provider::LOGINS_WAITING_MAX as u64,
        "Logins that wait for that",
        "503 with Retry-After; the error log says so",
    ),
    Limit::count(
        "LOGINS_OF_CLIENT_MAX",
        provider::LOGINS_OF_CLIENT_MAX as u64,
        "Logins of one address, or IPv6 network of 64 bits, among them",
        "503 with Retry-After; the error log says so",
    ),
    Limit::bytes(
        "RESPONSE_SIZE_MAX",
        endpoint::RESPONSE_SIZE_MAX as u64,
        "Bytes of a response of a provider",
        "502",
    ),
    Limit::micros(
        "WAIT_TIME_MAX",
        endpoint::WAIT_TIME_MAX.as_micros() as u64,
        "Time for which a provider may do nothing during a request",
        "502",
    ),
    Limit::micros(
        "REQUEST_TIME_MAX",
        endpoint::REQUEST_TIME_MAX.as_micros() as u64,
        "Time of a request to a provider on a connection",
        "502",
    ),
    Limit::micros(
        "KEPT_TIME",
        discovery::KEPT_TIME.as_micros() as u64,
        "Time for which the metadata and the keys of a provider are kept",
        "it is asked again; keys also when a token has another one",
    ),
    Limit::micros(
        "RETRY_TIME",
        discovery::RETRY_TIME.as_micros() as u64,
        "Time before a provider that failed is asked again",
        "it is asked again",
    ),
    Limit::micros(
        "LOGIN_SECS_MAX",
        sealed_state::LOGIN_SECS_MAX as u64 * 1_000_000,
        "Time of a login",
        "403: it has to begin again",
    ),
    Limit::bytes(
        "URI_SIZE_MAX",
        sealed_state::URI_SIZE_MAX as u64,
        "Bytes of a URI that a login returns to",
        "it returns to /",
    ),
    Limit::count(
        "USED_MAX",
        used_once::USED_MAX as u64,
        "States of logins, and identifiers of logout tokens, that are remembered after their use",
        "half of them, the oldest, could be used again",
    ),
    Limit::count(
        "RENEWALS_AT_ONCE",
        renewal::RENEWALS_AT_ONCE as u64,
        "Renewals of tokens at one provider at the same time",
        "others wait; the requests of their sessions pass, unless the tokens have ended",
    ),
    Limit::micros(
        "RENEWAL_LEAD_MAX",
        session::RENEWAL_LEAD_MAX.as_micros() as u64,
        "Time before the end of tokens in which they are renewed; a quarter of their life if that is shorter",
        "a request waits for the renewal",
    ),
    Limit::bytes(
        "LOGOUT_FORM_SIZE_MAX",
        pages::LOGOUT_FORM_SIZE_MAX as u64,
        "Bytes of a form with a logout token",
        "413",
    ),
    Limit::micros(
        "LOGOUT_TOKEN_AGE_MAX",
        logout_token::LOGOUT_TOKEN_AGE_MAX.as_micros() as u64,
        "Age of a logout token",
        "400",
    ),
    Limit::count(
        "END_BATCH",
        session_table::END_BATCH as u64,
        "Sessions that one logout ends in a row",
        "the loop does something else in between",
    ),
    Limit::bytes("CODE_SIZE_MAX", login::CODE_SIZE_MAX as u64, "Bytes of the code of a login", "403"),
];
