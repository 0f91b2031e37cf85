//! Core directives of `mail` and its servers (nginx: ngx_mail_core_module).

use std::time::Duration;

use tw_accept::listen::Listen;
use tw_conf::{Args, ConfError, Cx, Directive, MAIL, MAIL_SERVER, Node, Setting, Word, record};
use tw_connect::Resolving;
use tw_connect::resolving::RawResolving;
use tw_core::load::Resolve;
use tw_core::log::{LogTags, LogTarget, RawLogTag, SharedErrorLog};
use tw_core::module::Settings;

use crate::dialogue::MailProtocol;
use crate::protocol::{Mail, SessionOfMail};

const ALL: u32 = MAIL | MAIL_SERVER;

// DIFF(nginx): a command of POP3 has room for long passwords and tokens.
tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time of a client until its login is complete, and of the mail server until it has accepted the login.
    directive "timeout", "the session ends";
    /// Invalid commands of a client before its login.
    directive "max_errors", "the session ends";
    /// Bytes of one command of POP3 before the login.
    pub(crate) const POP3_BUFFER_SIZE: usize = 4096, bytes, "the session ends";
    /// Bytes of one command of IMAP, with its literals, before the login.
    directive "imap_client_buffer", "the session ends";
    /// Bytes of one command of SMTP before the login.
    directive "smtp_client_buffer", "the session ends";
}

/// Settings of one server.
pub struct ServerSettings {
    /// Addresses on which its sessions begin.
    pub listens: Vec<Listen>,
    /// `protocol`, or the usual one of the port; `None` in the block around servers.
    pub protocol: Option<MailProtocol>,
    /// `server_name`
    pub name: Box<[u8]>,
    /// `error_log`
    pub error_log: SharedErrorLog,
    /// `error_log_tag`
    pub error_log_tags: LogTags<SessionOfMail>,
    /// Name servers for the hosts of clients of SMTP.
    pub resolving: Resolving,
    /// `timeout`
    pub timeout: Duration,
    /// `max_errors`
    pub errors_max: usize,
    /// `resolver off`, and a block without `resolver`: hosts of clients are not looked up.
    pub resolves_clients: bool,
}

/// Directives as written.
#[derive(Default)]
pub struct Raw {
    server_name: Setting<Word>,
    listen: Setting<Vec<Listen>>,
    protocol: Setting<MailProtocol>,
    error_log: Setting<Vec<LogTarget>>,
    error_log_tags: Setting<Vec<RawLogTag>>,
    resolving: RawResolving,
    resolver: Setting<bool>,
    timeout: Setting<Duration>,
    errors_max: Setting<usize>,
}

impl Settings<Mail> for ServerSettings {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("listen", "address:port | port | unix:path [parameters]", MAIL_SERVER, Args::at_least(1))
            .doc("Address and port, or unix socket, on which sessions begin.")
            .set(|raw, node, cx| {
                let listen = read_listen(node, cx)?;
                raw.listen.push(node, listen);
                Ok(())
            }),
        record::new("protocol", "imap | pop3 | smtp", MAIL_SERVER, Args::exact(1))
            .doc("Protocol of the server. Without it, the port of a listen directive decides.")
            .set(|raw, node, _| {
                let word = node.arg(0)?;
                let protocol = word.one_of(&MailProtocol::ALL);
                let protocol = protocol.ok_or_else(|| node.fail(format!("unknown protocol \"{word}\"")))?;
                raw.protocol.replace(node, protocol);
                Ok(())
            }),
        record::new("server_name", "name", ALL, Args::exact(1))
            .default("hostname")
            .doc("Name of the server: in the greeting of SMTP, in challenges, and in the greeting to a mail server.")
            .set(|raw, node, _| raw.server_name.set_once(node, node.arg(0)?.clone())),
        record::new("error_log", "file | stderr | syslog:… | memory:size [level] [json]", ALL, Args::at_least(1))
            .default("logs/error.log error")
            .doc("Log file or syslog server for errors of sessions, and the minimum level; with json, each line is an object.")
            .set(|raw, node, cx| {
                let target = LogTarget::parse(node, cx)?;
                raw.error_log.push(node, target);
                Ok(())
            }),
        record::new("error_log_tag", "name value", ALL, Args::exact(2))
            .since("Tailwater 0.2")
            .doc("Adds a name and a value, which may hold variables, to the tags of lines in an error log in JSON. Inherited if the block has none of its own.")
            .set(|raw, node, _| RawLogTag::read(&mut raw.error_log_tags, node)),
        record::new("resolver", "address … [valid=time] [ipv4=on|off] [ipv6=on|off] | off", ALL, Args::at_least(1))
            .default("off")
            .doc("Name servers that are asked for the name of a client of SMTP; the auth server and XCLIENT get it.")
            .set(|raw, node, _| match node.args.as_slice() {
                [word] if word.is("off") => raw.resolver.set_once(node, false),
                _ => {
                    raw.resolver.set_once(node, true)?;
                    raw.resolving.read(node)
                }
            }),
        record::time("resolver_timeout", ALL)
            .default("30s")
            .doc("Time in which a name must be resolved.")
            .set(|raw, node, _| raw.resolving.read_timeout(node)),
        record::time("timeout", ALL)
            .default("60s")
            .doc("Time in which a client must log in, and in which the mail server must accept the login.")
            .set(|raw, node, _| raw.timeout.set_msec(node)),
        record::number("max_errors", ALL)
            .default("5")
            .since("1.21.0")
            .doc("Number of invalid commands after which the connection is closed.")
            .set(|raw, node, _| raw.errors_max.set_number(node)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, Mail>) -> Result<Self, ConfError> {
        let error_log = match raw.error_log.take() {
            Some(targets) => cx.error_log(targets)?,
            None => outer.map_or_else(|| cx.main_error_log(), |o| o.error_log.clone()),
        };
        let listens = raw.listen.take().unwrap_or_default();
        let of_port = || {
            let addresses = listens.iter().flat_map(|listen| &listen.addresses);
            let mut ports = addresses.filter_map(|address| address.inet());
            ports.find_map(|address| MailProtocol::of_port(address.port()))
        };
        let protocol = raw.protocol.take().or_else(of_port);
        let name = raw.server_name.take().map(|word| word.bytes).filter(|name| !name.is_empty());
        let name = name.or_else(|| outer.map(|outer| outer.name.clone()));
        Ok(Self {
            protocol,
            listens,
            name: name.unwrap_or_else(|| cx.hostname.into()),
            error_log,
            error_log_tags: RawLogTag::resolve(raw.error_log_tags, outer.map(|o| &o.error_log_tags), cx)?,
            resolving: Resolving::resolve(raw.resolving, outer.map(|o| &o.resolving), cx),
            resolves_clients: raw.resolver.or(outer.map(|o| o.resolves_clients), false),
            timeout: raw.timeout.or(outer.map(|o| o.timeout), Duration::from_secs(60)),
            errors_max: raw.errors_max.or(outer.map(|o| o.errors_max), 5),
        })
    }
}

/// Reads the arguments of `listen`.
fn read_listen(node: &Node, cx: &mut Cx<'_>) -> Result<Listen, ConfError> {
    let mut listen = Listen::address(node, None)?;
    for word in node.args.iter().skip(1) {
        match word.as_str() {
            // An address belongs to one server.
            Some("default_server") => return Err(node.invalid_parameter(word)),
            _ => listen.parameter(node, word, cx)?,
        }
    }
    Ok(listen)
}
