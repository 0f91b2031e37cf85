//! tw-modules
