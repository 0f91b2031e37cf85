//! Modules of mail alone.

pub(crate) mod mail_real_ip;
