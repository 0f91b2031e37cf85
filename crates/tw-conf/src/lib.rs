//! tw-conf
