//! tw-sys
