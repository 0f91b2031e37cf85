//! Conditions for a compressed response: the checks that nginx shares between `gzip`, `gzip_static` and `gunzip`.

use std::marker::PhantomData;
use std::sync::Arc;

use tw_conf::{Args, ConfError, Cx, Directive, Node, Setting, Word, record};
use tw_core::regex::{Caseless, Regex};
use tw_http::Version;

use super::contexts::ALL;
use crate::protocol::Resolve;

/// Conditions for compressed responses.
#[derive(Clone)]
pub struct Compression {
    /// `gzip_vary`: responses that could have been compressed say so with `Vary`.
    pub vary: bool,
    /// `gzip_http_version`: the least version of a request.
    pub http_version: Version,
    /// `gzip_proxied`: bits of `PROXIED_…`, asked when a request has `Via`.
    pub proxied: u32,
    /// `gzip_disable` with patterns of `User-Agent`.
    pub disable: Arc<[Arc<Regex>]>,
    /// `gzip_disable msie6`
    pub disable_msie6: bool,
}

/// `gzip_proxied off`
pub const PROXIED_OFF: u32 = 1;
/// `gzip_proxied expired`
pub const PROXIED_EXPIRED: u32 = 2;
/// `gzip_proxied no-cache`
pub const PROXIED_NO_CACHE: u32 = 4;
/// `gzip_proxied no-store`
pub const PROXIED_NO_STORE: u32 = 8;
/// `gzip_proxied private`
pub const PROXIED_PRIVATE: u32 = 16;
/// `gzip_proxied no_last_modified`
pub const PROXIED_NO_LAST_MODIFIED: u32 = 32;
/// `gzip_proxied no_etag`
pub const PROXIED_NO_ETAG: u32 = 64;
/// `gzip_proxied auth`
pub const PROXIED_AUTH: u32 = 128;
/// `gzip_proxied any`
pub const PROXIED_ANY: u32 = 256;

/// Conditions as written.
#[derive(Default)]
pub(super) struct Raw {
    vary: Setting<bool>,
    http_version: Setting<Version>,
    proxied: Setting<u32>,
    disable: Setting<Vec<Word>>,
}

/// Records of the directives, for the settings as written `R` of a location.
pub(super) struct Records<R>(PhantomData<R>);

impl<R: AsMut<Raw> + 'static> Records<R> {
    pub(super) const ALL: &'static [Directive<R>] = &[
        record::flag("gzip_vary", ALL)
            .default("off")
            .doc("Sends Vary: Accept-Encoding with responses that are compressed for those who accept it.")
            .set(|raw, node, _| raw.as_mut().vary.set_flag(node)),
        record::new("gzip_http_version", "1.0 | 1.1", ALL, Args::exact(1))
            .default("1.1")
            .doc("Least version of a request that gets a response compressed with gzip.")
            .set(|raw, node, _| {
                let versions = [("1.0", Version::HTTP_10), ("1.1", Version::HTTP_11)];
                raw.as_mut().http_version.set_one_of(node, &versions)
            }),
        record::new("gzip_proxied", "off | expired | no-cache | … | any", ALL, Args::at_least(1))
            .default("off")
            .doc("Selects the responses that are compressed with gzip for requests of proxies (those with the field Via).")
            .set(|raw, node, cx| set_proxied(raw.as_mut(), node, cx)),
        record::new("gzip_disable", "regex …", ALL, Args::at_least(1))
            .since("0.6.23")
            .doc("Browsers, by User-Agent, that get nothing compressed with gzip; msie6 names old ones.")
            .set(|raw, node, _| {
                for word in &node.args {
                    raw.as_mut().disable.push(node, word.clone());
                }
                Ok(())
            }),
    ];
}

fn set_proxied(raw: &mut Raw, node: &Node, cx: &mut Cx<'_>) -> Result<(), ConfError> {
    let words = [
        ("off", PROXIED_OFF),
        ("expired", PROXIED_EXPIRED),
        ("no-cache", PROXIED_NO_CACHE),
        ("no-store", PROXIED_NO_STORE),
        ("private", PROXIED_PRIVATE),
        ("no_last_modified", PROXIED_NO_LAST_MODIFIED),
        ("no_etag", PROXIED_NO_ETAG),
        ("auth", PROXIED_AUTH),
        ("any", PROXIED_ANY),
    ];
    raw.proxied.add_bits(node, &words, cx)
}

impl Compression {
    pub(super) fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let mut disable = outer.map_or_else(|| Arc::new([]) as Arc<[Arc<Regex>]>, |o| o.disable.clone());
        let mut disable_msie6 = outer.is_some_and(|o| o.disable_msie6);
        if let Some(words) = raw.disable.take() {
            let (msie6, patterns): (Vec<_>, Vec<_>) = words.iter().partition(|word| &*word.bytes == b"msie6");
            disable_msie6 |= !msie6.is_empty();
            disable = patterns.into_iter().map(|word| compile(word, cx)).collect::<Result<_, _>>()?;
        }
        Ok(Self {
            vary: raw.vary.or(outer.map(|o| o.vary), false),
            http_version: raw.http_version.or(outer.map(|o| o.http_version), Version::HTTP_11),
            proxied: raw.proxied.or(outer.map(|o| o.proxied), PROXIED_OFF),
            disable,
            disable_msie6,
        })
    }
}

fn compile(word: &Word, cx: &mut Resolve<'_>) -> Result<Arc<Regex>, ConfError> {
    cx.regex(&word.bytes, Caseless::Yes)
        .map_err(|e| ConfError::new(format!("regex compilation failed: {e} in \"{word}\"")).at(word.span))
}
