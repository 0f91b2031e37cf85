//! Access control: addresses, passwords, subrequests for authorization, challenges, signed links, rate and connection limits.

mod allow_deny;
mod auth_basic;
mod auth_request;
mod deny_request;
mod challenge;
mod limit_conn;
mod limit_req;
mod real_ip;
mod referer;
mod secure_link;
