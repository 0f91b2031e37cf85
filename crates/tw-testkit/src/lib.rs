//! tw-testkit
