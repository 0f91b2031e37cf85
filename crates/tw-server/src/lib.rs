//! tw-server
