//! Directives of the three protocols (nginx: ngx_mail_pop3_module, ngx_mail_imap_module, ngx_mail_smtp_module), and the replies that are
//! made of them when the configuration is loaded.

use std::time::Duration;

use tw_conf::{Args, ConfError, Directive, MAIL, MAIL_SERVER, Node, Setting, Word, record};
use tw_core::load::Resolve;
use tw_core::module::Settings;

use super::server::POP3_BUFFER_SIZE;
use crate::dialogue::{AuthMethod, AuthMethods, Capabilities, ProtocolTexts};
use crate::protocol::Mail;

const ALL: u32 = MAIL | MAIL_SERVER;

/// Settings that every protocol has.
#[derive(Clone)]
pub struct ProtocolSettings {
    /// `*_auth`
    pub methods: AuthMethods,
    /// `*_client_buffer`, bytes.
    pub buffer_size: usize,
    /// `*_capabilities` as written.
    capability_words: Vec<Box<[u8]>>,
    /// Capabilities as they are announced.
    pub capabilities: Capabilities,
    /// Texts with the name of the server.
    pub texts: ProtocolTexts,
}

/// Settings that every protocol has, as written.
#[derive(Default)]
pub struct Raw {
    methods: Setting<AuthMethods>,
    buffer_size: Setting<usize>,
    capabilities: Setting<Vec<Box<[u8]>>>,
    greeting_delay: Setting<Duration>,
}

impl Raw {
    fn read_capabilities(&mut self, node: &Node) -> Result<(), ConfError> {
        self.capabilities.extend(node, node.args.iter().map(|word| word.bytes.clone()));
        Ok(())
    }

    fn read_methods(&mut self, node: &Node, auth_methods: &[AuthMethod]) -> Result<(), ConfError> {
        let mut methods = AuthMethods::default();
        for word in &node.args {
            let method = auth_methods.iter().find(|method| is_name(word, **method));
            let method = method.ok_or_else(|| node.invalid_value(word))?;
            methods.add(*method);
        }
        self.methods.set_once(node, methods)
    }

    fn resolve(
        self,
        outer: Option<&ProtocolSettings>,
        methods: &[AuthMethod],
        capabilities: &[&str],
        buffer_size: usize,
    ) -> ProtocolSettings {
        let usual = || capabilities.iter().map(|word| word.as_bytes().into()).collect();
        ProtocolSettings {
            methods: self.methods.or(outer.map(|o| o.methods), AuthMethods::of(methods)),
            buffer_size: self.buffer_size.or(outer.map(|o| o.buffer_size), buffer_size),
            capability_words: self.capabilities.or_else(|| outer.map(|o| o.capability_words.clone()), usual),
            capabilities: Capabilities::default(),
            texts: ProtocolTexts::default(),
        }
    }
}

fn is_name(word: &Word, method: AuthMethod) -> bool {
    word.as_str().is_some_and(|word| word.eq_ignore_ascii_case(method.name()))
}

/// Bytes of a page, the default of buffers.
const PAGE_SIZE: usize = 4096;

/// Settings of POP3.
pub struct Pop3Settings(pub ProtocolSettings);

/// Methods that `pop3_auth` can name; `plain` means AUTH LOGIN, too.
const POP3_METHODS: &[AuthMethod] = &[
    AuthMethod::Plain,
    AuthMethod::Apop,
    AuthMethod::CramMd5,
    AuthMethod::External,
    AuthMethod::Xoauth2,
    AuthMethod::Oauthbearer,
];

impl Settings<Mail> for Pop3Settings {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("pop3_auth", "method …", ALL, Args::at_least(1))
            .default("plain")
            .doc("Methods of authentication for clients of POP3: plain, apop, cram-md5, external, xoauth2, oauthbearer. USER and PASS, AUTH PLAIN and AUTH LOGIN are always accepted.")
            .set(|raw, node, _| raw.read_methods(node, POP3_METHODS)),
        record::new("pop3_capabilities", "extension …", ALL, Args::at_least(1))
            .default("TOP USER UIDL")
            .doc("Extensions of POP3 in the response to CAPA: those that all mail servers have.")
            .set(|raw, node, _| raw.read_capabilities(node)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_, Mail>) -> Result<Self, ConfError> {
        let outer = outer.map(|outer| &outer.0);
        let mut own = raw.resolve(outer, &[AuthMethod::Plain], &["TOP", "USER", "UIDL"], POP3_BUFFER_SIZE);
        if own.methods.has(AuthMethod::Plain) {
            own.methods.add(AuthMethod::Login);
        }
        let mechanisms = mechanisms(own.methods);
        let list = |is_wanted: &dyn Fn(&[u8]) -> bool, more: &[String]| {
            let mut text = b"+OK Capability list follows\r\n".to_vec();
            for word in own.capability_words.iter().filter(|word| is_wanted(word)) {
                text.extend_from_slice(&[word, &b"\r\n"[..]].concat());
            }
            more.iter().for_each(|line| text.extend_from_slice(format!("{line}\r\n").as_bytes()));
            text.extend_from_slice(b".\r\n");
            text.into_boxed_slice()
        };
        let sasl = mechanisms.iter().fold("SASL".to_owned(), |line, name| format!("{line} {name}"));
        let stls = "STLS".to_owned();
        own.capabilities = Capabilities {
            plain: list(&|_| true, std::slice::from_ref(&sasl)),
            starttls: list(&|_| true, &[sasl, stls.clone()]),
            starttls_only: list(&|word| !word.eq_ignore_ascii_case(b"USER"), &[stls]),
        };
        let lines: String = mechanisms.iter().map(|name| format!("{name}\r\n")).collect();
        own.texts.short = format!("+OK methods supported:\r\n{lines}.\r\n").into_bytes().into();
        Ok(Self(own))
    }
}

/// Settings of IMAP.
pub struct ImapSettings(pub ProtocolSettings);

/// Methods that `imap_auth` can name.
const IMAP_METHODS: &[AuthMethod] = &[
    AuthMethod::Plain,
    AuthMethod::Login,
    AuthMethod::CramMd5,
    AuthMethod::External,
    AuthMethod::Xoauth2,
    AuthMethod::Oauthbearer,
];

impl Settings<Mail> for ImapSettings {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("imap_auth", "method …", ALL, Args::at_least(1))
            .default("plain")
            .doc("Methods of authentication for clients of IMAP: plain, login, cram-md5, external, xoauth2, oauthbearer. LOGIN, AUTHENTICATE PLAIN and AUTHENTICATE LOGIN are always accepted.")
            .set(|raw, node, _| raw.read_methods(node, IMAP_METHODS)),
        record::new("imap_capabilities", "extension …", ALL, Args::at_least(1))
            .default("IMAP4 IMAP4rev1 UIDPLUS")
            .doc("Extensions of IMAP in the response to CAPABILITY: those that all mail servers have.")
            .set(|raw, node, _| raw.read_capabilities(node)),
        record::size("imap_client_buffer", ALL)
            .default("4k")
            .doc("Bytes of one command of IMAP before the login.")
            .set(|raw, node, _| raw.buffer_size.set_size(node)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_, Mail>) -> Result<Self, ConfError> {
        let words = ["IMAP4", "IMAP4rev1", "UIDPLUS"];
        let mut own = raw.resolve(outer.map(|outer| &outer.0), &[AuthMethod::Plain], &words, PAGE_SIZE);
        let mut line = b"* CAPABILITY".to_vec();
        for word in &own.capability_words {
            line.extend_from_slice(&[b" ", &**word].concat());
        }
        let names = mechanisms(own.methods);
        let auth = names.iter().map(|name| format!(" AUTH={name}")).collect::<String>();
        let with = |more: &str| [&*line, more.as_bytes(), b"\r\n"].concat().into_boxed_slice();
        own.capabilities = Capabilities {
            plain: with(&auth),
            starttls: with(&format!("{auth} STARTTLS")),
            starttls_only: with(" STARTTLS LOGINDISABLED"),
        };
        Ok(Self(own))
    }
}

/// Settings of SMTP.
pub struct SmtpSettings {
    /// Settings that every protocol has.
    pub shared: ProtocolSettings,
    /// `smtp_greeting_delay`
    pub greeting_delay: Duration,
}

/// Methods that `smtp_auth` can name.
const SMTP_METHODS: &[AuthMethod] = &[
    AuthMethod::Plain,
    AuthMethod::Login,
    AuthMethod::CramMd5,
    AuthMethod::External,
    AuthMethod::None,
    AuthMethod::Xoauth2,
    AuthMethod::Oauthbearer,
];

impl Settings<Mail> for SmtpSettings {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("smtp_auth", "method …", ALL, Args::at_least(1))
            .default("plain login")
            .doc("Methods of authentication for clients of SMTP: plain, login, cram-md5, external, none, xoauth2, oauthbearer. AUTH PLAIN and AUTH LOGIN are always accepted. With none, MAIL and RCPT need no login.")
            .set(|raw, node, _| raw.read_methods(node, SMTP_METHODS)),
        record::new("smtp_capabilities", "extension …", ALL, Args::at_least(1))
            .doc("Extensions of SMTP in the response to EHLO: those that all mail servers have.")
            .set(|raw, node, _| raw.read_capabilities(node)),
        record::size("smtp_client_buffer", ALL)
            .default("4k")
            .doc("Bytes of one command of SMTP before the login.")
            .set(|raw, node, _| raw.buffer_size.set_size(node)),
        record::time("smtp_greeting_delay", ALL)
            .default("0")
            .doc("Time before the greeting; a client that sends something before it is rejected.")
            .set(|raw, node, _| raw.greeting_delay.set_msec(node)),
    ];

    fn resolve(mut raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, Mail>) -> Result<Self, ConfError> {
        let delay = std::mem::take(&mut raw.greeting_delay);
        let greeting_delay = delay.or(outer.map(|outer| outer.greeting_delay), Duration::ZERO);
        let methods = [AuthMethod::Plain, AuthMethod::Login];
        let mut own = raw.resolve(outer.map(|outer| &outer.shared), &methods, &[], PAGE_SIZE);
        let name = &cx.block.server_name;
        own.texts = ProtocolTexts {
            greeting: [b"220 ", &**name, b" ESMTP ready\r\n"].concat().into(),
            short: [b"250 ", &**name, b"\r\n"].concat().into(),
        };
        let mut lines: Vec<Vec<u8>> = vec![name.to_vec()];
        lines.extend(own.capability_words.iter().map(|word| word.to_vec()));
        let names = mechanisms(own.methods);
        let auth = (!names.is_empty()).then(|| format!("AUTH {}", names.join(" ")).into_bytes());
        let starttls = || Some(b"STARTTLS".to_vec());
        own.capabilities = Capabilities {
            plain: reply(lines.iter().chain(&auth)),
            starttls: reply(lines.iter().chain(&auth).chain(&starttls())),
            starttls_only: reply(lines.iter().chain(&starttls())),
        };
        Ok(Self { shared: own, greeting_delay })
    }
}

/// A reply of SMTP with these lines: a hyphen behind the code of each but the last.
fn reply<'a>(lines: impl Iterator<Item = &'a Vec<u8>>) -> Box<[u8]> {
    let mut lines = lines.peekable();
    let mut out = Vec::new();
    while let Some(line) = lines.next() {
        let sign: &[u8] = if lines.peek().is_some() { b"250-" } else { b"250 " };
        out.extend_from_slice(&[sign, line, b"\r\n"].concat());
    }
    out.into()
}

/// Names of the mechanisms of SASL in a set.
fn mechanisms(methods: AuthMethods) -> Vec<&'static str> {
    AuthMethod::ALL
        .iter()
        .filter(|method| methods.has(**method))
        .filter_map(|method| method.mechanism())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_line_of_a_reply_has_a_blank() {
        let lines = [b"a".to_vec(), b"b".to_vec()];
        assert_eq!(&*reply(lines.iter()), b"250-a\r\n250 b\r\n");
        assert_eq!(&*reply(lines.iter().take(1)), b"250 a\r\n");
    }

    #[test]
    fn mechanisms_stand_in_one_order() {
        let all = AuthMethods::of(&AuthMethod::ALL);
        let names = ["PLAIN", "LOGIN", "CRAM-MD5", "EXTERNAL", "XOAUTH2", "OAUTHBEARER"];
        assert_eq!(mechanisms(all), names);
    }
}
