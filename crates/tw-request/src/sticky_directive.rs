//! `sticky` as it is written (nginx: ngx_http_upstream_sticky_module).

use std::sync::Arc;
use std::time::Duration;

use tw_conf::{ConfError, Node, Span, Word, units};
use tw_upstream::StickySessions;

use super::sticky::{CookieExpires, Sticky, StickyCookie, StickyLearn, is_same_site};
use crate::protocol::Resolve;
use crate::vars::Template;

/// The smallest zone of `sticky learn`, in bytes: eight pages. Source: nginx.
const ZONE_MIN: u64 = 8 * 4096;
/// Default time after which an unused session is forgotten.
const SESSION_TIMEOUT: Duration = Duration::from_secs(600);

/// `sticky` as written.
pub enum WrittenSticky {
    Cookie(WrittenCookie),
    Route(Vec<Word>),
    Learn { create: Vec<Word>, lookup: Vec<Word>, zone: WrittenZone, timeout: Duration, in_head: bool },
}

#[derive(Default)]
pub struct WrittenCookie {
    name: Box<[u8]>,
    expires: Option<CookieExpires>,
    domain: Option<(Box<[u8]>, Span)>,
    path: Option<Box<[u8]>>,
    same_site: Option<(Box<[u8]>, Span)>,
    http_only: bool,
    secure: bool,
}

/// The zone of `sticky learn` as written.
pub struct WrittenZone {
    name: Box<[u8]>,
    /// In bytes.
    size: u64,
    span: Span,
}

/// The sessions of a zone, and the group that they are for.
struct Zone {
    upstream: Box<str>,
    size: u64,
    sessions: Arc<StickySessions>,
}

/// Reads `sticky`.
pub(crate) fn read(node: &Node) -> Result<WrittenSticky, ConfError> {
    let kind = node.arg(0)?;
    match &*kind.bytes {
        b"cookie" => cookie(node).map(WrittenSticky::Cookie),
        b"route" => {
            let words = node.args.iter().skip(1);
            let variable = |word: &Word| match word.bytes.first() {
                Some(b'$') => Ok(word.clone()),
                _ => Err(node.fail(format!("invalid variable name \"{word}\"")).at(word.span)),
            };
            words.map(variable).collect::<Result<_, _>>().map(WrittenSticky::Route)
        }
        b"learn" => learn(node),
        _ => Err(unknown(node, kind)),
    }
}

fn unknown(node: &Node, word: &Word) -> ConfError {
    node.fail(format!("unknown parameter \"{word}\"")).at(word.span)
}

fn cookie(node: &Node) -> Result<WrittenCookie, ConfError> {
    let name = node.arg(1)?.bytes.clone();
    if name.is_empty() {
        return Err(node.fail("empty cookie name"));
    }
    let mut written_cookie = WrittenCookie { name: (&*name).into(), ..WrittenCookie::default() };
    for word in node.args.iter().skip(2) {
        let once = |is_new: bool, name: &str| {
            let duplicate = || node.fail(format!("parameter \"{name}\" is duplicate")).at(word.span);
            if is_new { Ok(()) } else { Err(duplicate()) }
        };
        let filled = |value: &[u8], name: &str| {
            let missing = || node.fail(format!("no value for \"{name}\"")).at(word.span);
            if value.is_empty() { Err(missing()) } else { Ok(value.into()) }
        };
        let invalid = |name: &str| node.fail(format!("invalid \"{name}\" parameter value")).at(word.span);
        if let Some(value) = word.param("domain") {
            once(written_cookie.domain.is_none(), "domain")?;
            written_cookie.domain = Some((filled(value, "domain")?, word.span));
        } else if let Some(value) = word.param("path") {
            once(written_cookie.path.is_none(), "path")?;
            written_cookie.path = Some(filled(value, "path")?);
        } else if let Some(value) = word.param("expires") {
            once(written_cookie.expires.is_none(), "expires")?;
            written_cookie.expires = Some(match value {
                b"max" => CookieExpires::Max,
                value => CookieExpires::After(units::sec(value).ok_or_else(|| invalid("expires"))?),
            });
        } else if let Some(value) = word.param("samesite") {
            once(written_cookie.same_site.is_none(), "samesite")?;
            if !value.contains(&b'$') && !is_same_site(value) {
                return Err(invalid("samesite"));
            }
            written_cookie.same_site = Some((value.into(), word.span));
        } else {
            let flag = match &*word.bytes {
                b"httponly" => &mut written_cookie.http_only,
                b"secure" => &mut written_cookie.secure,
                _ => return Err(unknown(node, word)),
            };
            once(!*flag, &word.lossy())?;
            *flag = true;
        }
    }
    Ok(written_cookie)
}

fn learn(node: &Node) -> Result<WrittenSticky, ConfError> {
    let mut create = vec![];
    let mut lookup = vec![];
    let mut zone = None;
    let mut timeout = None;
    let mut in_head = false;
    for word in node.args.iter().skip(1) {
        let fail = |text: &str| node.fail(text).at(word.span);
        let variable = |value: &[u8], name: &str| match value.first() {
            Some(b'$') => Ok(Word { bytes: value.into(), ..word.clone() }),
            _ => Err(node.fail(format!("missing variable in the \"{name}\" parameter")).at(word.span)),
        };
        if let Some(value) = word.param("zone") {
            if zone.is_some() {
                return Err(fail("duplicate zone"));
            }
            let colon = value.iter().position(|byte| *byte == b':');
            let (name, size) = value.split_at(colon.ok_or_else(|| fail("zone size is not specified"))?);
            if name.is_empty() {
                return Err(fail("zone name is not specified"));
            }
            let size = units::size(&size[1..]).ok_or_else(|| fail("invalid zone size"))?;
            if size < ZONE_MIN {
                return Err(fail("zone is too small"));
            }
            zone = Some(WrittenZone { name: name.into(), size, span: word.span });
        } else if let Some(value) = word.param("timeout") {
            if timeout.is_some() {
                return Err(fail("duplicate timeout"));
            }
            let value = units::msec(value).filter(|value| !value.is_zero());
            timeout = Some(value.ok_or_else(|| fail("invalid timeout"))?);
        } else if let Some(value) = word.param("create") {
            create.push(variable(value, "create")?);
        } else if let Some(value) = word.param("lookup") {
            lookup.push(variable(value, "lookup")?);
        } else if &*word.bytes == b"header" {
            in_head = true;
        } else {
            return Err(unknown(node, word));
        }
    }
    let missing = |name: &str| node.fail(format!("\"{name}\" parameter is not specified"));
    if lookup.is_empty() {
        return Err(missing("lookup"));
    }
    if create.is_empty() {
        return Err(missing("create"));
    }
    let zone = zone.ok_or_else(|| missing("zone"))?;
    Ok(WrittenSticky::Learn { create, lookup, zone, timeout: timeout.unwrap_or(SESSION_TIMEOUT), in_head })
}

/// Makes what requests of the group `upstream` use.
pub(crate) fn resolve(
    sticky: WrittenSticky,
    upstream: &str,
    cx: &mut Resolve<'_>,
) -> Result<Sticky, ConfError> {
    match sticky {
        WrittenSticky::Cookie(cookie) => {
            let mut template = |text: Option<(Box<[u8]>, Span)>| {
                text.map(|(text, at)| cx.template_text(&text, Some(at))).transpose()
            };
            Ok(Sticky::Cookie(StickyCookie {
                name: cookie.name,
                expires: cookie.expires,
                domain: template(cookie.domain)?,
                path: cookie.path,
                same_site: template(cookie.same_site)?,
                http_only: cookie.http_only,
                secure: cookie.secure,
            }))
        }
        WrittenSticky::Route(words) => Ok(Sticky::Route(templates(&words, cx)?)),
        WrittenSticky::Learn { create, lookup, zone, timeout, in_head } => {
            let sessions = sessions(zone, timeout, upstream, cx)?;
            let create = templates(&create, cx)?;
            let lookup = templates(&lookup, cx)?;
            Ok(Sticky::Learn(StickyLearn { create, lookup, sessions, in_head }))
        }
    }
}

fn templates(words: &[Word], cx: &mut Resolve<'_>) -> Result<Vec<Template>, ConfError> {
    words.iter().map(|word| cx.template(word)).collect()
}

/// The sessions of a zone, with those that were learned before.
fn sessions(
    written_zone: WrittenZone,
    timeout: Duration,
    upstream: &str,
    cx: &mut Resolve<'_>,
) -> Result<Arc<StickySessions>, ConfError> {
    let WrittenZone { name, size, span } = written_zone;
    let timeout = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    let before = cx.previous::<Zone>(&name).filter(|zone| zone.size == size && &*zone.upstream == upstream);
    let mut is_new = false;
    let zone = cx.keep(
        &name,
        |_| false,
        || {
            is_new = true;
            let sessions = match before {
                Some(before) => before.sessions.with_timeout(timeout),
                None => StickySessions::new(usize::try_from(size).unwrap_or(usize::MAX), timeout),
            };
            Zone { upstream: upstream.into(), size, sessions: Arc::new(sessions) }
        },
    );
    if !is_new {
        let name = tw_log::Text(&name);
        let upstream = &zone.upstream;
        let message = format!("sticky zone \"{name}\" is already used in upstream \"{upstream}\"");
        return Err(ConfError::new(message).at(span));
    }
    Ok(zone.sessions.clone())
}
