//! `starttls` (nginx: ngx_mail_ssl_module). The other directives of TLS are those of every protocol.

use tw_conf::{Args, ConfError, Directive, MAIL, MAIL_SERVER, Setting, record};
use tw_core::load::Resolve;
use tw_core::module::Settings;

use crate::dialogue::StartTls;
use crate::protocol::Mail;

/// `starttls` of a server.
pub struct StartTlsSettings(pub StartTls);

/// The directive as written.
#[derive(Default)]
pub struct Raw(Setting<StartTls>);

const WORDS: &[(&str, StartTls)] = &[("off", StartTls::Off), ("on", StartTls::On), ("only", StartTls::Only)];

impl Settings<Mail> for StartTlsSettings {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] =
        &[record::new("starttls", "on | off | only", MAIL | MAIL_SERVER, Args::exact(1))
            .default("off")
            .doc("Offers STLS of POP3 and STARTTLS of IMAP and SMTP; with only, a login needs it.")
            .set(|raw, node, _| raw.0.set_one_of(node, WORDS))];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_, Mail>) -> Result<Self, ConfError> {
        Ok(Self(raw.0.or(outer.map(|outer| outer.0), StartTls::Off)))
    }
}
