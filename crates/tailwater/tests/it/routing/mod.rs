//! Servers and locations, rewriting, and error pages.

mod error_page;
mod if_and_limit_except;
mod internal_redirect;
mod locations;
mod post_action;
mod refused_requests;
mod return_directive;
mod rewrite;
mod set_misc;
