//! Types of sessions, plans and settings of `mail`, which the protocol of configurations consists of.

use tw_conf::{Contexts, MAIL, MAIL_SERVER, MAIL_UPSTREAM};
use tw_core::module::Protocol;

use crate::config::Config;
use crate::plan::Plan;
use crate::protocol::{Block, Mail};
use crate::session::MailSession;
use crate::settings::server::ServerSettings;

impl Protocol for Mail {
    const NAME: &'static str = "mail";
    const CONTEXTS: Contexts = MAIL | MAIL_SERVER | MAIL_UPSTREAM;

    type Session = MailSession;
    type Plan = Plan;
    type Core = ServerSettings;
    type Block = Block;
    type Config = Config;
}
