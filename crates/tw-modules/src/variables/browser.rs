//! `modern_browser`, `ancient_browser`: variables that tell new browsers from old ones by `User-Agent` (nginx:
//! ngx_http_browser_module). Computed variables.

use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, Node, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_http::HeaderName;
use tw_phases::user_agent::is_msie;
use tw_request::plan::Plan;
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::{Value, VarDef};

const ALL: u32 = HTTP | SERVER | LOCATION;

/// A version that no browser has.
const UNREACHABLE: u64 = 4_001_000_000;

/// Browsers of `modern_browser`, in the order in which they are looked for: Opera may call itself MSIE.
static BROWSERS: [Browser; 5] = [
    Browser { name: "opera", skip: 0, word: "Opera", version: "Opera ".len() },
    Browser { name: "msie", skip: "Mozilla/4.0 (compatible; ".len(), word: "MSIE ", version: "MSIE ".len() },
    Browser { name: "gecko", skip: "Mozilla/5.0 (".len(), word: "rv:", version: "rv:".len() },
    Browser { name: "safari", skip: "Mozilla/5.0 (".len(), word: "Safari/", version: "Safari/".len() },
    Browser {
        name: "konqueror",
        skip: "Mozilla/5.0 (compatible; ".len(),
        word: "Konqueror/",
        version: "Konqueror/".len(),
    },
];

/// Pattern that recognizes a browser by its `User-Agent`.
struct Browser {
    name: &'static str,
    /// Bytes before the word can stand.
    skip: usize,
    word: &'static str,
    /// Bytes from the beginning of the word to the version.
    version: usize,
}

/// Browsers as written.
#[derive(Default)]
pub(crate) struct Raw {
    modern: Modern,
    ancient: Ancient,
    modern_value: Setting<Box<[u8]>>,
    ancient_value: Setting<Box<[u8]>>,
}

/// `modern_browser`
#[derive(Clone, Default)]
struct Modern {
    /// Indices of [`BROWSERS`] in order, each with the lowest version that is modern; none listed if empty.
    listed: Vec<(usize, u64)>,
    /// `unlisted`: browsers that are not listed are modern.
    unlisted: bool,
}

/// `ancient_browser`
#[derive(Clone, Default)]
struct Ancient {
    words: Vec<Box<[u8]>>,
    /// `netscape4`: so are the fourth Netscape and older ones.
    netscape4: bool,
}

/// Browsers of one location.
pub(crate) struct Browsers {
    modern: Modern,
    ancient: Ancient,
    modern_value: Box<[u8]>,
    ancient_value: Box<[u8]>,
    slots: [u16; 2],
    /// Set if any directive of the module is written here or in an enclosing block.
    is_set: bool,
}

/// Age of a browser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Age {
    Modern,
    Ancient,
}

impl Settings<Http> for Browsers {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("modern_browser", "browser version | unlisted", ALL, Args::range(1, 2))
            .doc("From which version on a browser is modern; unlisted: browsers that are not listed are.")
            .set(|raw, node, _| read_modern(&mut raw.modern, node)),
        record::new("ancient_browser", "string …", ALL, Args::at_least(1))
            .doc("A browser is ancient if one of the texts is in its User-Agent; netscape4 stands for Mozilla/1 to 4.")
            .set(|raw, node, _| {
                for word in &node.args {
                    if word.is("netscape4") { raw.ancient.netscape4 = true } else { raw.ancient.words.push(word.bytes.clone()) }
                }
                Ok(())
            }),
        record::new("modern_browser_value", "string", ALL, Args::exact(1))
            .default("1")
            .doc("Value of $modern_browser for a modern browser.")
            .set(|raw, node, _| raw.modern_value.set_bytes(node)),
        record::new("ancient_browser_value", "string", ALL, Args::exact(1))
            .default("1")
            .doc("Value of $ancient_browser for an ancient browser.")
            .set(|raw, node, _| raw.ancient_value.set_bytes(node)),
    ];

    const VARIABLES: &'static [VarDef] = &[
        VarDef::cached(
            "modern_browser",
            |_, _| Value::Found,
            "The value of modern_browser_value for a modern browser.",
        ),
        VarDef::cached(
            "ancient_browser",
            by_default,
            "The value of ancient_browser_value for an ancient browser.",
        ),
        VarDef::cached("msie", msie, "1 if the browser is Internet Explorer."),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let mut is_set = outer.is_some_and(|outer| outer.is_set);
        let mut modern = raw.modern;
        match outer {
            Some(outer) if modern.listed.is_empty() && !modern.unlisted => modern = outer.modern.clone(),
            _ if !modern.listed.is_empty() => {
                is_set = true;
                if modern.listed.iter().all(|(browser, _)| *browser != 0) {
                    modern.listed.push((0, UNREACHABLE));
                }
                modern.listed.sort_by_key(|(browser, _)| *browser);
            }
            _ => is_set |= modern.unlisted,
        }
        let mut ancient = raw.ancient;
        is_set |= !ancient.words.is_empty() || ancient.netscape4;
        if let Some(outer) = outer.filter(|_| ancient.words.is_empty() && !ancient.netscape4) {
            ancient = outer.ancient.clone();
        }
        is_set |= raw.modern_value.is_set() || raw.ancient_value.is_set();
        let one = || b"1".as_slice().into();
        Ok(Self {
            modern,
            ancient,
            modern_value: raw.modern_value.or_else(|| outer.map(|o| o.modern_value.clone()), one),
            ancient_value: raw.ancient_value.or_else(|| outer.map(|o| o.ancient_value.clone()), one),
            slots: ["modern_browser", "ancient_browser"].map(|name| cx.slot(name)),
            is_set,
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.is_set {
            return;
        }
        for (slot, age) in self.slots.into_iter().zip([Age::Modern, Age::Ancient]) {
            let browsers = self.clone();
            plan.compute(slot, Arc::new(move |r, out| browsers.put(r, age, out)));
        }
    }
}

/// Without any directive every browser is ancient.
fn by_default(_: &Request, out: &mut Vec<u8>) -> Value {
    out.push(b'1');
    Value::Found
}

fn msie(r: &Request, out: &mut Vec<u8>) -> Value {
    if is_msie(r.head.field_known(HeaderName::UserAgent).unwrap_or_default()) {
        out.push(b'1');
    }
    Value::Found
}

impl Browsers {
    fn put(&self, r: &Request, age: Age, out: &mut Vec<u8>) -> Value {
        if self.age(r.head.field_known(HeaderName::UserAgent)) == age {
            out.extend_from_slice(match age {
                Age::Modern => &self.modern_value,
                Age::Ancient => &self.ancient_value,
            });
        }
        Value::Found
    }

    fn age(&self, agent: Option<&[u8]>) -> Age {
        let otherwise = if self.modern.unlisted { Age::Modern } else { Age::Ancient };
        let Some(agent) = agent else { return otherwise };
        for &(browser, lowest) in &self.modern.listed {
            if let Some(version) = BROWSERS[browser].version_in(agent) {
                return if is_at_least(version, lowest) { Age::Modern } else { Age::Ancient };
            }
        }
        if !self.modern.listed.is_empty() && !self.modern.unlisted {
            return Age::Ancient;
        }
        let is_netscape4 = agent.len() > "Mozilla/4.72 ".len()
            && matches!(agent.strip_prefix(b"Mozilla/"), Some([b'1'..=b'4', ..]));
        if self.ancient.netscape4 && is_netscape4
            || self.ancient.words.iter().any(|word| find(agent, word).is_some())
        {
            return Age::Ancient;
        }
        otherwise
    }
}

impl Browser {
    /// Text at the place of the version; `None` if it is another browser.
    fn version_in<'a>(&self, agent: &'a [u8]) -> Option<&'a [u8]> {
        let at = self.skip + find(agent.get(self.skip..)?, self.word.as_bytes())?;
        agent.get(at + self.version..).filter(|version| !version.is_empty())
    }
}

/// Returns `true` if the version at the beginning of `text` is at least `lowest`.
fn is_at_least(text: &[u8], lowest: u64) -> bool {
    let mut version = Version::default();
    for &byte in text {
        if byte == b'.' && version.with_last() > lowest {
            return true;
        }
        if !version.push(byte) {
            break;
        }
    }
    version.with_last() >= lowest
}

/// A version as one number: `1.2.3.4` is 1 002 003 004 with two digits for each but the first, as nginx counts.
struct Version {
    sum: u64,
    part: u64,
    scale: u64,
}

impl Default for Version {
    fn default() -> Self {
        Self { sum: 0, part: 0, scale: 1_000_000 }
    }
}

impl Version {
    /// Takes a digit or a dot; `false` for anything else.
    fn push(&mut self, byte: u8) -> bool {
        match byte {
            b'0'..=b'9' => self.part = self.part.saturating_mul(10).saturating_add(u64::from(byte - b'0')),
            b'.' => {
                *self = Self { sum: self.with_last(), part: 0, scale: self.scale / 100 };
            }
            _ => return false,
        }
        true
    }

    fn with_last(&self) -> u64 {
        self.sum.saturating_add(self.part.saturating_mul(self.scale))
    }
}

fn read_modern(modern: &mut Modern, node: &Node) -> Result<(), ConfError> {
    let name = node.arg(0)?;
    let Some(text) = node.args.get(1) else {
        modern.unlisted = true;
        return if name.is("unlisted") { Ok(()) } else { Err(node.invalid_parameter(name)) };
    };
    let browser =
        BROWSERS.iter().position(|browser| name.bytes.eq_ignore_ascii_case(browser.name.as_bytes()));
    let browser = browser.ok_or_else(|| node.fail(format!("unknown browser name \"{name}\"")))?;
    let mut version = Version::default();
    if !text.bytes.iter().all(|byte| version.push(*byte)) {
        return Err(node.fail(format!("invalid browser version \"{text}\"")));
    }
    modern.listed.push((browser, version.with_last()));
    Ok(())
}

fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    memchr::memmem::find(text, word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn browsers(listed: &[(usize, &str)], unlisted: bool, ancient: &[&str], netscape4: bool) -> Browsers {
        let number = |text: &str| {
            let mut version = Version::default();
            assert!(text.bytes().all(|byte| version.push(byte)));
            version.with_last()
        };
        Browsers {
            modern: Modern {
                listed: listed.iter().map(|(at, text)| (*at, number(text))).collect(),
                unlisted,
            },
            ancient: Ancient {
                words: ancient.iter().map(|word| word.as_bytes().into()).collect(),
                netscape4,
            },
            modern_value: Box::default(),
            ancient_value: Box::default(),
            slots: [0; 2],
            is_set: true,
        }
    }

    #[test]
    fn ages_of_browsers() {
        let opera = "Mozilla/4.0 (compatible; MSIE 6.0; X11; FreeBSD i386) Opera 7.50  [en]";
        let msie = "Mozilla/4.0 (compatible; MSIE 5.5; Windows NT 5.1)";
        let gecko = "Mozilla/5.0 (X11; U; Linux i686; en-US; rv:1.7.8) Gecko/20050511 Firefox/1.0.4";
        let konqueror = "Mozilla/5.0 (compatible; Konqueror/3.5; FreeBSD) KHTML/3.5.1";
        let netscape = "Mozilla/4.72 [en] (X11; U; Linux)";
        let listed =
            browsers(&[(0, "9.0"), (1, "5.5"), (2, "1.0.0"), (3, "413"), (4, "3.5.1")], false, &[], false);
        let later = browsers(&[(0, "7.50"), (1, "5.6"), (2, "1.7.9")], true, &["Lynx"], true);
        let words = browsers(&[], true, &["Lynx", "Links"], true);
        for (agent, expected) in [
            (Some(opera), [Age::Ancient, Age::Modern, Age::Ancient]),
            (Some(msie), [Age::Modern, Age::Ancient, Age::Ancient]),
            (Some(gecko), [Age::Modern, Age::Ancient, Age::Modern]),
            (Some(konqueror), [Age::Ancient, Age::Modern, Age::Modern]),
            (Some(netscape), [Age::Ancient, Age::Ancient, Age::Ancient]),
            (Some("Mozilla/4.72"), [Age::Ancient, Age::Modern, Age::Modern]),
            (Some("Mozilla/5.0 (compatible; other)"), [Age::Ancient, Age::Modern, Age::Modern]),
            (Some("Links (2.1)"), [Age::Ancient, Age::Modern, Age::Ancient]),
            (Some("Lynx"), [Age::Ancient, Age::Ancient, Age::Ancient]),
            (Some("Opera"), [Age::Ancient, Age::Modern, Age::Modern]),
            (Some("Opera/99999999999999999999999999.1"), [Age::Modern, Age::Modern, Age::Modern]),
            (Some(""), [Age::Ancient, Age::Modern, Age::Modern]),
            (None, [Age::Ancient, Age::Modern, Age::Modern]),
        ] {
            let ages = [&listed, &later, &words].map(|browsers| browsers.age(agent.map(str::as_bytes)));
            assert_eq!(ages, expected, "{agent:?}");
        }
    }
}
