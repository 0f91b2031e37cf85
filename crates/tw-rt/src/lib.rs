//! tw-rt
