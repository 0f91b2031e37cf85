//! tw-base
