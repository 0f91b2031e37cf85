//! `syslog:server=address[,facility=…][,severity=…][,tag=…][,nohostname]`, in `error_log` and `access_log`.

use std::path::PathBuf;

use tw_log::{Facility, Level, SyslogHead, SyslogServer};
use tw_net::Addr;

/// The port of a server that names none.
const DEFAULT_PORT: u16 = 514;
/// Bytes of a tag at most, as in RFC 3164.
const TAG_MAX: usize = 32;
/// The tag of messages that name none.
const DEFAULT_TAG: &str = "nginx";

/// Parameters of a log to a syslog server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Syslog {
    /// Address of the server.
    pub server: SyslogServer,
    /// Header of each message.
    pub head: SyslogHead,
    /// The severity of messages that have no level of their own.
    pub severity: Level,
}

impl Syslog {
    /// Reads what follows `syslog:`. A name is resolved, which may wait. The error is nginx's.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let mut server = None;
        let mut facility = None;
        let mut severity = None;
        let mut tag = None;
        let mut hostname = true;
        for parameter in text.split(|byte| *byte == b',') {
            let (name, value) = match parameter.iter().position(|byte| *byte == b'=') {
                Some(at) => (&parameter[..at], &parameter[at + 1..]),
                None => (parameter, &parameter[parameter.len()..]),
            };
            let shown = String::from_utf8_lossy(value);
            match name {
                b"server" if parameter != name => once(&mut server, "server", || address(value)),
                b"facility" if parameter != name => once(&mut facility, "facility", || {
                    Facility::parse(value).ok_or_else(|| format!("unknown syslog facility \"{shown}\""))
                }),
                b"severity" if parameter != name => once(&mut severity, "severity", || {
                    Level::parse(value).ok_or_else(|| format!("unknown syslog severity \"{shown}\""))
                }),
                b"tag" if parameter != name => once(&mut tag, "tag", || check_tag(value)),
                b"nohostname" if parameter == name => {
                    hostname = false;
                    Ok(())
                }
                _ => Err(format!("unknown syslog parameter \"{}\"", String::from_utf8_lossy(parameter))),
            }?;
        }
        let server = server.ok_or("no syslog server specified")?;
        let host = hostname.then(|| {
            String::from_utf8_lossy(rustix::system::uname().nodename().to_bytes()).to_ascii_lowercase()
        });
        let tag = tag.unwrap_or_else(|| DEFAULT_TAG.to_owned());
        Ok(Self {
            server,
            head: SyslogHead::new(facility.unwrap_or(Facility::LOCAL7), host.as_deref(), &tag),
            severity: severity.unwrap_or(Level::Info),
        })
    }
}

fn once<T>(
    place: &mut Option<T>,
    name: &str,
    read: impl FnOnce() -> Result<T, String>,
) -> Result<(), String> {
    match place {
        Some(_) => Err(format!("duplicate syslog \"{name}\"")),
        None => {
            *place = Some(read()?);
            Ok(())
        }
    }
}

fn address(text: &[u8]) -> Result<SyslogServer, String> {
    let shown = String::from_utf8_lossy(text);
    let failed = |why: &dyn std::fmt::Display| format!("{why} in syslog server \"{shown}\"");
    let text = str::from_utf8(text).map_err(|_| failed(&"invalid host"))?;
    match tw_net::parse_server(text, DEFAULT_PORT).map_err(|error| failed(&error))? {
        Addr::Inet(address) => Ok(SyslogServer::Inet(address)),
        Addr::Unix(path) => Ok(SyslogServer::Unix(path.map(PathBuf::from).unwrap_or_default())),
    }
}

fn check_tag(tag: &[u8]) -> Result<String, String> {
    if tag.len() > TAG_MAX {
        return Err(format!("syslog tag length exceeds {TAG_MAX}"));
    }
    match str::from_utf8(tag) {
        Ok(text) if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') => Ok(text.into()),
        _ => Err("syslog \"tag\" only allows alphanumeric characters and underscore".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_of_nginx() {
        let head = |facility: &str, tag: &str| {
            SyslogHead::new(Facility::parse(facility.as_bytes()).unwrap(), None, tag)
        };
        let inet = |address: &str| SyslogServer::Inet(address.parse().unwrap());
        for (text, server, head, severity) in [
            ("server=127.0.0.1,nohostname", inet("127.0.0.1:514"), head("local7", "nginx"), Level::Info),
            (
                "severity=warn,nohostname,server=[::1]:12345,facility=user,tag=My_Tag1",
                inet("[::1]:12345"),
                head("user", "My_Tag1"),
                Level::Warn,
            ),
            (
                "server=unix:/dev/log,nohostname,tag=",
                SyslogServer::Unix("/dev/log".into()),
                head("local7", ""),
                Level::Info,
            ),
        ] {
            assert_eq!(Syslog::parse(text.as_bytes()), Ok(Syslog { server, head, severity }), "{text}");
        }
    }

    #[test]
    fn errors_are_those_of_nginx() {
        let long = format!("server=127.0.0.1,tag={}", "x".repeat(33));
        for (text, expected) in [
            ("facility=user", "no syslog server specified"),
            ("server=127.0.0.1,server=127.0.0.1", "duplicate syslog \"server\""),
            ("server=127.0.0.1:0", "invalid port in syslog server \"127.0.0.1:0\""),
            ("server=", "no host in syslog server \"\""),
            ("server=unix:", "no path in the unix domain socket in syslog server \"unix:\""),
            ("server=a/b", "invalid host in syslog server \"a/b\""),
            ("server=127.0.0.1,facility=x", "unknown syslog facility \"x\""),
            ("facility=user,facility=user", "duplicate syslog \"facility\""),
            ("server=127.0.0.1,severity=warning", "unknown syslog severity \"warning\""),
            ("severity=warn,severity=warn", "duplicate syslog \"severity\""),
            ("tag=a,tag=b", "duplicate syslog \"tag\""),
            (&long, "syslog tag length exceeds 32"),
            ("server=127.0.0.1,tag=a-b", "syslog \"tag\" only allows alphanumeric characters and underscore"),
            ("server=127.0.0.1,", "unknown syslog parameter \"\""),
            ("server=127.0.0.1,what=x", "unknown syslog parameter \"what=x\""),
            ("nohostname=x", "unknown syslog parameter \"nohostname=x\""),
            ("server", "unknown syslog parameter \"server\""),
        ] {
            assert_eq!(Syslog::parse(text.as_bytes()), Err(expected.to_owned()), "{text}");
        }
    }
}
