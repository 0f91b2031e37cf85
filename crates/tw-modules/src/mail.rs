//! Modules of mail alone.

pub(crate) mod mail_health_check;
