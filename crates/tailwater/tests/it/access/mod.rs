//! Access control: addresses, passwords, tokens, subrequests for authorization, challenges, signed links, rate and connection limits.

mod allow_deny;
mod auth_basic;
mod auth_jwt;
mod auth_jwt_checks;
mod auth_oidc;
mod auth_oidc_sessions;
mod auth_request;
mod auth_require;
mod challenge;
mod deny_request;
mod limit_conn;
mod limit_req;
mod oidc_provider;
mod real_ip;
mod referer;
mod secure_link;
mod waf;
