//! OpenSSL's configuration commands, as in `ssl_conf_command`, `proxy_ssl_conf_command` and the like.

use rustls::{SignatureScheme, SupportedCipherSuite};

use super::{Group, Protocol, Selection, WordError, ciphers, ciphersuites, groups, signature_algorithms};

/// A command, understood.
#[derive(Debug, Clone)]
pub enum Command {
    /// The first version that is offered; `None` sets no bound.
    MinProtocol(Option<Protocol>),
    /// The last version that is offered; `None` sets no bound.
    MaxProtocol(Option<Protocol>),
    /// The suites of TLS 1.3.
    Ciphersuites(Selection<SupportedCipherSuite>),
    /// The suites of TLS 1.2.
    CipherString(Selection<SupportedCipherSuite>),
    /// The groups of the key exchange.
    Groups(Selection<Group>),
    /// The schemes of signatures.
    SignatureAlgorithms(Selection<SignatureScheme>),
    /// Tickets that a client of TLS 1.3 gets.
    NumTickets(usize),
    /// Switches, each on or off; and those without effect here.
    Options(Selection<(Flag, Switch)>),
}

/// A switch of the command Options that changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    /// Prefer ChaCha20 if the client does, whatever the server's order is.
    PrioritizeChaCha,
    /// The order of the server decides.
    ServerPreference,
    /// Session tickets.
    SessionTicket,
    /// The kernel encrypts.
    Ktls,
}

/// State of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// `AlgorithmName`, or `+AlgorithmName`.
    On,
    /// `-Name`.
    Off,
}

/// Known commands, for error messages.
const KNOWN: &str = "MinProtocol, MaxProtocol, Ciphersuites, CipherString, Curves, Groups, \
    SignatureAlgorithms, NumTickets, Options";

/// Tickets of one handshake at most: each is a record of its own, and a browser opens some ten connections.
const NUM_TICKETS_MAX: usize = 64;

const FLAGS: &[(&str, Flag)] = &[
    ("PrioritizeChaCha", Flag::PrioritizeChaCha),
    ("ServerPreference", Flag::ServerPreference),
    ("SessionTicket", Flag::SessionTicket),
    ("KTLS", Flag::Ktls),
];

/// Switches of OpenSSL whose behaviour is always on here.
const ALWAYS: &[(&str, Switch)] = &[
    ("NoRenegotiation", Switch::On),
    ("UnsafeLegacyRenegotiation", Switch::Off),
    ("Compression", Switch::Off),
    ("ECDHSingle", Switch::On),
    ("DHSingle", Switch::On),
    ("EmptyFragments", Switch::On),
    ("Bugs", Switch::On),
    ("EncryptThenMac", Switch::On),
    ("ExtendedMasterSecret", Switch::On),
    ("AntiReplay", Switch::On),
    ("AllowNoDHEKEX", Switch::Off),
    ("NoResumptionOnRenegotiation", Switch::On),
    ("MiddleboxCompat", Switch::On),
];

/// Parses a command.
///
/// # Errors
/// An unknown command or value, or one that leaves nothing to offer.
pub fn conf_command(name: &str, value: &str) -> Result<Command, WordError> {
    // OpenSSL does not look at the case of commands in files.
    match name.to_ascii_lowercase().as_str() {
        "minprotocol" => protocol(value).map(Command::MinProtocol),
        "maxprotocol" => {
            let max = protocol(value)?;
            match max {
                Some(max) if max < Protocol::Tls12 => Err(WordError::NeverOffered(vec![value.to_owned()])),
                _ => Ok(Command::MaxProtocol(max)),
            }
        }
        "ciphersuites" => ciphersuites(value).map(Command::Ciphersuites),
        "cipherstring" => ciphers(value).map(Command::CipherString),
        "curves" | "groups" => groups(value).map(Command::Groups),
        "signaturealgorithms" => signature_algorithms(value).map(Command::SignatureAlgorithms),
        "numtickets" => match value.parse() {
            Ok(count @ 0..=NUM_TICKETS_MAX) => Ok(Command::NumTickets(count)),
            _ => Err(WordError::Malformed(value.to_owned())),
        },
        "options" => options(value).map(Command::Options),
        _ => Err(WordError::UnknownCommand(KNOWN)),
    }
}

fn protocol(value: &str) -> Result<Option<Protocol>, WordError> {
    match value {
        "None" | "none" => Ok(None),
        _ => Protocol::named(value).map(Some).ok_or_else(|| WordError::Unknown(value.to_owned())),
    }
}

fn options(value: &str) -> Result<Selection<(Flag, Switch)>, WordError> {
    let mut selected = Selection { chosen: Vec::new(), never: Vec::new() };
    for word in value.split(',').map(str::trim) {
        let (name, switch) = match word.strip_prefix('-') {
            Some(name) => (name, Switch::Off),
            None => (word.strip_prefix('+').unwrap_or(word), Switch::On),
        };
        let same = |candidate: &str| candidate.eq_ignore_ascii_case(name);
        if let Some((_, flag)) = FLAGS.iter().find(|(candidate, _)| same(candidate)) {
            selected.chosen.push((*flag, switch));
        } else if let Some((_, always)) = ALWAYS.iter().find(|(candidate, _)| same(candidate)) {
            if *always != switch {
                selected.never.push(word.to_owned());
            }
        } else {
            return Err(WordError::Unknown(word.to_owned()));
        }
    }
    Ok(selected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands() {
        assert!(matches!(
            conf_command("MinProtocol", "TLSv1.3"),
            Ok(Command::MinProtocol(Some(Protocol::Tls13)))
        ));
        assert!(matches!(conf_command("minprotocol", "None"), Ok(Command::MinProtocol(None))));
        assert!(matches!(
            conf_command("MaxProtocol", "TLSv1.2"),
            Ok(Command::MaxProtocol(Some(Protocol::Tls12)))
        ));
        let Ok(Command::Ciphersuites(suites)) = conf_command("Ciphersuites", "TLS_CHACHA20_POLY1305_SHA256")
        else {
            panic!()
        };
        assert_eq!(suites.chosen.len(), 1);
        let Ok(Command::CipherString(suites)) = conf_command("CipherString", "ECDHE+AESGCM") else {
            panic!()
        };
        assert_eq!(suites.chosen.len(), 4);
        assert!(matches!(conf_command("NumTickets", "0"), Ok(Command::NumTickets(0))));
        assert!(matches!(conf_command("numtickets", "4"), Ok(Command::NumTickets(4))));
        let Ok(Command::SignatureAlgorithms(schemes)) =
            conf_command("SignatureAlgorithms", "RSA+SHA256:ed448")
        else {
            panic!()
        };
        assert_eq!((schemes.chosen.len(), schemes.never.len()), (1, 1));
        let Ok(Command::Groups(groups)) = conf_command("Curves", "X25519:P-224") else { panic!() };
        assert_eq!((groups.chosen.len(), groups.never.len()), (1, 1));
    }

    #[test]
    fn switches() {
        let Ok(Command::Options(options)) = conf_command(
            "Options",
            "PrioritizeChaCha,-SessionTicket,+ServerPreference,NoRenegotiation,Compression",
        ) else {
            panic!()
        };
        assert_eq!(
            options.chosen,
            [
                (Flag::PrioritizeChaCha, Switch::On),
                (Flag::SessionTicket, Switch::Off),
                (Flag::ServerPreference, Switch::On)
            ]
        );
        assert_eq!(options.never, ["Compression"]);
    }

    #[test]
    fn refused_input_is_named() {
        for (name, value, expected) in [
            ("Verify", "on", "unknown command; known are MinProtocol"),
            ("MinProtocol", "TLSv9", "\"TLSv9\" is not known"),
            ("MaxProtocol", "TLSv1.1", "nothing remains"),
            ("Options", "KTLS,Other", "\"Other\" is not known"),
            ("Ciphersuites", "AES128-SHA", "\"AES128-SHA\" is not known"),
            ("Curves", "X448", "nothing remains"),
            ("NumTickets", "65", "invalid command \"65\""),
            ("NumTickets", "-1", "invalid command \"-1\""),
            ("SignatureAlgorithms", "RSA+SHA1", "nothing remains"),
            ("SignatureAlgorithms", "RSA+MD4", "\"RSA+MD4\" is not known"),
        ] {
            let error = conf_command(name, value).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
