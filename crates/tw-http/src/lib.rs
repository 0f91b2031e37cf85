//! tw-http
