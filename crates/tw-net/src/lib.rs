//! tw-net
