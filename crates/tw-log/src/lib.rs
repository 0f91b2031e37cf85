//! tw-log
