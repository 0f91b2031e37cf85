//! tw-disk
