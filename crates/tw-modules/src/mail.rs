//! Modules of mail alone.

pub(crate) mod mail_status_zone;
